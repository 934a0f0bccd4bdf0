"""Whether what a test does wakes the workers of a queue."""

from contextlib import contextmanager

from fbtasks.firebird.events import Events

from .sql import execute

MARK = "fbtasks:queue:mark"


@contextmanager
def listening(app, queue="default"):
    """Yields a function that calls another one, and returns whether that posts the event of *queue*."""
    with app.database.session() as hearing:
        events = Events(hearing, [f"fbtasks:queue:{queue}", MARK])
        try:
            events.wait(30)  # the first answer tells how often they have been posted so far

            def wakes(act, *given, **more):
                act(*given, **more)
                execute(app, f"EXECUTE BLOCK AS BEGIN POST_EVENT '{MARK}'; END")
                heard = set()
                while MARK not in heard:
                    heard.update(events.wait(30))
                return len(heard) > 1

            yield wakes
        finally:
            events.close()
