"""Values to bytes, and back.

JSON is the default, written and read through kombu's serialisation registry; a call is the array
``[args, kwargs]``, which a plain SQL producer can write as well, or ``[args, kwargs, headers]``. What comes back from
JSON:

* None, bool, int, finite float, str, list, dict with string keys, bytes, date, time, Decimal and UUID: as
  they were. A datetime too: a naive one stays naive, an aware one becomes the same instant at a fixed
  offset from UTC. A ``fold`` stays.
* tuples, named tuples and subclasses of list: as lists. Subclasses of dict: as dicts. Subclasses of the
  scalar types, IntEnum and StrEnum members among them: as their plain values.
* an object with a ``__json__`` method, or of a type registered with ``kombu.utils.json.register_type``: as
  the author of that type decided.

Anything else is refused when the call is made, with its place in the arguments: other objects, dict keys that
are not strings, NaN and the infinities, lone surrogates, dicts that look like kombu's own type marks, and
anything nested deeper than :data:`MAX_DEPTH`.

cloudpickle is signed with HMAC-SHA256, and verified before a byte of it is unpickled. Nothing is registered
or enabled in kombu, whose registry belongs to the host program.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from types import GeneratorType
from typing import Any, Final
from uuid import UUID

from fbtasks.errors import (
    ConfigurationError,
    ContentDisallowed,
    FBTasksError,
    PayloadTooLarge,
    SerializationError,
)
from fbtasks.system import checks
from fbtasks.system.showing import brief, name_of, sendable, show_value

JSON_TYPE: Final = "application/json"
PICKLE_TYPE: Final = "application/x-fbtasks-cloudpickle"
MAX_DEPTH: Final = 200
"""Levels of lists and dicts that a JSON payload may have: far from the recursion limit of any reader."""

_HARMLESS_WHEN_EMPTY: Final = (list, dict, type(None))
_SIGNATURE_SIZE: Final = 32
_TYPE_MARK: Final = {"__type__", "__value__"}
_MARKED: Final = (bytes, date, Decimal, UUID)
_OR_PICKLE: Final = ", or use serializer='cloudpickle' with a signing_key."


@dataclass(frozen=True, slots=True)
class Payload:
    """Serialised data and the content type that tells how to read it."""

    content_type: str
    data: bytes


class Serializer:
    """Writes and reads the payloads of one app.

    *default* names the serializer of calls and results; *accept* those that may be read: ``json``,
    ``cloudpickle``, or one that kombu knows and whose library is installed, such as ``yaml`` or ``msgpack``.
    *signing_keys* are needed for cloudpickle: the first signs, and a signature of any is accepted. *limit* is the most
    bytes that a payload may have.

    Raises :class:`ConfigurationError` for a name or a key that cannot be used.
    """

    def __init__(self, *, default: str, accept: Iterable[str], signing_keys: Sequence[bytes], limit: int) -> None:
        if not all(isinstance(key, bytes) and key for key in signing_keys):
            raise ConfigurationError(
                "signing_key must be bytes or text, and not empty; or a list of such keys, of which the first signs."
            )
        self._keys = tuple(signing_keys)
        self._limit = limit
        self._default = default
        self._types: dict[str, str] = {}
        self._accepted = {self._content_type(name): name for name in accept}
        self._content_type(default)

    def dump_call(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        task: str,
        serializer: str | None = None,
    ) -> Payload:
        """The arguments and headers of a call of *task*, written with *serializer*, or with the default one.

        Raises :class:`SerializationError` for a value that would not come back, :class:`PayloadTooLarge`, and
        :class:`ConfigurationError` for a serializer that cannot be used.
        """
        values: list[Any] = [list(args), dict(kwargs)]
        places: tuple[str, ...] = "args", "kwargs"
        if headers:
            values, places = [*values, dict(headers)], (*places, "headers")
        return self._dump(values, places, task, serializer, _call_of(task))

    def load_call(self, payload: Payload, *, task: str) -> tuple[list[Any], dict[str, Any], dict[str, str]]:
        """The positional and keyword arguments of a call of *task*, and its headers.

        Raises :class:`ContentDisallowed` for a content type that is not accepted or a signature that does not
        hold, and :class:`SerializationError` for anything else that is not a call.
        """
        body = self._load(payload, _call_of(task))
        if not (
            isinstance(body, list | tuple)
            and 2 <= len(body) <= 3
            and isinstance(body[0], list | tuple)
            and isinstance(body[1], dict)
            and all(isinstance(key, str) for key in body[1])
            and (len(body) == 2 or is_headers(body[2]))
        ):
            raise SerializationError(
                "the payload is not a call: it must be [[positional arguments], {keyword arguments}], "
                "such as [[2, 3], {}]. A third member, {headers}, has strings alone."
            )
        return list(body[0]), body[1], body[2] if len(body) == 3 else {}

    def dump_json(self, value: Any, what: str, place: str, most: int | None = None) -> bytes:
        """*value* as JSON: the *place* of *what*, of at most so many bytes (None: as any payload).

        Raises :class:`SerializationError` and :class:`PayloadTooLarge`.
        """
        from fbtasks.tasks import formats

        check_json(value, what, place, otherwise=". It is always JSON.")
        data = formats.dump_json(value)
        if len(data) > (most or self._limit):
            raise PayloadTooLarge(_too_large(f"{what}: {place}", len(data), most or self._limit, own=most is None))
        return data

    def dump_result(self, value: Any, *, task: str, number: int, serializer: str | None = None) -> Payload:
        """The result of the call *number* of *task*. Raises what :meth:`dump_call` raises."""
        return self._dump([value], ("result",), task, serializer, _result_of(number))

    def load_result(self, payload: Payload, *, number: int) -> Any:
        """The result of the call *number*. Raises :class:`ContentDisallowed` or :class:`SerializationError`."""
        return self._load(payload, _result_of(number))

    def check(self, name: str) -> None:
        """Raises :class:`ConfigurationError` unless there is a serializer *name* that can be used."""
        checks.text("serializer", name)
        self._content_type(name)

    def _content_type(self, name: str) -> str:
        """The content type of the serializer *name*, which can be used."""
        if name not in self._types:
            self._types[name] = self._resolve(name)
        return self._types[name]

    def _resolve(self, name: str) -> str:
        if name in ("json", JSON_TYPE):
            return JSON_TYPE
        if name in ("cloudpickle", PICKLE_TYPE):
            if not self._keys:
                raise ConfigurationError(
                    "serializer 'cloudpickle' needs a signing_key: pass FBTasks(signing_key=...) the same "
                    "secret bytes in every process that enqueues or works."
                )
            return PICKLE_TYPE
        from fbtasks.tasks import formats

        return formats.content_type_of(name, "cloudpickle")

    def _dump(
        self, values: list[Any], places: tuple[str, ...], task: str, serializer: str | None, what: bytes
    ) -> Payload:
        """The payload of a call, ``[args, kwargs, ...]``, or of a result, the one value. *what*: see :meth:`_sign`."""
        name = serializer or self._default
        content_type = self._content_type(name)
        if content_type == JSON_TYPE:
            for value, place in zip(values, places, strict=True):
                if value or type(value) not in _HARMLESS_WHEN_EMPTY:
                    check_json(value, f"task {task!r}", place)
        try:
            data = self._encode(values if len(values) > 1 else values[0], content_type, what)
        except Exception as error:
            named = _what(task, places)
            raise SerializationError(f"{named} cannot be serialised with {name!r}: {brief(error)}.") from error
        if len(data) > self._limit:
            raise PayloadTooLarge(_too_large(_what(task, places), len(data), self._limit))
        return Payload(content_type, data)

    def _encode(self, body: Any, content_type: str, what: bytes) -> bytes:
        from fbtasks.tasks import formats

        if content_type == JSON_TYPE:
            return formats.dump_json(body)
        if content_type == PICKLE_TYPE:
            import cloudpickle

            pickled: bytes = cloudpickle.dumps(body)  # functions and classes of __main__ by value
            return _sign(self._keys[0], what, pickled) + pickled
        return formats.dump(body, content_type)

    def _load(self, payload: Payload, what: bytes) -> Any:
        if payload.content_type not in self._accepted:
            raise ContentDisallowed(self._disallowed(payload.content_type))
        if not payload.data:
            raise SerializationError(f"the payload is empty, which is not {payload.content_type}.")
        from fbtasks.tasks import formats

        try:
            if payload.content_type == JSON_TYPE:
                return formats.load_json(payload.data)
            if payload.content_type == PICKLE_TYPE:
                return self._unpickle(payload.data, what)
            return formats.load(payload.data, payload.content_type)
        except FBTasksError:
            raise
        except Exception as error:
            raise SerializationError(
                f"the payload cannot be read as {payload.content_type}: {brief(error)}."
            ) from error

    def _disallowed(self, content_type: str) -> str:
        accepted = ", ".join(sorted(self._accepted.values())) or "nothing"
        from fbtasks.tasks import formats

        if content_type == formats.UNSIGNED_PICKLE:
            remedy = "Pickle is never read, for it can run anything; serializer='cloudpickle' signs it."
        else:
            remedy = "If you trust all who write such payloads, add its serializer to accept_content."
        return f"content type {content_type!r} is not accepted here; accepted: {accepted}. {remedy}"

    def _unpickle(self, data: bytes, what: bytes) -> Any:
        signature, body = data[:_SIGNATURE_SIZE], data[_SIGNATURE_SIZE:]
        if not any(hmac.compare_digest(signature, _sign(key, what, body)) for key in self._keys):
            raise ContentDisallowed(
                "the payload's signature does not hold: it was written with another signing_key, for another task, or "
                "changed since. Nothing of it was unpickled; set one signing_key wherever tasks are enqueued and run."
            )
        import cloudpickle

        return cloudpickle.loads(body)


def is_headers(value: object) -> bool:
    """Whether *value* can be the headers of a call: it maps strings to strings."""
    return isinstance(value, dict) and all(isinstance(each, str) for item in value.items() for each in item)


def _call_of(task: str) -> bytes:
    """Returns what the signature of a call binds: the name of the task."""
    return b"call\0" + task.encode("utf-8", "surrogatepass")


def _result_of(number: int) -> bytes:
    """Returns what the signature of a result binds: the number of the task."""
    return b"result\0%d" % number


def _sign(key: bytes, what: bytes, body: bytes) -> bytes:
    """The signature of *body* as *what*: it holds for nothing else, so a payload cannot be put to another use."""
    return hmac.digest(key, b"%b\0%d\0%b\0" % (PICKLE_TYPE.encode(), len(what), what) + body, "sha256")


def _what(task: str, places: Iterable[str]) -> str:
    return f"task {task!r}: {' and '.join(places)}"


def _too_large(what: str, size: int, limit: int, *, own: bool = True) -> str:
    return (
        f"{what}: {size:,} bytes when serialised; {'payload_limit' if own else 'the most'} is {limit:,}. "
        f"Store the data elsewhere and pass its key{', or raise payload_limit' if own else ''}."
    )


class _Refused(Exception):
    """A value that JSON would lose or change; the place is collected on the way out, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.place: list[str] = []


