"""Workflows in code: calls that follow each other, or run side by side.

    (fetch.s(1) | group(resize.s(width) for width in widths) | publish.s()).delay()

A signature is a call that is not made yet. Chains, groups and chords are made of signatures and are signatures
themselves. All calls of a workflow are enqueued at once, in one transaction; those that follow others wait in the
database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, Unpack

from fbtasks import checks
from fbtasks.call import Call
from fbtasks.declare import chosen
from fbtasks.errors import EnqueueError
from fbtasks.function import as_arguments
from fbtasks.options import CallOptions, CommonOptions, unknown_of_call
from fbtasks.plan import Follows, Link, Member, Plan
from fbtasks.result import Application, AsyncResult, GroupResult, NodeResult

if TYPE_CHECKING:
    from fbtasks.enqueuing import Enqueuer

OnError = Literal["fail", "collect"]
_OF_ONE_CALL: Final = ("countdown", "eta", "task_id")
_EMPTY: Final = object()


class App(Application, Protocol):
    """The app as signatures know it."""

    always_eager: bool
    enqueuer: Enqueuer

    def run_plan_eagerly(self, plan: Plan) -> Mapping[int, AsyncResult[Any]]:
        """Runs the steps of *plan* here and now. Returns the result of each."""


class Task(Protocol):
    """A task as its signatures know it."""

    name: str
    options: CommonOptions

    @property
    def app(self) -> App:
        """The app that the task belongs to."""

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any], given: int, **options: Unpack[CallOptions]) -> Call:
        """The call as a record, for which *given* more arguments come first when it runs."""

    def using(self, connection: Any) -> Any:
        """Raises :class:`EnqueueError` for what is no connection to the app's database."""


class Placeholder:
    """Stands for the result of another step where that is not known yet."""

    def __repr__(self) -> str:
        return "<the result of the step before>"


class _End(NamedTuple):
    """Where a signature ends, for what follows it."""

    node: int | None = None
    """What is to be waited for; None: nothing."""
    value: Any = _EMPTY
    """The result, where that is known from the beginning: of groups without members."""

    @property
    def is_known(self) -> bool:
        """Whether the result is known from the beginning."""
        return self.value is not _EMPTY


class _Place(NamedTuple):
    """Where a signature stands in its workflow."""

    before: _End = _End()
    """What it follows."""
    parent: int | None = None
    """The result of that."""
    followed: bool = False
    """Whether something follows it."""
    collects: bool = False
    """Whether that is given the errors of those that fail."""


class _Shape(NamedTuple):
    """The result that is to be made of a node: of a step, or of several."""

    node: int | None
    members: tuple[int, ...] = ()
    parent: int | None = None


