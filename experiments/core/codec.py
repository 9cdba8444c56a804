"""Conversion of dataclasses to JSON values and back. Each field is checked against its annotation."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Mapping, Sequence

from .canonical_json import LARGEST_INTEGER, RecordError


def to_plain(value: Any) -> Any:
    """Return a JSON value: a dataclass as its `to_list()` or as a dictionary (`pass_` as `pass`), a tuple as a list."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if hasattr(value, "to_list"):
        return value.to_list()
    if hasattr(value, "__dataclass_fields__"):
        return {field.name.rstrip("_"): to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def check_keys(data: Any, what: str, names: Sequence[str]) -> None:
    """Raise RecordError unless `data` is an object with exactly these keys. `what` names it in the message."""
    if not isinstance(data, Mapping):
        raise RecordError(f"{what} is {type(data).__name__}, not an object")
    missing, unknown = sorted(set(names) - set(data)), sorted(set(data) - set(names))
    if missing or unknown:
        raise RecordError(f"{what} lacks {missing or 'nothing'} and has unknown {unknown or 'nothing'}")


def read_fields(data: Any, kind: Any, what: str) -> dict[str, Any]:
    """Return the fields of a dataclass from a JSON object. Raises RecordError unless it has exactly these fields."""
    listed = {field.name.rstrip("_"): field for field in fields(kind)}
    check_keys(data, what, tuple(listed))
    return {
        listed[key].name: _check_kind(value, listed[key].type, f"{key} of the {what}") for key, value in data.items()
    }


FITS: Mapping[str, Any] = {
    "None": lambda value: value is None,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, (int, float, str)) and not isinstance(value, bool),
    "tuple[str, ...]": lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    "tuple[int, ...]": lambda value: isinstance(value, list) and all(_is_size(one) for one in value),
    "tuple[Mapping[str, Any], ...]": lambda value: (
        isinstance(value, list) and all(isinstance(one, dict) for one in value)
    ),
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
    "Mapping[str, str]": lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
}
"""Whether a JSON value fits an annotation. Annotations that are not listed are checked where their values are read."""


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_INTEGER


def _check_kind(value: Any, kind: Any, what: str) -> Any:
    """Return the value. Raises RecordError if it does not fit the annotation. Integers from 2**53 come as text."""
    if kind in ("int", "int | None") and isinstance(value, str):
        if not re.fullmatch(r"-?[1-9][0-9]{15,}", value):
            raise RecordError(f"{what} is {value!r:.100}, which is no integer")
        return int(value)
    kinds = str(kind).split(" | ")
    if all(one in FITS for one in kinds) and not any(FITS[one](value) for one in kinds):
        raise RecordError(f"{what} is {value!r:.100}, not {kind}")
    return value
