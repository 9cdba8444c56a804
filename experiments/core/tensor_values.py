"""Conversion of the raw bytes of a tensor to numbers, by dtype."""

from __future__ import annotations

import math
import struct
from typing import Callable, Optional, Union

Fetch = Callable[[str], Optional[bytes]]
"""Returns content by digest, or None if it is not available."""

_FORMATS = {"float32": "f", "float64": "d", "float16": "e"}
_SIGNED = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
_INTEGERS = {**_SIGNED, "bool": "B", "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q"}
COMPLEX_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""Dtype of the two parts of a complex dtype."""
ELEMENT_BYTES = {
    **{dtype: struct.calcsize(code) for dtype, code in {**_FORMATS, **_INTEGERS}.items()},
    **{dtype: 2 * struct.calcsize(_FORMATS[part]) for dtype, part in COMPLEX_PARTS.items()},
    "bfloat16": 2,
}
"""Size of one element in bytes."""
NUMERIC_DTYPES = {*_FORMATS, *_INTEGERS, *COMPLEX_PARTS, "bfloat16"}
MANTISSA_BITS = {"float32": 23, "float64": 52, "float16": 10, "bfloat16": 7}
"""Number of bits of the fraction."""
_SMALLEST = {"float32": -126, "float64": -1022, "float16": -14, "bfloat16": -126}
"""Exponent of the smallest normal number."""
_WIDTH = {"float32": "I", "float64": "Q", "float16": "H", "bfloat16": "H"}


Number = Union[float, complex]


def values(content: bytes, dtype: str) -> list[Number]:
    """Return the elements of a tensor from raw little-endian bytes. Raises ValueError for a dtype without numbers."""
    if dtype in COMPLEX_PARTS:
        parts = real_values(content, COMPLEX_PARTS[dtype])
        return [complex(real, imaginary) for real, imaginary in zip(parts[::2], parts[1::2])]
    return [*real_values(content, dtype)]


def real_values(content: bytes, dtype: str) -> list[float]:
    """Return the same for a dtype that is not complex."""
    if dtype == "bfloat16":
        halves = struct.unpack(f"<{len(content) // 2}H", content)
        return list(struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(h << 16 for h in halves))))
    code = _FORMATS.get(dtype) or _INTEGERS.get(dtype)
    if code is None:
        raise ValueError(f"tensors of {dtype} are compared by digest only")
    return list(struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content))


def is_finite(value: Number) -> bool:
    """Return whether both parts of a number are finite."""
    return math.isfinite(value.real) and math.isfinite(value.imag)


def is_nan(value: Number) -> bool:
    """Return whether a part of a number is NaN."""
    return math.isnan(value.real) or math.isnan(value.imag)


def is_rounded(dtype: str | None) -> bool:
    """Return whether numbers of the dtype are rounded, that is, whether they are floats or complex numbers."""
    return component_dtype(dtype) in MANTISSA_BITS


def component_dtype(dtype: str | None) -> str:
    """Return the dtype of an element's parts: the dtype itself, unless it is complex."""
    return COMPLEX_PARTS.get(dtype or "", dtype or "")


def ulp(value: float, dtype: str) -> float:
    """Return the distance from `value` to the next larger number of `dtype`, in the value's own unit.

    For a complex dtype, the dtype of its parts counts.
    """
    dtype = component_dtype(dtype)
    exponent = math.frexp(abs(value))[1] - 1 if value and math.isfinite(value) else _SMALLEST[dtype]
    return math.ldexp(1.0, max(exponent, _SMALLEST[dtype]) - MANTISSA_BITS[dtype])


def ordered_integers(content: bytes, dtype: str) -> list[int]:
    """Return floats, or the parts of complex numbers, as integers in the order of their values.

    Neighbouring floats differ by one.
    """
    code = _WIDTH[component_dtype(dtype)]
    bits = struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)
    sign = 1 << (8 * struct.calcsize(code) - 1)
    return [sign - bit if bit & sign else bit for bit in bits]
