"""Options, each written once: a line of a class body says its name, its type, its check and its default.

    priority: Annotated[int, checks.priority] = 0

The class is a dataclass, or a :class:`TypedDict` where every option may be left out. From it follow the check of what a
caller gives, the signatures that are shown, the names in messages, and what type checkers and editors know.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from functools import cache
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from fbtasks.errors import FBTasksError, TaskDefinitionError
from fbtasks.system.checks import Check, shown
from fbtasks.tasks.celery_words import instead

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])
G = TypeVar("G", contravariant=True)
K = TypeVar("K", covariant=True)
T = TypeVar("T")
O = ParamSpec("O")  # noqa: E741  # options


class Given(Generic[G, K]):
    """The type of an option of a dataclass that is given as a *G* and kept as a *K*. Its default is :func:`given`'s.

    For type checkers alone, which take a class with these two methods for what they call a descriptor-typed field.
    """

    def __get__(self, record: object, owner: type) -> K:
        """Returns what is kept."""
        raise NotImplementedError

    def __set__(self, record: object, value: G) -> None:
        """Takes what is given."""
        raise NotImplementedError


def given(default: object, *, repr: bool = True) -> Any:
    """The default of an option whose type is :class:`Given`."""
    return field(default=default, repr=repr)


class Option(NamedTuple):
    """An option as its line declares it."""

    parameter: inspect.Parameter
    """Its name, type and default."""
    check: Check | None


@cache
def options_of(declared: Any) -> Mapping[str, Option]:
    """The options that *declared*, a dataclass or a TypedDict, declares, by their names."""
    if is_dataclass(declared):
        return {each.name: _option(each.name, each.type, each.default, bool(each.kw_only)) for each in fields(declared)}
    return {name: _option(name, annotation, None, True) for name, annotation in declared.__annotations__.items()}


def _option(name: str, annotation: Any, default: Any, kw_only: bool) -> Option:
    check = next(iter(getattr(annotation, "__metadata__", ())), None)
    kind = annotation if check is None else annotation.__origin__
    if getattr(kind, "__origin__", None) is Given:
        kind = kind.__args__[0]
    position = inspect.Parameter.KEYWORD_ONLY if kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = inspect.Parameter.empty if default is MISSING else default
    return Option(inspect.Parameter(name, position, default=default, annotation=kind), check)


def refuse_unknown(
    what: str,
    names: Iterable[str],
    *declared: Any,
    error: type[FBTasksError] = TaskDefinitionError,
    words: str | None = None,
) -> None:
    """Raises *error* for those of *names* that none of *declared* has: for each *what* it is, and what to use.

    *words*: where Celery's words for it are found, if not under *what*.
    """
    known = sorted({name for each in declared for name in options_of(each)})
    unknown = sorted(set(names).difference(known))
    if not unknown:
        return
    answers = [instead(name, words or what, known=known) for name in unknown]
    said = " ".join(f"unknown {what} {shown(name)}{answer}" for name, answer in zip(unknown, answers, strict=True))
    answered = all(answer.startswith(":") for answer in answers)
    raise error(said if answered else f"{said} Known options: {', '.join(known)}.")


def check_fields(record: Any, prefix: str = "") -> None:
    """Checks all options of a frozen dataclass that is being made, and keeps what their checks return."""
    declared: Any = type(record)
    for name, option in options_of(declared).items():
        if option.check is not None:
            object.__setattr__(record, name, option.check(prefix + name, getattr(record, name)))


def chosen(what: str, declared: Any, options: Mapping[str, Any], error: type[FBTasksError]) -> dict[str, Any]:
    """Returns those of *options* that are not None, checked. *declared* is a TypedDict, where None says nothing.

    Raises *error* for one that it does not have: *what* such an option is.
    """
    known, found = options_of(declared), {}
    for name, value in options.items():
        if name not in known:
            refuse_unknown(what, options, declared, error=error)
        if value is not None:
            check = known[name].check
            found[name] = value if check is None else check(name, value)
    return found


def typed(declared: Callable[O, Any]) -> Callable[[Callable[Concatenate[A, ...], T]], Callable[Concatenate[A, O], T]]:
    """Gives a method of ``**options`` the signature of those that are *declared*, for help() and type checkers."""
    return shows(declared)


def shows(*declared: Any) -> Callable[[F], F]:
    """Gives a function of ``**options`` the signature of those that are declared, for help().

    What it takes in ``*unnamed``, to refuse it, is not shown.
    """

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        hidden = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        kept = {name: each for name, each in own.parameters.items() if each.kind not in hidden}
        options = {name: each.parameter for some in declared for name, each in options_of(some).items()}
        function.__signature__ = own.replace(parameters=[*(kept | (options | kept)).values()])  # type: ignore[attr-defined]
        return function

    return decorate
