"""A worker polls tables: often while rows come, and less and less often while none do."""

from __future__ import annotations

import logging
import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from fbtasks import timing as clock
from fbtasks.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    FBTasksError,
    StatementRefused,
    TaskDefinitionError,
)
from fbtasks.feature import Duty, Worker
from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.feeds import poll_source
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.kinds.rows import reason
from fbtasks.features.sources.store import polling
from fbtasks.features.sources.store import subscriptions as events
from fbtasks.features.sources.store.polling import Known, Looked, Polled
from fbtasks.features.sources.store.subscriptions import is_done
from fbtasks.features.sources.store.tables import quoted
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.system.showing import command_line
from fbtasks.timing import Backoff, Quiet
from fbtasks.worker.logs.task_log import one_line

if TYPE_CHECKING:
    from fbtasks.app import FBTasks, Task
    from fbtasks.url import DatabaseURL

logger = logging.getLogger("fbtasks.worker")

FAILED_FIRST: Final = 1.0
FAILED_LAST: Final = 60.0
"""Seconds until a poll that failed is tried again: twice as many each time, up to the latter."""
BLOCKED: Final = 10.0
"""Seconds for which another transaction may have a table locked before that is said."""
BATCHES: Final = 5
"""Transactions that it may take in one turn to forget events."""
WHOLE: Final = 60.0
"""Seconds after which a look that finds nothing is a whole one again: it forgets what can come no more."""
_DENIED: Final = re.compile(r"no permission for (\w+) access to (?:TABLE|COLUMN|VIEW) (\S+)")


