"""Workflows in code: calls that follow each other, or run side by side.

    (fetch.s(1) | group(resize.s(width) for width in widths) | publish.s()).delay()

A signature is a call that is not made yet. Chains, groups and chords are made of signatures and are signatures
themselves. All calls of a workflow are enqueued at once, in one transaction; those that follow others wait in the
database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from fbtasks.errors import EnqueueError
from fbtasks.features.workflows.compiling import KNOWN_LATER, Compiler, End, Place
from fbtasks.features.workflows.group_result import GroupResult
from fbtasks.features.workflows.plan import Follows, Member
from fbtasks.system import checks
from fbtasks.tasks.call import Call
from fbtasks.tasks.celery_words import AnswersCelery
from fbtasks.tasks.function import as_arguments
from fbtasks.tasks.options import CallOptions, chosen_of_call
from fbtasks.tasks.request import EndsWith

if TYPE_CHECKING:
    from fbtasks.app import AsyncResult, FBTasks
    from fbtasks.features.workflows.task import StepTask

OnError = Literal["fail", "collect"]
_OF_ONE_CALL: Final = ("countdown", "eta", "task_id")
_DEEPEST: Final = 300
"""Levels that signatures may be nested: each takes two calls of functions, and Python allows a thousand."""
_SHOWN: Final = 20
"""Levels of a signature that are shown."""


class Signature(AnswersCelery):
    """A call, or several, that can be made part of a workflow. Its methods change it, and return it."""

    # Slots, and tuples for what most do not have: a workflow may be made of a hundred thousand signatures.
    __slots__ = ("__weakref__", "errbacks", "links")
    _known_as = "a signature"

    def __init__(self) -> None:
        self.links: tuple[Signature, ...] = ()
        """What follows it beside the next step of its chain."""
        self.errbacks: tuple[TaskSignature, ...] = ()
        """What runs when it has failed."""

    def __repr__(self) -> str:
        return self._shown(_SHOWN)

    def __or__(self, other: object) -> Chain:
        """Returns the chain of this and *other*, which is given its result."""
        return Chain((*_steps_of(self), *_steps_of(_signature("|", other))))

    def set(self, **options: Unpack[CallOptions]) -> Self:
        """Sets options of its calls: see docs/reference/options.md. Countdown, eta and task_id are for one call.

        *link* and *link_error*, a signature or a list of them, are as for the methods of these names.
        """
        _check_nesting(self)
        given = chosen_of_call(options)
        for each in _one_or_several("link=", given.pop("link", ())):
            self.link(each)
        for each in _one_or_several("link_error=", given.pop("link_error", ())):
            self.link_error(each)
        alone = sorted(given.keys() & set(_OF_ONE_CALL))
        if alone and not isinstance(self, TaskSignature):
            raise EnqueueError(f"{alone[0]} is for one call: set it on a step, as in task.s().set({alone[0]}=...).")
        kept: Any = {name: options[name] for name in given}  # type: ignore[literal-required]  # names of options
        self._set(kept)
        return self

    def link(self, signature: Signature) -> Self:
        """Runs *signature* when this has succeeded, with its result."""
        found = _signature("link()", signature)
        if isinstance(self, Group):
            raise EnqueueError("link() is not for a group: write group(...) | signature, or link its members.")
        self.links = *self.links, found
        return self

    def link_error(self, signature: Signature) -> Self:
        """Runs *signature* when this has failed: with the id of the task that failed, and its exception.

        Of a chain or a group: when any of its tasks has failed. It does not run for what was cancelled.
        """
        found = _signature("link_error()", signature)
        if not isinstance(found, TaskSignature) or found.links or found.errbacks:
            raise EnqueueError(f"link_error() takes the signature of one task that nothing follows, not {found}.")
        self.errbacks = *self.errbacks, found
        return self

    def on_error(self, signature: Signature) -> Self:
        """Is :meth:`link_error` under Celery's other name."""
        return self.link_error(signature)

    def clone(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Signature:
        """Returns a copy of it. *args* come before the arguments of its first calls."""
        _check_nesting(self)
        return self._with(*as_arguments(args, kwargs)).set(**options)

    def __invert__(self) -> Any:
        """Enqueues all of it, waits for it, and returns the result: ``~(a.s(1) | b.s())``."""
        return self.delay().get()

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Any:
        """Enqueues all of it, in a transaction of its own. *args* come before the arguments of its first calls.

        Returns the result of its last step: an :class:`AsyncResult`, or a :class:`GroupResult`. Raises
        :class:`EnqueueError` when something of it cannot be; then nothing is enqueued.
        """
        return self._apply(args, kwargs, options, None)

    def delay(self, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueues all of it. It takes arguments alone."""
        return self.apply_async(args, kwargs)

    def using(self, connection: Any) -> SignatureCalls:
        """Enqueues it inside the open transaction of *connection*: see :meth:`Task.using`."""
        _check_nesting(self)
        return SignatureCalls(self, connection)

    def _apply(
        self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: CallOptions, using: Any
    ) -> Any:
        signature = self
        if args or kwargs or options:
            signature = self.clone(args, kwargs, **options)
        return _send(signature, using)

    def _shown(self, levels: int) -> str:
        """Returns so many *levels* of it as text."""
        raise NotImplementedError

    def _below(self) -> tuple[Signature, ...]:
        """Returns the signatures that are made part of a workflow from within it."""
        return self.links

    def _tasks(self) -> Iterable[StepTask[..., Any]]:
        raise NotImplementedError

    def _set(self, options: CallOptions) -> None:
        raise NotImplementedError

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        """Returns a copy whose first calls have these arguments before their own."""
        raise NotImplementedError

    def _copied(self, other: Signature) -> Signature:
        """Returns *other*, followed by what follows this."""
        other.links, other.errbacks = self.links, self.errbacks
        return other

    def _compile(self, to: Compiler, place: Place) -> tuple[End, int]:
        """Adds itself in its *place*. Returns where it ends, and the node of its result."""
        raise NotImplementedError

    def _compile_links(self, to: Compiler, end: End, result: int) -> None:
        for link in self.links:
            link._compile(to, Place(end, result))
        for errback in self.errbacks:
            errback._compile_errback(to, end)


class SignatureCalls:
    """The ways to enqueue a signature inside the transaction of a connection."""

    def __init__(self, signature: Signature, connection: Any) -> None:
        self._signature = signature
        self._connection = next((task.using(connection)._connection for task in signature._tasks()), connection)

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Any:
        """Enqueues all of it."""
        return self._signature._apply(args, kwargs, options, self._connection)

    def delay(self, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueues all of it. It takes arguments alone."""
        return self.apply_async(args, kwargs)


class TaskSignature(Signature):
    """A call of a task: ``task.s(1, 2)``, or ``task.si(1, 2)``, which is not given the result of what it follows."""

    __slots__ = ("_kwargs", "_options", "args", "immutable", "task")

    if TYPE_CHECKING:  # which result it is

        def apply_async(
            self,
            args: Sequence[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            **options: Unpack[CallOptions],
        ) -> AsyncResult[Any]:
            """Enqueues all of it, with options."""

        def delay(self, /, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
            """Enqueues all of it."""

    def __init__(
        self,
        task: StepTask[..., Any],
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        options: CallOptions | None = None,
    ) -> None:
        super().__init__()
        given, named = as_arguments(args, kwargs)
        self.task = task
        self.args = tuple(given)
        self._kwargs = dict(named) if named else None
        self.immutable = immutable
        self._options = options or None

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its arguments by name."""
        if self._kwargs is None:  # most calls have none, and keep no dict for them
            self._kwargs = {}
        return self._kwargs

    @kwargs.setter
    def kwargs(self, kwargs: dict[str, Any]) -> None:
        self._kwargs = kwargs

    @property
    def options(self) -> CallOptions:
        """The options of the call."""
        if self._options is None:
            self._options = {}
        return self._options

    @options.setter
    def options(self, options: CallOptions) -> None:
        self._options = options

    def _shown(self, levels: int) -> str:  # noqa: ARG002  # it has one
        named = (f"{name}={checks.shown(each)}" for name, each in (self._kwargs or {}).items())
        shown = [*map(checks.shown, self.args), *named]
        return f"{self.task.name}({', '.join(shown)})"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the task here and now, without the queue."""
        task: Any = self.task
        return task(*args, *self.args, **{**(self._kwargs or {}), **kwargs})

    def set_immutable(self, immutable: bool) -> Self:
        """Gives it the result of what it follows, or with *immutable* does not, as :meth:`Task.si`."""
        self.immutable = immutable
        return self

    def _tasks(self) -> Iterable[StepTask[..., Any]]:
        return [self.task]

    def _set(self, options: CallOptions) -> None:
        self._options = {**(self._options or {}), **options}

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        more = (*args, *self.args), {**(self._kwargs or {}), **kwargs}
        return self._copied(TaskSignature(self.task, *more, immutable=self.immutable, options=self._options))

    def _compile(self, to: Compiler, place: Place) -> tuple[End, int]:
        args, given, before = self.args, 0, place.before
        if not self.immutable and before.is_known:
            args = (before.value, *args)
        elif not self.immutable and before.node is not None:
            given = 1
        number = to.add_step(self._call(args, given), place.parent)
        to.follow(before, number, Follows.WITH_RESULT if given else Follows.WITHOUT_RESULT)
        if self.task.options.ignore_result and not place.followed:
            to.ignored.add(number)
        end = End(number)
        self._compile_links(to, end, number)
        return end, number

    def _compile_errback(self, to: Compiler, end: End) -> None:
        if end.node is None:  # nothing that can fail
            return
        number = to.add_step(self._call(self.args, 0 if self.immutable else 2), None)
        to.follow(end, number, Follows.ON_ERROR_UNTOLD if self.immutable else Follows.ON_ERROR)

    def _call(self, args: Sequence[Any], given: int) -> Call:
        return self.task.step(args, self._kwargs or {}, given, **(self._options or {}))


class _Composite(Signature):
    """A signature that is made of others."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Signature]) -> None:
        super().__init__()
        self.parts = tuple(parts)

    @property
    def tasks(self) -> list[Signature]:
        """The signatures that it is made of."""
        return [*self.parts]

    def _below(self) -> tuple[Signature, ...]:
        return *self.parts, *self.links

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Enqueues all of it, as :meth:`delay`."""
        return self.delay(*args, **kwargs)

    def _tasks(self) -> Iterable[StepTask[..., Any]]:
        for part in self.parts:
            yield from part._tasks()

    def _set(self, options: CallOptions) -> None:
        for part in self.parts:
            part._set(options)


class Chain(_Composite):
    """Signatures one after the other: each is given the result of the one before it."""

    __slots__ = ()

    def __init__(self, parts: Iterable[Signature]) -> None:
        super().__init__(parts)
        if not self.parts:
            raise EnqueueError("a chain needs a step: chain(task.s(), ...).")

    def _shown(self, levels: int) -> str:
        return " | ".join(part._shown(levels - 1) for part in self.parts) if levels else "..."

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        return self._copied(
            Chain((self.parts[0]._with(args, kwargs), *(part._with((), {}) for part in self.parts[1:])))
        )

    def _compile(self, to: Compiler, place: Place) -> tuple[End, int]:
        end, result = place.before, place.parent
        followed = place.followed or bool(self.links or self.errbacks)
        last = len(self.parts) - 1
        for number, part in enumerate(self.parts):
            collects = place.collects and number == last
            end, result = part._compile(to, Place(end, result, followed or number < last, collects))
        assert result is not None
        self._compile_links(to, end, result)
        return end, result


class Group(_Composite):
    """Signatures side by side. What follows them is given the list of their results."""

    __slots__ = ()

    if TYPE_CHECKING:  # which result it is

        def apply_async(
            self,
            args: Sequence[Any] | None = None,
            kwargs: Mapping[str, Any] | None = None,
            **options: Unpack[CallOptions],
        ) -> GroupResult:
            """Enqueues all of it, with options."""

        def delay(self, /, *args: Any, **kwargs: Any) -> GroupResult:
            """Enqueues all of it."""

        def __call__(self, /, *args: Any, **kwargs: Any) -> GroupResult:
            """Enqueues all of it."""

    def _shown(self, levels: int) -> str:
        shown = [part._shown(levels - 1) for part in self.parts[:5]] if levels else ["..."]
        more = ["..."] if levels and len(self.parts) > 5 else []
        return f"group({', '.join([*shown, *more])})"

    def skew(self, start: float = 1.0, stop: float | None = None, step: float = 1.0) -> Self:
        """Sets countdowns: *start* seconds for the first, and *step* more for each one, up to *stop*."""
        for number, part in enumerate(self.parts):
            countdown = start + number * step
            part.set(countdown=countdown if stop is None else min(countdown, stop))
        return self

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        return self._copied(Group([part._with(args, kwargs) for part in self.parts]))

    def _compile(self, to: Compiler, place: Place) -> tuple[End, int]:
        place = place._replace(followed=place.followed or bool(self.errbacks))
        has_tasks = any(True for _ in self._tasks())
        number = to.add_group(place.parent, collects=place.collects) if place.followed and has_tasks else None
        results: list[int] = []
        known: list[Any] = []
        for at, part in enumerate(self.parts):
            end, result = part._compile(to, place)
            results.append(result)
            if not has_tasks:
                known.append(end.value)
            elif number is not None:
                node = to.add_empty_group(end.value) if end.is_known else end.node
                assert node is not None
                to.plan.members.append(Member(number, at, node, done=end.is_known))
        if number is None:
            number = to.number_group(place.parent)
            to.members[number] = results
            return End(place.before.node, KNOWN_LATER if has_tasks else known), number
        to.members[number] = results
        end = End(number)
        self._compile_links(to, end, number)
        return end, number


class Chord(_Composite):
    """A group and its body, which is given the list of the results of the group.

    With *on_error* ``"fail"`` the body fails with the first member that does, with ``"collect"`` it is given the
    exceptions of members that have failed in the places of their results.
    """

    __slots__ = ("_on_error", "body", "header")

    def __init__(self, header: Group, body: Signature, on_error: OnError = "fail") -> None:
        super().__init__((header, body))
        if on_error not in ("fail", "collect"):
            raise EnqueueError(f"on_error {checks.shown(on_error)} must be 'fail' or 'collect'.")
        self.header = header
        self.body = body
        self._on_error = on_error

    def _shown(self, levels: int) -> str:
        return f"chord({self.header._shown(levels - 1)}, {self.body._shown(levels - 1)})" if levels else "..."

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        header = self.header._with(args, kwargs)
        assert isinstance(header, Group)
        return self._copied(Chord(header, self.body._with((), {}), self._on_error))

    def _compile(self, to: Compiler, place: Place) -> tuple[End, int]:
        collects = self._on_error == "collect"
        end, result = self.header._compile(to, place._replace(followed=True, collects=collects))
        followed = place.followed or bool(self.links or self.errbacks)
        end, result = self.body._compile(to, Place(end, result, followed, place.collects))
        self._compile_links(to, end, result)
        return end, result


class _ChordHeader:
    """``chord(header)``, which is called with its body."""

    def __init__(self, header: Group, on_error: OnError) -> None:
        self._header, self._on_error = header, on_error

    def __call__(self, body: Signature) -> Any:
        """Enqueues the chord with this body."""
        return Chord(self._header, _signature("chord()", body), self._on_error).delay()


def chain(*signatures: Any) -> Chain:
    """Signatures one after the other, each of which is given the result of the one before: ``chain(a.s(1), b.s())``."""
    return Chain([step for each in _several("chain()", signatures) for step in _steps_of(each)])


def group(*signatures: Any) -> Group:
    """Signatures side by side: ``group(resize.s(width) for width in widths)``. An empty one has the result ``[]``."""
    return Group(_several("group()", signatures))


def chord(header: Any, body: Any = None, *, on_error: OnError = "fail") -> Any:
    """Makes a chord: a group, and what is given the list of its results: ``chord(group, total.s())``."""
    found = header if isinstance(header, Group) else Group(_several("chord()", (header,)))
    return _ChordHeader(found, on_error) if body is None else Chord(found, _signature("chord()", body), on_error)


def _several(what: str, given: Sequence[Any]) -> list[Signature]:
    if len(given) == 1 and not isinstance(given[0], Signature):
        only = given[0]
        if isinstance(only, str | bytes | Mapping) or not isinstance(only, Iterable):
            raise _no_signature(what, only)
        given = list(only)
    return [_signature(what, each) for each in given]


def _steps_of(signature: Signature) -> tuple[Signature, ...]:
    """Returns the steps of a chain that nothing else follows; else the one."""
    return (
        signature.parts
        if isinstance(signature, Chain) and not (signature.links or signature.errbacks)
        else (signature,)
    )


def _one_or_several(what: str, given: Any) -> list[Signature]:
    return [given] if isinstance(given, Signature) else _several(what, (given,))


def enqueue_side_by_side(signatures: Sequence[Signature], using: Any) -> list[Any]:
    """Enqueues all of *signatures* in one transaction. Returns the result of each."""
    if len(signatures) == 1:
        return [_send(signatures[0], using)]
    results: GroupResult = _send(Group(signatures), using)
    return [*results]


def _signature(what: str, value: object) -> Signature:
    if not isinstance(value, Signature):
        raise _no_signature(what, value)
    return value


def _no_signature(what: str, value: object) -> EnqueueError:
    name = getattr(value, "name", None)
    hint = f" Give {name.rpartition('.')[2]}.s(...)." if isinstance(name, str) and hasattr(value, "apply_async") else ""
    return EnqueueError(f"{what} takes signatures, as in task.s(1, 2), not {checks.shown(value)}.{hint}")


def replacement(app: FBTasks, signature: object) -> EndsWith:
    """Returns what asks for *signature* in the place of a task of *app*. Raises :class:`EnqueueError`."""
    found = _signature("self.replace()", signature)
    _check_nesting(found)
    _check_app(app, found)
    to = Compiler()
    _, result = found._compile(to, Place())
    return to.replacement(app, result, found)


def _check_nesting(signature: Signature) -> None:
    """Raises :class:`EnqueueError` for a signature that is nested deeper than Python can follow it."""
    level: list[Signature] = [signature]
    for _ in range(_DEEPEST):
        level = [part for whole in level for part in whole._below()]
        if not level:
            return
    raise EnqueueError(
        f"signatures are nested more than {_DEEPEST} levels deep: {checks.shown(signature)}. Write steps that follow "
        "each other as one chain, as in chain(signatures), and calls side by side as one group."
    )


def _check_app(app: FBTasks, signature: Signature) -> None:
    for task in signature._tasks():
        if task.app is not app:
            raise EnqueueError(f"a workflow has the tasks of one app: {task.name!r} belongs to {task.app.name!r}.")


def _send(signature: Signature, using: Any) -> Any:
    """Enqueues *signature*, in a transaction of its own or in that of the connection *using*; eager ones are run."""
    _check_nesting(signature)
    app = next((task.app for task in signature._tasks()), None)
    if app is None:
        return GroupResult([], None)
    _check_app(app, signature)
    to = Compiler()
    _, result = signature._compile(to, Place())
    return to.send(app, result, using)
