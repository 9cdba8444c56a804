"""Canonical JSON (RFC 8785): equal values have the same bytes and so the same SHA-256.

Numbers that JSON cannot represent (integers from 2**53, NaN, infinities, -0.0) are written as strings.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Callable, Mapping

LARGEST_INTEGER = 2**53
_MAX_DEPTH = 64


class RecordError(Exception):
    """A text is not a record that this version can read. The message says what is wrong."""


# Canonical JSON.


def canonical(value: Any) -> str:
    """Return `value` as canonical JSON (RFC 8785): equal values have equal text.

    Numbers that JSON cannot represent exactly become strings: see `number`. Lone surrogates, which have no UTF-8 form,
    become backslash escapes. Raises RecordError for anything that is not JSON.
    """
    made: list[str] = []
    _write_value(value, 0, made.append)
    return "".join(made)


def _write_value(value: Any, depth: int, out: Callable[[str], None]) -> None:
    if depth > _MAX_DEPTH:
        raise RecordError(f"nested deeper than {_MAX_DEPTH} levels")
    if value is None or value is True or value is False:
        out({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        out(_string_text(value))
    elif isinstance(value, int):
        out(str(int(value)) if abs(value) < LARGEST_INTEGER else _string_text(str(int(value))))
    elif isinstance(value, float):
        out(_float_text(value))
    elif isinstance(value, (dict, Mapping)):
        if len({printable_text(key) if isinstance(key, str) else key for key in value}) != len(value):
            raise RecordError("two keys of an object print alike")
        start = "{"
        for key in sorted(value, key=_utf16_key):
            out(f"{start}{_string_text(key)}:")
            _write_value(value[key], depth + 1, out)
            start = ","
        out("}" if value else "{}")
    elif isinstance(value, (list, tuple)):
        start = "["
        for item in value:
            out(start)
            _write_value(item, depth + 1, out)
            start = ","
        out("]" if value else "[]")
    else:
        raise RecordError(f"{type(value).__name__} has no JSON form")


def _utf16_key(key: Any) -> bytes:
    """Return the sort key of an object's key: RFC 8785 orders them by UTF-16 code units."""
    if not isinstance(key, str):
        raise RecordError(f"key {key!r} is not text")
    return printable_text(key).encode("utf-16-be")


def printable_text(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _string_text(text: str) -> str:
    # With `ensure_ascii=False`, json escapes exactly what RFC 8785 requires.
    return _ENCODER.encode(text if text.isascii() else printable_text(text))


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _float_text(value: float) -> str:
    """Return the shortest form as in ECMAScript: Python has the same digits but writes exponents differently."""
    if math.isnan(value) or math.isinf(value) or (value == 0 and math.copysign(1, value) < 0):
        return _string_text({"-0.0": "-0.0", "nan": "nan", "inf": "inf", "-inf": "-inf"}[repr(value)])
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    shown = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{shown}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def number(value: Any) -> float:
    """Return the float that canonical JSON represents as a number or a string. Raises RecordError for anything else."""
    if isinstance(value, str) and value not in ("nan", "inf", "-inf", "-0.0"):
        raise RecordError(f"{value!r} is not a number")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise RecordError(f"{value!r} is not a number")
    return float(value)


def parse(text: str) -> Any:
    """Return the value of a JSON text. Raises RecordError for duplicate keys, a bare NaN, or excessive nesting."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_refuse_duplicates,
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
            parse_float=_parse_float,
        )
    except RecursionError:
        raise RecordError("nested too deep to read") from None
    except ValueError as error:
        raise RecordError(f"not JSON: {error}") from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise RecordError("an object has the same key twice")
    return made


def _parse_integer(text: str) -> int | float:
    """Return an integer, or a float from 2**53 on, since larger integers are written as strings."""
    return int(text) if abs(int(text)) < LARGEST_INTEGER else _parse_float(text)


def _parse_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise RecordError(f"{text[:20]} is larger than any float")
    return value


def _refuse_constant(name: str) -> Any:
    raise RecordError(f"{name} is not JSON")


def digest(content: str | bytes) -> str:
    """Return the SHA-256 of a text (as UTF-8) or of bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(content.encode("utf-8") if isinstance(content, str) else content).hexdigest()