class TablePoll:
    """One table, as this worker polls it."""

    def __init__(self, app: FBTasks, worker: Worker, task: Task[..., Any], source: PollSource) -> None:
        self.task = task
        self.source = source
        self.next_look = 0.0
        """When to look, on the monotonic clock."""
        self.ended = False
        """Whether tasks have ended whose rows do not show it yet."""
        self.is_empty = False
        """Whether the last look has found nothing to do."""
        self._app = app
        self._worker = worker
        self._polled: Polled | None = None
        """None: it is to be described anew."""
        self._missed = False
        """Whether another worker was at it the last time, or it is gone."""
        self._number: int | None = None
        self._found: list[tuple[str, bool]] | None = None
        """What was registered when this was to be for the first time: its hash, and whether its code was gone."""
        self._formers: list[Polled] = []
        """Polls whose place this one has taken, and of which tasks are left."""
        self._former_error: str | None = None
        """Why an end of a task of these could not be written."""
        self._least, most = source.every
        self._pause = Backoff(self._least, most)
        self._last_look = self._next_whole = self._next_sweep = 0.0
        self._quiet = Quiet()
        self._is_open = True
        self._turns_at = 0.0
        """When the task's window is to be looked at again, on the monotonic clock."""
        self._error: str | None = None
        self._failures = Backoff(FAILED_FIRST, FAILED_LAST)
        self._blocked_since: float | None = None
        """Since when each look has met another transaction."""

    def hint(self) -> None:
        """Tasks have ended: their rows are written soon."""
        self.ended = True
        self.next_look = min(self.next_look, self._last_look + self._least)

    def attempt(self, session: Session, room: int, most: int) -> int:
        """Looks once: makes up to *most* tasks, of all that there is *room* for. Returns how many.

        When it fails, that keeps nothing else from going on.
        """
        self._last_look = clock.monotonic()
        try:
            found = self._look(session, room, most)
        except ConflictError as error:
            logger.debug("Polling %s met another transaction: %s", self.source.table, error)
            if self._blocked_since is None:
                self._blocked_since = clock.monotonic()
            self._rest(self._pause.next())  # as if the table were empty
            if clock.monotonic() - self._blocked_since >= BLOCKED:
                self._say(session, f"another transaction has it locked: {reason(str(error))}.", " All else goes on.")
            return 0
        except (StatementRefused, TaskDefinitionError, ConfigurationError) as error:
            pause = self._failures.next()
            self._rest(pause)
            self._polled, self._missed = None, False
            why = _explained(error, self._app.settings.url)
            self._say(session, why, f" It is tried again in {pause:.0f} s; all else goes on.")
            return 0
        self._failures.reset()
        self._blocked_since = None
        self._missed = found.missed
        if found.missed:
            self.is_empty = True
            self.next_look = clock.monotonic() + self._least
            return found.made
        self.ended = False
        self.is_empty = not (found.made or found.settled)
        if found.error not in (None, self._error):
            self._polled = None  # the table may have been altered: it is described anew
        if not self.is_empty:
            self._pause.reset()
        full = found.made and found.made >= found.room  # there may be more: as soon as there is room again
        self.next_look = clock.monotonic() + (0.0 if full else self._pause.next())
        self._say(session, found.error, " Other rows go on.")
        return found.made

    def _rest(self, pause: float) -> None:
        """Leaves the table alone for a while."""
        self.ended = False
        self.is_empty = True
        self.next_look = clock.monotonic() + pause

    def _look(self, session: Session, room: int, most: int) -> Looked:
        polled = self._polled or self._prepare(session)
        if not self._may_take(session) or self._awaits_former(session, polled):
            most = 0
        idle = self.is_empty and not self.ended and self._error is None
        if (idle or self._missed) and self._last_look < self._next_whole:
            waits = polling.waits(session, polled)
            if not waits.known:
                polled = self._prepare(session)
            if not waits.ends and not (waits.rows and most):
                return Looked(room=most, error=self._error)
        self._next_whole = self._last_look + WHOLE
        sweeps = self._last_look >= self._next_sweep
        if sweeps:
            self._next_sweep = self._last_look + WHOLE
        with self._worker.turn.held():
            found = polling.look(session, polled, room, most, sweep=sweeps)
        return found._replace(error=found.error or self._former_error)

    def _may_take(self, session: Session) -> bool:
        """Returns whether the task's own window is open, by the database's clock. Outside it rows stay for later."""
        window, moment = self.task.window, clock.monotonic()
        if window is not None and moment >= self._turns_at:
            now = results.now(session)
            until = now + timedelta(seconds=WHOLE)
            shift = next(window.shifts(now, until), None)
            self._is_open = shift is not None and shift.begin <= now
            turn = until if shift is None else shift.end if self._is_open else shift.begin
            self._turns_at = moment + (turn - now).total_seconds()
        return self._is_open

    def _awaits_former(self, session: Session, polled: Polled) -> bool:
        """Writes the ends of tasks of former polls. Returns whether rows of this table still are tasks of one."""
        self._former_error = None
        for former in list(self._formers):
            if polling.waits(session, former).ends:
                with self._worker.turn.held():
                    self._former_error = polling.look(session, former, 0, 0).error or self._former_error
            if is_done(session, former.id):
                self._formers.remove(former)
        return any(former.poll.table.name == polled.poll.table.name for former in self._formers)

    def _prepare(self, session: Session) -> Polled:
        known = self._registered(session)
        source = self.source.table.upper(), self.source.marks
        mine = None
        for each in known:
            theirs = poll_source(each.definition)
            if (theirs.table.upper(), theirs.marks) == source:
                mine = each
        if mine is None:
            raise TaskDefinitionError(
                f"poll_table({self.source.table!r}): it was dropped, or is registered with other marks of its rows, "
                "since this worker started. Start the worker with the present code, or run: fbtasks subscriptions apply"
            )
        expires = self.task.options.expires
        seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
        self._number = mine.id
        self._error = self._error or mine.failure
        polled = polling.prepare(session, mine.id, self.source, None if seconds is None else int(seconds * 1000))
        self._formers = []
        for each in known:
            if each.ends and each.id != mine.id and not is_done(session, each.id):
                self._add_former(session, each)
        self._polled = polled
        return polled

    def _registered(self, session: Session) -> list[Known]:
        """Returns what is registered, once in a worker's life as this app's code has it.

        What could not be registered when the worker started is tried again, unless another definition has been
        registered since: that is the one of a worker that started later, or of who deploys.
        """
        name, app = self.task.name, self._app
        known = polling.known(session, app.name, name)
        if self._number is not None:
            return known
        feed = next(feed for feed in app.features["sources"].feeds() if feed.name == name)
        found = [(each.hash, each.state == "orphaned") for each in known if not each.ends]
        if self._found is None:
            self._found = found
        if (feed.hash, False) in found or found != self._found:
            return known
        problems = subscriptions.register(session, app.name, [feed], alone=True)
        if name in problems:
            raise TaskDefinitionError(problems[name])
        return polling.known(session, app.name, name)

    def _add_former(self, session: Session, former: Known) -> None:
        try:
            self._formers.append(polling.prepare(session, former.id, poll_source(former.definition)))
        except TaskDefinitionError as error:
            logger.warning(
                "Tasks of the former definition of %s are left, and what becomes of them is not written: %s Drop it: "
                "%s",
                self.task.name,
                one_line(str(error)),
                command_line("fbtasks subscriptions drop {}", former.id),
            )

    def _say(self, session: Session, error: str | None, again: str) -> None:
        """Tells the log and the database what keeps this poll, or some of its rows, from going on; None: nothing."""
        is_time = self._quiet.over(error)
        if error == self._error and (error is None or not is_time):
            return
        if error is not None:
            logger.warning("Polling %s for %s fails: %s%s", self.source.table, self.task.name, one_line(error), again)
        else:
            logger.info("Polling %s for %s works again.", self.source.table, self.task.name)
        self._error = error
        if self._number is not None:
            try:
                polling.note_failure(session, self._number, error)
            except (ConflictError, StatementRefused) as unnoted:
                logger.warning("That cannot be noted in the database: %s", one_line(str(unnoted)))