class _NotInJson(_Refused):
    """A value that JSON does not take, and another serializer does."""


def check_json(value: Any, what: str, place: str = "value", *, otherwise: str = _OR_PICKLE) -> None:
    """Raises :class:`SerializationError` for what JSON would lose or change without a word.

    The message begins with *what* and names the place below *place*, as in ``args[0]['a'][3]``. The module's
    own docstring lists what is let through. *otherwise* ends the remedy for values that only JSON does not have.
    """
    try:
        _check(value, 0)
    except _Refused as refused:
        at = place + "".join(reversed(refused.place[-20:])) + ("..." if len(refused.place) > 20 else "")
        remedy = otherwise if isinstance(refused, _NotInJson) else ""
        raise SerializationError(f"{what}: {at} {refused.reason}{remedy}") from None
    except RecursionError:
        raise SerializationError(f"{what}: {place} is nested too deeply for JSON.") from None


def _check(value: Any, depth: int) -> None:
    if value is None or isinstance(value, int):
        return
    if isinstance(value, str):
        _check_text(value, "is a string that")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Refused(f"is {float(value)!r}, which JSON does not have. Pass None or a string instead.")
    elif isinstance(value, list | tuple | dict):
        if depth >= MAX_DEPTH:
            raise _Refused(f"is nested deeper than {MAX_DEPTH} levels, or in itself. Pass a flatter value.")
        if isinstance(value, dict):
            _check_dict(value, depth)
        else:
            _check_items(enumerate(value), depth)
    elif isinstance(value, datetime | time) and value.tzinfo is not None and value.utcoffset() is None:
        raise _Refused("has a time zone without an offset, which JSON would drop. Pass a full datetime.")
    elif not isinstance(value, _MARKED):
        _check_object(value)


