"""Tasks that a source feeds: how they are defined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

from fbtasks.errors import EnqueueError, TaskDefinitionError
from fbtasks.features.sources.definition import ChangeSource, check_silent_name
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.subscription import Delivery, Source, Subscription
from fbtasks.system import checks
from fbtasks.tasks.declare import options_of, refuse_unknown
from fbtasks.tasks.definition import Task, with_class
from fbtasks.tasks.options import CommonOptions

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FedTaskOptions(CommonOptions):
    """The options of a task that a source feeds: no caller waits for what it returns."""

    ignore_result: Annotated[bool, checks.flag] = True


class FedTask(Task[P, R]):
    """A task that may be fed by a source."""

    subscription: Subscription | None = None
    """What feeds it; None: it is called by name alone."""

    def check_callable(self) -> None:
        """Raises :class:`EnqueueError` for a task that a source feeds."""
        if self.subscription is not None:
            raise EnqueueError(
                f"the task {self.name!r} is called by workers, for {self.subscription.source}. To run its function "
                "here and now, call the task itself, with what it takes."
            )


def define_fed(app: FBTasks, source: type[Source], what: str, given: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The decorator of a task of *app* that a source feeds: ``app.on_change`` and its like, which *what* names.

    Raises :class:`TaskDefinitionError` for an option that it does not have.
    """
    rest = {**given}
    own: tuple[Any, ...] = (source,) if source is PollSource else (source, Delivery)
    refuse_unknown(f"option of {what}", rest, *own, app.fed_options, words="task option")
    delivery = _taken(Delivery, rest)
    subscription = Subscription(_taken(source, rest), delivery)
    kind, rest = with_class(rest, app.Task, app.fed_options)
    options = app.fed_options(**rest)
    if options.expires is not None and not isinstance(subscription.source, PollSource):
        raise TaskDefinitionError(
            f"expires={options.expires!r} is for calls and for rows of polled tables: a change or an event is handled, "
            "however late. Leave it out, and compare the time of what the function is given."
        )
    if options.aliases:
        raise TaskDefinitionError(
            f"aliases={options.aliases!r} are for calls, and a subscription goes by the name of its task. Leave "
            "them out, and keep the name of a task that a source feeds with name=."
        )
    if options.serializer is not None and options.ignore_result:
        raise TaskDefinitionError(
            f"serializer={options.serializer!r} has no effect: what comes from a source is JSON, and results are not "
            "kept. Leave it out, or give ignore_result=False as well."
        )

    def decorate(function: Any) -> Any:
        from fbtasks.features.sources.run import FedInvocation  # programs without such a task do not pay for it

        task: Any = kind(function, options)
        task.subscription, task.is_called = subscription, False
        task.in_order = subscription.source.order is not None
        task.invocation = FedInvocation(task, subscription)
        if isinstance(subscription.source, ChangeSource):
            check_silent_name(task.name)
        app.register(task)
        return task

    return decorate


def _taken(declared: type[T], options: dict[str, Any]) -> T:
    """Takes the options of *declared* out of *options*. Returns what it makes of them."""
    kind: Any = declared
    return kind(**{name: options.pop(name) for name in options_of(kind).keys() & options.keys()})  # type: ignore[no-any-return]