def _explained(error: FBTasksError, url: DatabaseURL) -> str:
    """Returns why a poll has failed; of a right that is missing, how to grant it."""
    denied = _DENIED.search(str(error)) if isinstance(error, AuthenticationError) else None
    if denied is None:
        return reason(str(error).removeprefix(f"{url}: "))
    user = f"USER {quoted(url.user)}" if url.user else "its user"
    name = denied[2].strip('".')
    return f"the worker's user lacks a right: GRANT {denied[1]} ON {quoted(name)} TO {user}."


class Polling(Duty):
    """The tables that this worker polls."""

    name = "polling tables"

    def __init__(self, app: FBTasks, worker: Worker) -> None:
        self._worker = worker
        self._polls = [
            TablePoll(app, worker, app.tasks[feed.name], feed.source)
            for feed in app.features["sources"].feeds()
            if isinstance(feed.source, PollSource) and feed.queue in worker.queues
        ]
        self._first = 0
        for poll in self._polls:
            worker.watch(poll.task.name, poll.hint)

    def __bool__(self) -> bool:
        return bool(self._polls)

    def pending(self) -> bool:
        """Returns whether a table had something to do the last time, or its tasks have ended since."""
        return any(poll.ended or not poll.is_empty for poll in self._polls)

    def due(self) -> float:
        """Returns when the first table is to be looked at."""
        room = self._worker.wanted() > 0
        return min((poll.next_look for poll in self._polls if room or poll.ended), default=math.inf)

    def do(self, session: Session) -> bool:
        """Polls. Returns whether tasks were made."""
        return self.look(session, self._worker.wanted()) > 0

    def look(self, session: Session, room: int) -> int:
        """Looks at the tables whose time has come, and makes up to *room* tasks of their rows. Returns how many.

        Each table has an equal share of the room that is left. Another one is the first each time.
        """
        now, polls = clock.monotonic(), self._polls
        self._first = (self._first + 1) % len(polls)
        turned = polls[self._first :] + polls[: self._first]
        due = [poll for poll in turned if poll.next_look <= now and (room > 0 or poll.ended)]
        made = 0
        for nth, poll in enumerate(due):
            share = max(0, -(-(room - made) // (len(due) - nth)))
            if share or poll.ended:
                made += poll.attempt(session, room, share)
        return made

    def finish(self, session: Session) -> None:
        """Writes the rows of tasks that have ended, as far as that goes at once: the worker ends."""
        for poll in self._polls:
            if poll.ended:
                poll.attempt(session, 0, 0)


def forget_events(session: Session) -> bool:
    """Forgets old events without a handler. Returns whether there may be more.

    Those that were kept until their handler came, or raised while it was registered, are given to it.
    """
    return all(session.run(events.prune_events) >= events.EVENTS for _ in range(BATCHES))
