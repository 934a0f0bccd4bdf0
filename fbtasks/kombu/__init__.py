"""A transport of kombu: messages in tables of Firebird. Importing this makes the scheme ``firebird`` known."""

from fbtasks.kombu.channel import Channel
from fbtasks.kombu.process import close_all
from fbtasks.kombu.qos import QoS
from fbtasks.kombu.transaction import in_transaction
from fbtasks.kombu.transport import Transport
from fbtasks_scheme import register

__all__ = ["Channel", "QoS", "Transport", "close_all", "in_transaction"]

register()
