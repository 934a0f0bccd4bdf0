"""A worker as far as features ask it, and what it does for them now and then."""

from contextlib import nullcontext

from fbtasks import timing as clock
from fbtasks.feature import Every
from fbtasks.queue.upkeep.housekeeping import Housekeeping
from fbtasks.worker.options import WorkerOptions


class Turn:
    """A host's lock that is always free."""

    held = staticmethod(nullcontext)


class Worker:
    """What a feature may ask."""

    def __init__(self, queues=("default",), id=0, room=0):
        self.queues = queues
        self.id = id
        self.room = room
        self.turn = Turn()
        self.options = WorkerOptions(name="keeper", queues=tuple(queues), pool="solo", concurrency=1)

    def busy(self):
        return []

    def wanted(self):
        return self.room

    def events_arrive(self):
        return True

    def watch(self, name, ended):
        """It ends nothing."""

    def watch_outcomes(self, recorded):
        """It records nothing."""

    def watch_claims(self, took):
        """It claims nothing."""


class Keeper:
    """Does all upkeep of an app whose time has come."""

    def __init__(self, app, worker=None):
        self._housekeeping = Housekeeping(app.settings)
        made = (duty for feature in app.features for duty in feature.duties(worker or Worker()))
        self._duties = [duty for duty in made if isinstance(duty, Every)]
        self._begun = set()

    def turn(self, session):
        self._housekeeping.turn(session)
        for duty in self._duties:
            if duty not in self._begun or duty.due() <= clock.monotonic():
                self._begun.add(duty)
                duty.do(session)
