"""A transport of kombu: messages in tables of Firebird. Importing this makes the scheme ``firebird`` known."""

from fbtasks.kombu.broker import close_all
from fbtasks.kombu.channel import Channel
from fbtasks.kombu.qos import QoS
from fbtasks.kombu.transport import Transport
from fbtasks.kombu.within import within
from fbtasks_scheme import register

__all__ = ["Channel", "QoS", "Transport", "close_all", "within"]

register()