class _Compiler:
    """Makes the plan of one signature, and notes which results it has."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.shapes: list[_Shape] = []
        self.ignored: set[int] = set()
        """Steps whose results are not kept."""

    def shape(self, node: int | None, members: Iterable[int] = (), parent: int | None = None) -> int:
        """Returns the number of a new result."""
        self.shapes.append(_Shape(node, tuple(members), parent))
        return len(self.shapes) - 1

    def follow(self, before: _End, target: int, kind: Follows) -> None:
        """Has a step follow what is *before* it."""
        if before.node is not None:
            self.plan.links.append(Link(before.node, target, kind))

    def results(self, app: Application, ids: Mapping[int, AsyncResult[Any]]) -> list[NodeResult]:
        """The results, by the numbers of their shapes; *ids* has those of the steps."""
        made: list[NodeResult] = []
        for node, members, parent in self.shapes:
            result: NodeResult = GroupResult([made[each] for each in members], app) if node is None else ids[node]
            result.parent = None if parent is None else made[parent]
            made.append(result)
        return made


class Signature:
    """A call, or several, that can be made part of a workflow. Its methods change it, and return it."""

    def __init__(self) -> None:
        self.links: list[Signature] = []
        """What follows it beside the next step of its chain."""
        self.errbacks: list[TaskSignature] = []
        """What runs when it has failed."""

    def __or__(self, other: object) -> Chain:
        """The chain of this and *other*, which is given its result."""
        return Chain((*_steps_of(self), *_steps_of(_signature("|", other))))

    def set(self, **options: Unpack[CallOptions]) -> Self:
        """Sets options of its calls: see docs/reference/options.md. Countdown, eta and task_id are for one call."""
        given = chosen(CallOptions, options, unknown_of_call)
        alone = sorted(given.keys() & set(_OF_ONE_CALL))
        if alone and not isinstance(self, TaskSignature):
            raise EnqueueError(f"{alone[0]} is for one call: set it on a step, as in task.s().set({alone[0]}=...).")
        self._set(options)
        return self

    def link(self, signature: Signature) -> Self:
        """Has *signature* run when this has succeeded, with its result."""
        found = _signature("link()", signature)
        if isinstance(self, Group) or isinstance(found, Group | Chord):
            raise EnqueueError(
                "link() takes a task's signature or a chain, and not of a group: write signature | group(...), or "
                "group(...) | signature."
            )
        self.links.append(found)
        return self

    def link_error(self, signature: TaskSignature) -> Self:
        """Has *signature* run when this has failed: with the id of the task that failed, and its exception.

        Of a chain or a group: when any of its tasks has failed. It does not run for what was cancelled.
        """
        found = _signature("link_error()", signature)
        if not isinstance(found, TaskSignature) or found.links or found.errbacks:
            raise EnqueueError(f"link_error() takes the signature of one task that nothing follows, not {found}.")
        self.errbacks.append(found)
        return self

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Any:
        """Enqueues all of it, in a transaction of its own. *args* come before the arguments of its first calls.

        Returns the result of its last step: an :class:`AsyncResult`, or a :class:`GroupResult`. Raises
        :class:`EnqueueError` when something of it cannot be; then nothing is enqueued.
        """
        return self._apply(args, kwargs, options, None)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """The same, with arguments alone."""
        return self._apply(args, kwargs, {}, None)

    def using(self, connection: Any) -> SignatureCalls:
        """The same inside the open transaction of *connection*: see :meth:`Task.using`."""
        return SignatureCalls(self, connection)

    def _apply(
        self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: CallOptions, using: Any
    ) -> Any:
        signature = self
        if args or kwargs or options:
            signature = self._with(*as_arguments(args, kwargs))
            signature.set(**options)
        return _send(signature, using)

    def _tasks(self) -> Iterable[Task]:
        raise NotImplementedError

    def _set(self, options: CallOptions) -> None:
        raise NotImplementedError

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        """A copy whose first calls have these arguments before their own."""
        raise NotImplementedError

    def _copied(self, other: Signature) -> Signature:
        """*other*, followed by what follows this."""
        other.links, other.errbacks = list(self.links), list(self.errbacks)
        return other

    def _compile(self, to: _Compiler, place: _Place) -> tuple[_End, int]:
        """Adds itself in its *place*. Returns where it ends, and its result."""
        raise NotImplementedError

    def _compile_links(self, to: _Compiler, end: _End, shape: int) -> None:
        for link in self.links:
            link._compile(to, _Place(end, shape))
        for errback in self.errbacks:
            errback._compile_errback(to, end)


class SignatureCalls:
    """The ways to enqueue a signature inside the transaction of a connection."""

    def __init__(self, signature: Signature, connection: Any) -> None:
        for task in signature._tasks():
            task.using(connection)
            break
        self._signature = signature
        self._connection = connection

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallOptions]
    ) -> Any:
        """Enqueues all of it."""
        return self._signature._apply(args, kwargs, options, self._connection)

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """The same, with arguments alone."""
        return self._signature._apply(args, kwargs, {}, self._connection)


class TaskSignature(Signature):
    """A call of a task: ``task.s(1, 2)``, or ``task.si(1, 2)``, which is not given the result of what it follows."""

    def __init__(
        self,
        task: Task,
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
        self.kwargs = dict(named)
        self.immutable = immutable
        self.options: CallOptions = options or {}

    def __repr__(self) -> str:
        shown = [*map(checks.shown, self.args), *(f"{name}={checks.shown(each)}" for name, each in self.kwargs.items())]
        return f"{self.task.name}({', '.join(shown)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the task here and now, without the queue."""
        task: Any = self.task
        return task(*args, *self.args, **{**self.kwargs, **kwargs})

    def _tasks(self) -> Iterable[Task]:
        return [self.task]

    def _set(self, options: CallOptions) -> None:
        self.options = {**self.options, **options}

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        more = (*args, *self.args), {**self.kwargs, **kwargs}
        return self._copied(TaskSignature(self.task, *more, immutable=self.immutable, options=self.options))

    def _compile(self, to: _Compiler, place: _Place) -> tuple[_End, int]:
        args, given, before = self.args, 0, place.before
        if not self.immutable and before.is_known:
            args = (before.value, *args)
        elif not self.immutable and before.node is not None:
            given = 1
        number = to.plan.add_step(self.task.step(args, self.kwargs, given, **self.options))
        to.follow(before, number, Follows.WITH_RESULT if given else Follows.WITHOUT_RESULT)
        if self.task.options.ignore_result and not place.followed:
            to.ignored.add(number)
        shape = to.shape(number, parent=place.parent)
        self._compile_links(to, _End(number), shape)
        return _End(number), shape

    def _compile_errback(self, to: _Compiler, end: _End) -> None:
        if end.node is None:  # nothing that can fail
            return
        number = to.plan.add_step(self.task.step(self.args, self.kwargs, 0 if self.immutable else 2, **self.options))
        to.follow(end, number, Follows.ON_ERROR_UNTOLD if self.immutable else Follows.ON_ERROR)