def _check_items(items: Iterable[tuple[object, Any]], depth: int) -> None:
    for key, item in items:
        try:
            _check(item, depth + 1)
        except _Refused as refused:
            refused.place.append(f"[{key if isinstance(key, int) else str(key)!r:.80}]")
            raise


def _check_dict(value: dict[Any, Any], depth: int) -> None:
    for key in value:
        if not isinstance(key, str):
            raise _NotInJson(
                f"has the key {show_value(key)} of type {type(key).__name__}, which JSON would make a "
                f"string. Use str keys"
            )
        _check_text(key, f"has the key {key!r:.80}, which")
    if value.keys() == _TYPE_MARK:
        raise _NotInJson(
            "is a dict with just the keys '__type__' and '__value__', which mark types inside the payload. Rename a key"
        )
    _check_items(value.items(), depth)


def _check_text(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _Refused(
            f"{what} holds a lone surrogate (U+{ord(text[error.start]):04X}), which UTF-8 does not have. "
            "Pass it as bytes, or use text.encode('utf-8', 'replace').decode()."
        ) from None


def _check_object(value: object) -> None:
    from kombu.utils import json as kombu_json

    try:
        kombu_json.dumps(value, allow_nan=False)  # kombu may know the type, or the type itself its JSON
    except Exception as error:
        kind = name_of(type(value)).removeprefix("builtins.")
        article = "an" if kind[0] in "aeiouAEIOU" else "a"
        if isinstance(value, GeneratorType):
            raise _Refused("is a generator, which cannot be stored. Pass list(...) of it.") from error
        own = ", give the class a __json__ method, register it by kombu.utils.json.register_type"
        also = "" if type(value).__module__ == "builtins" else own
        raise _NotInJson(f"is {article} {kind}, which JSON does not have. Pass simple values{also}") from error


def json_value(payload: Payload | None) -> Any:
    """Returns what is in a payload of JSON. None for any other payload, which is not unpickled here."""
    if payload is None or payload.content_type != JSON_TYPE:
        return None
    try:
        return json.loads(payload.data)
    except (ValueError, RecursionError):
        return None


def show_json(payload: Payload) -> str:
    """A payload for people: JSON as it is, anything else by its size. Never unpickles."""
    if payload.content_type == JSON_TYPE:
        with contextlib.suppress(ValueError, RecursionError):
            return sendable(json.dumps(json.loads(payload.data), ensure_ascii=False))
    return f"({len(payload.data):,} bytes of {payload.content_type})"
