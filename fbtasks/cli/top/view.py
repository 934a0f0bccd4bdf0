"""What is chosen, opened and asked in ``fbtasks top``, and what each key does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from rich.text import Text

from fbtasks.cli.options import Command
from fbtasks.cli.output import visible_line
from fbtasks.cli.tasks import done_lines, refusal
from fbtasks.cli.top import pages
from fbtasks.cli.top.lists import ODD, WRONG, lists
from fbtasks.cli.top.sight import Opened, Sight, open_first, open_task
from fbtasks.errors import FBTasksError
from fbtasks.queue.operations import pausing, tasks
from fbtasks.queue.operations.tasks import TaskChanges
from fbtasks.queue.results import QueueRow
from fbtasks.system.showing import span

_FAR: Final = 1_000_000


Ask = Callable[[Callable[[], Any], Callable[[Any], object]], None]
"""Has the first function called, which asks the database, and then the second one with what it has returned."""


class View:
    """The state of the screen."""

    def __init__(self, command: Command, found: Sight, ask: Ask) -> None:
        self._command = command
        self._database = command.database
        self._ask = ask
        self.done = False
        self.is_held = False
        """Whether it is not refreshed."""
        self.lost = ""
        """Why the last look failed."""
        self.silence = 0.0
        """Seconds for which the database has not answered."""
        self.is_old = False
        """Whether something was changed since the last look."""
        self._message = ""
        self._needle = ""
        self._orders = [0, 0, 0]
        self._chosen: tuple[int, object] = (0, None)
        self._place = 0
        self._opened: Opened | None = None
        self._is_help = False
        self._offset = 0
        """How many lines of a task, or of the help, are above those that are shown."""
        self._is_typing = False
        self._question = ""
        self._if_yes: Callable[[], object] = self._back
        self.saw(found)

    def saw(self, found: Sight) -> None:
        """Takes what a look has found."""
        self.sight, self.lost, self.silence, self.is_old = found, "", 0.0, False
        self._lists = lists(found)
        if self._opened is not None:
            self._ask(partial(open_task, self._database, self._opened.row.id), self._saw_task)

    def _saw_task(self, found: Opened) -> None:
        if self._opened is not None and self._opened.row.id == found.row.id:
            self._opened = found

    def failed(self, error: FBTasksError) -> None:
        """Says that what was asked of the database has failed."""
        self._message = str(error)

    def press(self, key: str) -> None:
        """Does what a key is for."""
        self._message = ""
        if self._question:
            self._question = ""
            if key in "yY":
                self._if_yes()
        elif self._is_typing:
            self._type(key)
        elif (found := _ACTS.get(key)) and found.level <= self._level:
            found.act(self)

    @property
    def _level(self) -> int:
        """What is shown: 0 the help, 1 a task, 2 the lists."""
        return 0 if self._is_help else 1 if self._opened is not None else 2

    def _type(self, key: str) -> None:
        if key in ("enter", "esc"):
            self._is_typing = False
        if key in ("esc", "ctrl-u"):
            self._needle = ""
        elif key == "backspace":
            self._needle = self._needle[:-1]
        elif len(key) == 1 and key.isprintable():
            self._needle += key

    def _quit(self) -> None:
        self.done = True

    def _back(self) -> None:
        if self._level == 2:
            self._needle = ""
        if not self._is_help:
            self._opened = None
        self._is_help = False

    def _help(self) -> None:
        self._is_help, self._offset = not self._is_help, 0

    def _hold(self) -> None:
        self.is_held = not self.is_held

    def _sort(self) -> None:
        at = self._row()[0]
        self._orders[at] = (self._orders[at] + 1) % len(self._lists[at].orders)

    def _filter(self) -> None:
        self._is_typing = True

    def _move(self, step: int) -> None:
        if self._level < 2:
            self._offset = max(0, self._offset + step)
        elif flat := self._flat():
            self._choose(flat, self._at(flat) + step)

    def _next_list(self) -> None:
        flat = self._flat()
        starts = [place for place, (at, *_) in enumerate(flat) if not place or flat[place - 1][0] != at]
        if starts:
            here = self._at(flat)
            self._choose(flat, next((place for place in starts if place > here), 0))

    def _look(self) -> None:
        if self._level < 2:
            self._back()
            return
        _, row = self._row()
        if isinstance(row, QueueRow):
            self._ask(partial(open_first, self._database, row.queue), partial(self._open, row.queue))
        elif row is not None:
            self._ask(partial(open_task, self._database, row.id), partial(self._open, ""))

    def _open(self, queue: str, found: Opened | None) -> None:
        if found is None:
            self._message = f"No task is ready, held or parked in the queue {queue}."
        self._opened, self._offset = found, 0

    def _pause(self) -> None:
        _, row = self._row()
        if not isinstance(row, QueueRow):
            self._message = "p pauses a queue: choose one."
            return
        act, done = (pausing.resume, "goes on") if row.paused else (pausing.pause, "is paused")
        self._ask(
            lambda: act(self._database, [row.queue], app=self._command.code),
            lambda _: self._did(f"The queue {row.queue} {done}."),
        )

    def _retry(self) -> None:
        self._change("Retry", tasks.retry, "put back")

    def _cancel(self) -> None:
        self._change("Cancel", tasks.cancel, "cancelled")

    def _change(self, word: str, change: Callable[..., TaskChanges], done: str) -> None:
        row = self._row()[1] if self._opened is None else self._opened.row
        if row is None or isinstance(row, QueueRow):
            self._message = f"Choose a task to {word.lower()}."
            return
        self._question = f"{word} task {row.id} ({row.name})?"
        self._if_yes = lambda: self._ask(
            lambda: change(self._database, [str(row.id)]),
            lambda found: self._did(refusal(found) or " ".join(done_lines(found, done))),
        )

    def _did(self, message: str) -> None:
        self._message = message
        self.is_old = True

    # The rows of all lists, one after the other

    def _flat(self) -> list[tuple[int, object, Any]]:
        return [
            (at, row.queue if isinstance(row, QueueRow) else row.id, row)
            for at, each in enumerate(self._lists)
            for row in each.chosen(self._needle, self._orders[at])
        ]

    def _at(self, flat: Sequence[tuple[int, object, Any]]) -> int:
        """Returns the place of what is chosen; when it is gone, of what is there now."""
        found = (place for place, (at, key, _) in enumerate(flat) if (at, key) == self._chosen)
        return next(found, min(self._place, len(flat) - 1))

    def _choose(self, flat: Sequence[tuple[int, object, Any]], place: int) -> None:
        self._place = max(0, min(place, len(flat) - 1))
        self._chosen = flat[self._place][:2]

    def _row(self) -> tuple[int, Any]:
        """Returns the number of the list and the row that are chosen; None: all are empty."""
        flat = self._flat()
        if not flat:
            return 0, None
        self._choose(flat, self._at(flat))
        return flat[self._place][0], flat[self._place][2]

    # What is shown

    def lines(self, width: int, height: int) -> list[Text]:
        """Returns the lines of the screen, from the first to the last."""
        remarks = [f"/{self._needle}"] if self._needle else []
        remarks += ["not refreshed"] if self.is_held else []
        remarks += [f"no answer for {span(self.silence)}"] if self.silence >= 1 else []
        top = pages.head(self.sight, str(self._database.url), width, "  ".join(remarks))
        lost = Text(f"The last look failed: {visible_line(self.lost)}", f"{WRONG} reverse")
        top.append(lost if self.lost else pages.alerts(self.sight))
        room = max(1, height - len(top) - 1)
        if self._level == 2:
            body = self._listed(width, room)
        else:
            body = pages.task(self._opened, width) if self._opened and not self._is_help else pages.help(_HELP)
            self._offset = max(0, min(self._offset, len(body) - room))
            body = body[self._offset :]
        lines = [*top, *body][: height - 1]
        return [*lines, *[Text()] * (height - 1 - len(lines)), self._foot()]

    def _listed(self, width: int, room: int) -> list[Text]:
        at, row = self._row()
        every = [
            (each, each.chosen(self._needle, order), order)
            for each, order in zip(self._lists, self._orders, strict=True)
        ]
        place = next((number for number, each in enumerate(every[at][1]) if each is row), 0)
        return [*pages.listed(every, width, room, (at, place))]

    def _foot(self) -> Text:
        if self._question:
            return Text.assemble((f"{visible_line(self._question)} y/n", ODD))
        if self._is_typing:
            return Text(f"Filter: {visible_line(self._needle)}_   enter keeps it, esc shows all", ODD)
        if self._message:
            return Text(visible_line(self._message), ODD)
        return Text(_FOOT[self._level], "dim")


class _Key(NamedTuple):
    shown: str
    meaning: str
    act: Callable[[View], object]
    keys: tuple[str, ...]
    level: int = 0
    """The least of what is shown where it counts."""


_KEYS: Final = (
    _Key(
        "j k",
        "choose another row, or scroll a task; arrows and page keys do so, too",
        lambda v: v._move(1),
        ("j", "down"),
    ),
    _Key("", "", lambda v: v._move(-1), ("k", "up")),
    _Key("", "", lambda v: v._move(10), ("pgdn",)),
    _Key("", "", lambda v: v._move(-10), ("pgup",)),
    _Key("g G", "choose the first row, or the last", lambda v: v._move(-_FAR), ("g", "home")),
    _Key("", "", lambda v: v._move(_FAR), ("G", "end")),
    _Key("tab", "choose the next list", View._next_list, ("tab",), 2),
    _Key("enter", "look into the task, or into the first that waits in the queue", View._look, ("enter",)),
    _Key("esc", "go back; in the lists: show all rows again", View._back, ("esc", "left")),
    _Key("/", "show only rows that have a text", View._filter, ("/",), 2),
    _Key("s", "sort the list by something else", View._sort, ("s",), 2),
    _Key("r", "retry the task, which has failed or was cancelled; asks", View._retry, ("r",), 1),
    _Key("c", "cancel the task; asks", View._cancel, ("c",), 1),
    _Key("p", "pause the queue, or go on with it", View._pause, ("p",), 2),
    _Key("space", "stop refreshing, or go on", View._hold, (" ",)),
    _Key("?", "show these keys", View._help, ("?",)),
    _Key("q", "quit", View._quit, ("q",)),
)
_ACTS: Final = {key: each for each in _KEYS for key in each.keys}
_HELP: Final = [(each.shown, each.meaning) for each in _KEYS if each.shown]
_FOOT: Final = (
    "esc back  q quit",
    "esc back  j k scroll  r retry  c cancel  ? keys  q quit",
    "q quit  ? keys  enter look  r retry  c cancel  p pause  s sort  / filter",
)
"""The last line, by what is shown."""