class _Composite(Signature):
    """A signature that is made of others."""

    parts: tuple[Signature, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueues all of it, as :meth:`delay`."""
        return self.delay(*args, **kwargs)

    def _tasks(self) -> Iterable[Task]:
        for part in self.parts:
            yield from part._tasks()

    def _set(self, options: CallOptions) -> None:
        for part in self.parts:
            part._set(options)


class Chain(_Composite):
    """Signatures one after the other: each is given the result of the one before it."""

    def __init__(self, parts: Iterable[Signature]) -> None:
        super().__init__()
        self.parts = tuple(parts)
        if not self.parts:
            raise EnqueueError("a chain needs a step: chain(task.s(), ...).")

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        return self._copied(
            Chain((self.parts[0]._with(args, kwargs), *(part._with((), {}) for part in self.parts[1:])))
        )

    def _compile(self, to: _Compiler, place: _Place) -> tuple[_End, int]:
        end, shape = place.before, place.parent
        followed = place.followed or bool(self.links or self.errbacks)
        last = len(self.parts) - 1
        for number, part in enumerate(self.parts):
            collects = place.collects and number == last
            end, shape = part._compile(to, _Place(end, shape, followed or number < last, collects))
        assert shape is not None
        self._compile_links(to, end, shape)
        return end, shape


class Group(_Composite):
    """Signatures side by side. What follows them is given the list of their results."""

    def __init__(self, parts: Iterable[Signature]) -> None:
        super().__init__()
        self.parts = tuple(parts)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.parts[:5])) + (", ..." if len(self.parts) > 5 else "")
        return f"group({shown})"

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        return self._copied(Group([part._with(args, kwargs) for part in self.parts]))

    def _compile(self, to: _Compiler, place: _Place) -> tuple[_End, int]:
        place = place._replace(followed=place.followed or bool(self.errbacks))
        has_tasks = any(True for _ in self._tasks())
        number = to.plan.add_group(collects=place.collects) if place.followed and has_tasks else None
        made = [part._compile(to, place) for part in self.parts]
        shape = to.shape(None, [each for _, each in made], place.parent)
        ends = [end for end, _ in made]
        if number is None:
            return _End(place.before.node, _EMPTY if has_tasks else [end.value for end in ends]), shape
        for at, end in enumerate(ends):
            node = _empty_group(to, end.value) if end.is_known else end.node
            assert node is not None
            to.plan.members.append(Member(number, at, node, done=end.is_known))
        self._compile_links(to, _End(number), shape)
        return _End(number), shape


class Chord(_Composite):
    """A group and its body, which is given the list of the results of the group.

    With *on_error* ``"fail"`` the body fails with the first member that does, with ``"collect"`` it is given the
    exceptions of members that have failed in the places of their results.
    """

    def __init__(self, header: Group, body: Signature, on_error: OnError = "fail") -> None:
        super().__init__()
        if on_error not in ("fail", "collect"):
            raise EnqueueError(f"on_error {checks.shown(on_error)} must be 'fail' or 'collect'.")
        self.header = header
        self.body = body
        self.on_error = on_error
        self.parts = (header, body)

    def __repr__(self) -> str:
        return f"chord({self.header}, {self.body})"

    def _with(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Signature:
        header = self.header._with(args, kwargs)
        assert isinstance(header, Group)
        return self._copied(Chord(header, self.body._with((), {}), self.on_error))

    def _compile(self, to: _Compiler, place: _Place) -> tuple[_End, int]:
        collects = self.on_error == "collect"
        end, shape = self.header._compile(to, place._replace(followed=True, collects=collects))
        followed = place.followed or bool(self.links or self.errbacks)
        end, shape = self.body._compile(to, _Place(end, shape, followed, place.collects))
        self._compile_links(to, end, shape)
        return end, shape


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
    """A group, or the signatures of one, and what is given the list of their results: ``chord(group, total.s())``."""
    found = header if isinstance(header, Group) else Group(_several("chord()", (header,)))
    return _ChordHeader(found, on_error) if body is None else Chord(found, _signature("chord()", body), on_error)


def _empty_group(to: _Compiler, value: list[Any]) -> int:
    """A group without members but such groups."""
    number = to.plan.add_group(collects=False)
    for at, each in enumerate(value):
        to.plan.members.append(Member(number, at, _empty_group(to, each), done=True))
    return number


def _several(what: str, given: Sequence[Any]) -> list[Signature]:
    if len(given) == 1 and not isinstance(given[0], Signature):
        only = given[0]
        if isinstance(only, str | bytes | Mapping) or not isinstance(only, Iterable):
            raise _no_signature(what, only)
        given = list(only)
    return [_signature(what, each) for each in given]


def _steps_of(signature: Signature) -> tuple[Signature, ...]:
    """The steps of a chain that nothing else follows; else the one."""
    return (
        signature.parts
        if isinstance(signature, Chain) and not (signature.links or signature.errbacks)
        else (signature,)
    )


def _signature(what: str, value: object) -> Signature:
    if not isinstance(value, Signature):
        raise _no_signature(what, value)
    return value


def _no_signature(what: str, value: object) -> EnqueueError:
    name = getattr(value, "name", None)
    hint = f" Give {name.rpartition('.')[2]}.s(...)." if isinstance(name, str) and hasattr(value, "apply_async") else ""
    return EnqueueError(f"{what} takes signatures, as in task.s(1, 2), not {checks.shown(value)}.{hint}")


def _send(signature: Signature, using: Any) -> Any:
    """Enqueues *signature*, in a transaction of its own or in that of the connection *using*; eager ones are run."""
    app = next((task.app for task in signature._tasks()), None)
    if app is None:
        return GroupResult([], None)
    for task in signature._tasks():
        if task.app is not app:
            raise EnqueueError(f"a workflow has the tasks of one app: {task.name!r} belongs to {task.app.name!r}.")
    to = _Compiler()
    _, shape = signature._compile(to, _Place())
    if app.always_eager:
        return to.results(app, app.run_plan_eagerly(to.plan))[shape]
    first = app.enqueuer.enqueue_plan(to.plan, using)
    ids = {
        node: AsyncResult[Any](
            call.task_id or str(first + node),
            app,
            ignored=node in to.ignored,
            number=first + node if using is None else None,
        )
        for node, call in to.plan.steps.items()
    }  # fmt: skip
    return to.results(app, ids)[shape]
