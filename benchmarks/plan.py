"""The plan of a run: what is measured beside what, in which order, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.bench import Member
from benchmarks.ceiling import Ceiling
from benchmarks.changes import FIVE_PROCESSES, FIVE_PROCESSES_AGAIN, FIVE_WORKERS, IN_ORDER, ONE_WORKER, PARALLEL
from benchmarks.drain import Drain
from benchmarks.systems import CELERY_SQLITE, DRAMATIQ, HUEY, PROCRASTINATE, System, celery_redis, fbtasks, pgqueuer
from benchmarks.transports import OURS, REDIS, SQLITE, Transport


@dataclass(frozen=True)
class Group:
    """One or two things that are measured beside the same counterpart."""

    ours: Member
    beside: tuple[Member, ...]

    def order(self, number: int) -> tuple[Member, ...]:
        """The order in round *number*: ours next to each of the others, the other way round in every second round."""
        members = (*self.beside[:1], self.ours, *self.beside[1:])
        return members if number % 2 else members[::-1]


def _drains(ours: System, *beside: System, latency: bool = False) -> Group:
    return Group(Drain(ours, latency), tuple(Drain(system, latency and not system.kept) for system in beside))


def _kept(pool: str, concurrency: int, *, latency: bool = False) -> Group:
    return _drains(fbtasks(pool, concurrency), fbtasks(pool, concurrency, kept=True), latency=latency)


_CEILING = Group(Drain(fbtasks("asyncio", 10)), (Drain(fbtasks("asyncio", 10, kept=True)), Ceiling()))

ALONE = (
    _kept("threads", 2, latency=True),
    _kept("threads", 10),
    _kept("asyncio", 2),
    _CEILING,
    _kept("processes", 2),
    _kept("processes", 10),
)
"""What is measured of fbtasks alone, in a database of the user's."""

CHANGES = (
    Group(IN_ORDER, (ONE_WORKER,)),
    Group(PARALLEL, (FIVE_PROCESSES,)),
    Group(FIVE_WORKERS, (FIVE_PROCESSES_AGAIN,)),
)
"""Changes of a table, beside the method of an article. Each member has a database of its own."""

COMPARED = (
    _drains(fbtasks("processes", 2), celery_redis("prefork", 2), fbtasks("processes", 2, kept=True), latency=True),
    _drains(fbtasks("processes", 10), celery_redis("prefork", 10), DRAMATIQ),
    _drains(fbtasks("threads", 2), celery_redis("threads", 2), fbtasks("threads", 2, kept=True), latency=True),
    _drains(fbtasks("threads", 10), celery_redis("threads", 10), HUEY, latency=True),
    _drains(fbtasks("asyncio", 10), PROCRASTINATE, pgqueuer(10, 10_000), latency=True),
    _drains(fbtasks("asyncio", 100), pgqueuer(100, 12_000)),
    _drains(fbtasks("processes", 2), CELERY_SQLITE),
    _CEILING,
    Group(OURS, (REDIS, SQLITE)),
    *CHANGES,
)
"""What is measured beside what: pools of the same kind, and as many tasks at once."""


def chosen(groups: tuple[Group, ...], names: list[str]) -> list[Group]:
    """What of *groups* has a key that begins with one of *names*, with the counterparts; all, without any names."""

    def wanted(member: Member) -> bool:
        return not names or any(member.key.startswith(name) for name in names)

    found = []
    for group in groups:
        beside = group.beside if wanted(group.ours) else tuple(filter(wanted, group.beside))
        if beside:
            found.append(Group(group.ours, beside))
    return found


def others(groups: list[Group]) -> list[System | Transport]:
    """What is not fbtasks."""
    found = []
    for member in (member for group in groups for member in group.beside):
        system = member.system if isinstance(member, Drain) else member
        if isinstance(system, System | Transport) and system.broker is not None:
            found.append(system)
    return found
