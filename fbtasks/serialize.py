"""Values and exceptions to bytes, and back.

JSON by default, through kombu's serialisation registry, so that datetimes, dates, times, Decimal, UUID and bytes come
back as they were. cloudpickle is signed with HMAC-SHA256, and verified before anything of it is unpickled.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import hmac
import json
import math
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import cloudpickle
from kombu import serialization

from fbtasks.errors import (
    ConfigurationError,
    ContentDisallowed,
    FBTasksError,
    PayloadTooLarge,
    SerializationError,
    TaskFailure,
)

PICKLE_TYPE: Final = "application/x-fbtasks-cloudpickle"
JSON_TYPE: Final = "application/json"
_SIGNATURE: Final = 32
_SIMPLE: Final = (str, int, bool, type(None), datetime, date, time, Decimal, UUID, bytes)
_REFUSED: Final = frozenset({"pickle", "application/x-python-serialize"})


@dataclass(frozen=True, slots=True)
class Payload:
    """Serialised data and the content type that tells how to read it."""

    content_type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteError:
    """An exception as it travels: its type's name, its message, its arguments in JSON, its traceback."""

    type_name: str
    message: str
    args_payload: bytes | None
    traceback: str


class Serializer:
    """Writes and reads payloads for one app.

    *default* names the serialiser of calls and results; *accept* those that may be read; *limit* is the most bytes.
    """

    def __init__(self, *, default: str, accept: Iterable[str], signing_key: bytes | None, limit: int) -> None:
        self._default = default
        self._key = signing_key
        self._limit = limit
        for name in {default, *accept}:
            self._check_name(name)
        self._accept = frozenset(accept)
        self._accepted_types = {_content_type(name) for name in self._accept}

    def dump_call(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, task: str, serializer: str | None = None
    ) -> Payload:
        """The arguments of a call. Raises :class:`SerializationError` or :class:`PayloadTooLarge`."""
        return self._dump([list(args), dict(kwargs)], f"the arguments of task {task!r}", serializer)

    def dump_result(self, value: Any, *, task: str, serializer: str | None = None) -> Payload:
        """The result of a task. Raises :class:`SerializationError` or :class:`PayloadTooLarge`."""
        return self._dump(value, f"the result of task {task!r}", serializer)

    def load_call(self, payload: Payload) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments. Raises :class:`SerializationError` for anything else."""
        body = self._load(payload)
        if not (
            isinstance(body, list | tuple)
            and len(body) == 2
            and isinstance(body[0], list | tuple)
            and isinstance(body[1], dict)
            and all(isinstance(key, str) for key in body[1])
        ):
            raise SerializationError("the payload is not a call: expected [[arguments], {keyword arguments}].")
        return list(body[0]), body[1]

    def load_result(self, payload: Payload) -> Any:
        """The value. Raises :class:`SerializationError`."""
        return self._load(payload)

    def _check_name(self, name: str) -> None:
        if name in _REFUSED:
            raise ConfigurationError(
                f"serializer {name!r} runs whatever it is sent. Use 'cloudpickle' with a signing_key."
            )
        if name == "cloudpickle":
            if not self._key:
                raise ConfigurationError("serializer 'cloudpickle' needs a signing_key: FBTasks(signing_key=...).")
        elif name not in serialization.registry.name_to_type:
            known = ", ".join(sorted({"cloudpickle", *serialization.registry.name_to_type} - _REFUSED))
            raise ConfigurationError(f"unknown serializer {name!r}. Known: {known}.")

    def _dump(self, body: Any, what: str, serializer: str | None) -> Payload:
        name = serializer or self._default
        self._check_name(name)
        try:
            if name == "cloudpickle":
                pickled = cloudpickle.dumps(body)
                payload = Payload(PICKLE_TYPE, self._sign(pickled) + pickled)
            else:
                if name == "json":
                    check_json(body, what)
                content_type, _, data = serialization.dumps(body, serializer=name)
                payload = Payload(content_type, data.encode("utf-8") if isinstance(data, str) else data)
        except FBTasksError:
            raise
        except RecursionError:
            raise SerializationError(f"{what} are nested too deeply to be serialised.") from None
        except Exception as error:
            raise SerializationError(f"{what} cannot be serialised with {name!r}: {error}.") from error
        if len(payload.data) > self._limit:
            raise PayloadTooLarge(
                f"{what} take {len(payload.data):,} bytes; the limit is {self._limit:,} (payload_limit). "
                "Store the data elsewhere and pass its key, or raise the limit."
            )
        return payload

    def _load(self, payload: Payload) -> Any:
        if payload.content_type not in self._accepted_types:
            names = ", ".join(sorted(self._accept))
            raise ContentDisallowed(
                f"content type {payload.content_type!r} is not accepted here (accept_content: {names})."
            )
        try:
            if payload.content_type == PICKLE_TYPE:
                return self._unpickle(payload.data)
            return serialization.loads(payload.data, payload.content_type, "utf-8", accept=self._accepted_types)
        except FBTasksError:
            raise
        except Exception as error:
            cause = error.__cause__ or error
            raise SerializationError(f"the payload cannot be read as {payload.content_type}: {cause}.") from error

    def _sign(self, body: bytes) -> bytes:
        return hmac.new(self._key or b"", PICKLE_TYPE.encode() + b"\0" + body, hashlib.sha256).digest()

    def _unpickle(self, data: bytes) -> Any:
        signature, body = data[:_SIGNATURE], data[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._sign(body)):
            raise ContentDisallowed("the payload's signature does not hold: another signing_key, or a forgery.")
        return cloudpickle.loads(body)  # signed by somebody who has the key


def _content_type(name: str) -> str:
    return PICKLE_TYPE if name == "cloudpickle" else str(serialization.registry.name_to_type[name])


def check_json(value: Any, what: str, place: str = "") -> None:
    """Raises :class:`SerializationError` for what JSON would lose or change without a word.

    Tuples are let through: they come back as lists, which docs/reference/payloads.md says.
    """
    where = place or "the value"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SerializationError(f"{what}: {where} is {value!r}, which JSON does not have.")
    elif isinstance(value, str) and type(value) is str:
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise SerializationError(f"{what}: {where} holds half a surrogate pair, which UTF-8 does not have.")
    elif type(value) in _SIMPLE:
        pass
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            check_json(item, what, f"{place}[{index}]")
    elif type(value) is dict:
        if "__type__" in value:
            raise SerializationError(
                f"{what}: {where} has a key '__type__', which marks types in the payload. Rename the key."
            )
        for key, item in value.items():
            if type(key) is not str:
                raise SerializationError(
                    f"{what}: {where} has the key {key!r}, which JSON would turn into a string. Use string keys, "
                    "or serializer='cloudpickle'."
                )
            check_json(item, what, f"{place}[{key!r}]")
    else:
        raise SerializationError(
            f"{what}: {where} is a {type(value).__qualname__}, which would not come back from JSON as it is. "
            "Pass simple values, or use serializer='cloudpickle'."
        )


def describe_exception(error: BaseException, *, limit: int = 20_000) -> RemoteError:
    """*error* as it travels. Survives exceptions that cannot be shown."""
    kind = type(error)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # anything can be in somebody's __str__
        message = "(its message cannot be shown)"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001
        trace = "(its traceback cannot be shown)"
    if len(trace) > limit:
        trace = f"{trace[: limit // 2]}\n...\n{trace[-limit // 2 :]}"
    args: bytes | None = None
    with contextlib.suppress(Exception):
        values = list(error.args)
        check_json(values, "the exception")
        args = serialization.dumps(values, serializer="json")[2].encode()
    return RemoteError(
        type_name=f"{kind.__module__}.{kind.__qualname__}", message=message, args_payload=args, traceback=trace
    )


def rebuild_exception(remote: RemoteError) -> Exception:
    """The exception that *remote* describes, or a :class:`TaskFailure` that tells of it.

    Nothing is imported for it: the type must be there already, and be an ordinary exception.
    """
    error = _construct(remote) or TaskFailure(f"{remote.type_name}: {remote.message}")
    if remote.traceback:
        error.add_note(f"Remote traceback:\n{remote.traceback}")
    return error


def _construct(remote: RemoteError) -> Exception | None:
    kind = _find_type(remote.type_name)
    if kind is None or remote.args_payload is None:
        return None
    try:
        args = serialization.loads(remote.args_payload, JSON_TYPE, "utf-8", accept={JSON_TYPE})
        made = kind(*args)
        return made if str(made) == remote.message else None
    except Exception:  # noqa: BLE001  # a constructor that wants other arguments: tell of it instead
        return None


def _find_type(name: str) -> type[Exception] | None:
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:split]))
        if module is None:
            continue
        found: Any = module
        for part in parts[split:]:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
        return None
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def show_json(payload: Payload) -> str:
    """A payload for people: JSON as it is, anything else by its size. Never unpickles."""
    if payload.content_type == JSON_TYPE:
        with contextlib.suppress(ValueError):
            return json.dumps(json.loads(payload.data), ensure_ascii=False)
    return f"({len(payload.data):,} bytes of {payload.content_type})"
