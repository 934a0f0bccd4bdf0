"""Messages of kombu, many in one statement."""

from .sql import named

_PUBLISHED = named("""
    EXECUTE BLOCK AS DECLARE I INTEGER = 0; DECLARE N INTEGER; BEGIN
        WHILE (I < {count}) DO BEGIN
            EXECUTE PROCEDURE FBTASKS_CELERY_API.PUBLISH('', '{queue}', {priority}, NULL, {ttl}, {message}, {data},
                NULL) RETURNING_VALUES N;
            I = I + 1;
        END END""")


def published(count, queue="q", *, priority=0, ttl="NULL", message="'x'", data="NULL"):
    """A block that publishes *count* messages: all of one moment."""
    return _PUBLISHED.format(count=count, queue=queue, priority=priority, ttl=ttl, message=message, data=data)
