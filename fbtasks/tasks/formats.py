"""Serializers: kombu's registry, and its JSON.

Importing it takes as long as all else of fbtasks together. So it is imported with the first payload that is
written or read: a command that only looks, and a worker, whose children run the tasks, do without.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

from kombu import serialization
from kombu.exceptions import SerializerNotInstalled
from kombu.utils import json as kombu_json

from fbtasks.errors import ConfigurationError

UNSIGNED_PICKLE: Final = "application/x-python-serialize"

_FOLD: Final = "fbtasks.fold"


class _Encoder(kombu_json.JSONEncoder):  # type: ignore[misc]  # kombu has no types
    """kombu's, with a mark of its own for the second of two equal readings of a clock that is put back."""

    def default(self, value: Any) -> Any:
        """Returns what JSON has in the place of *value*."""
        plain = super().default(value)
        if not getattr(value, "fold", 0) or not isinstance(plain, dict):
            return plain
        is_time = plain.get("__type__") in ("datetime", "time")  # and not the JSON of its author
        return {"__type__": _FOLD, "__value__": plain} if is_time else plain


def _object_hook(value: dict[str, Any]) -> Any:
    """Returns what a JSON object stands for."""
    if "__type__" not in value:  # that is most of them
        return value
    if value["__type__"] == _FOLD and len(value) == 2:
        return value["__value__"].replace(fold=1)
    return kombu_json.object_hook(value)


_DECODER: Final = json.JSONDecoder(object_hook=_object_hook, strict=False)
_ENCODER: Final = _Encoder(separators=(",", ":"))
"""What kombu's ``loads`` and ``dumps`` make anew for each payload, at several times the cost of a small one.

Control characters inside texts are read as they are: SQL, which has no function that escapes them, writes them so.
"""


def dump_json(value: Any) -> bytes:
    """*value* as JSON, with kombu's marks for the types that JSON does not have."""
    text: str = _ENCODER.encode(value)
    return text.encode()


def load_json(data: bytes) -> Any:
    """The value that :func:`dump_json` was given. Raises :class:`ValueError` for what it has not written."""
    try:
        return _DECODER.decode(data.decode())
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"a value is not of the type that its mark says ({type(error).__name__})") from error


def dump(value: Any, content_type: str) -> bytes:
    """*value* as kombu's serializer of *content_type* writes it."""
    data = serialization.dumps(value, serializer=serialization.registry.type_to_name[content_type])[2]
    return data.encode("utf-8") if isinstance(data, str) else bytes(data)


def load(data: bytes, content_type: str) -> Any:
    """The value that kombu's serializer of *content_type* reads, also where the host program disabled it in kombu."""
    return serialization.loads(data, content_type, "utf-8", accept={content_type})


def content_type_of(name: str, more: str) -> str:
    """The content type of kombu's serializer *name*, which is a name or a content type.

    Raises :class:`ConfigurationError`, which names those that there are and *more*, where there is none such, its
    library is missing, or it is an unsigned pickle.
    """
    registry = serialization.registry
    content_type = str(name if name in registry.type_to_name else registry.name_to_type.get(name, ""))
    if content_type == UNSIGNED_PICKLE:
        raise ConfigurationError(
            f"serializer {name!r} would let anyone who can write to the database run code here. "
            "Use 'cloudpickle' with a signing_key."
        )
    if not content_type:
        known = {more} | {n for n, t in registry.name_to_type.items() if t != UNSIGNED_PICKLE}
        raise ConfigurationError(f"unknown serializer {name!r}. Known: {', '.join(sorted(known))}.")
    try:
        with contextlib.suppress(serialization.EncodeError):  # it is there, and only dislikes None
            serialization.dumps(None, serializer=registry.type_to_name[content_type])
    except SerializerNotInstalled as error:
        raise ConfigurationError(
            f"serializer {name!r} cannot be used here: {error}. Install its library, or use 'json'."
        ) from error
    return content_type
