"""A transport of kombu: messages in tables of Firebird. Importing this makes the scheme ``firebird`` known."""

from fbtasks.contrib.celery.transport.channel import Channel
from fbtasks.contrib.celery.transport.process import close_all
from fbtasks.contrib.celery.transport.publisher import in_transaction
from fbtasks.contrib.celery.transport.qos import QoS
from fbtasks.contrib.celery.transport.transport import Transport
from fbtasks_scheme import register

__all__ = ["Channel", "QoS", "Transport", "close_all", "in_transaction"]

register()
