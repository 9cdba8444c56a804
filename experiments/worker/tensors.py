"""Tensors as evidence: their raw bytes or, for large tensors, a sample and a sketch.

A digest is taken of the little-endian elements in row-major order, so it does not depend on strides, device or machine.
numpy is not used, since a plain installation of torch lacks it.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, replace

import torch

from ..core.bounds import LONGEST_NAME, MOST_DIMENSIONS
from ..core.canonical_json import digest
from ..core.observation import Tensor
from ..core.sampling import sample_positions
from .blobs import Blobs

BUCKETS = 1024
"""Numbers in a sketch, which estimates the distance of two tensors to about 3 %."""


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Return the elements of a dense tensor on the CPU as little-endian bytes in row-major order."""
    flat = tensor.contiguous()
    content = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""
    if sys.byteorder == "big" and flat.element_size() > 1:
        width = flat.element_size()
        content = b"".join(content[at : at + width][::-1] for at in range(0, len(content), width))
    return content


def absent_tensor(role: str, name: str) -> Tensor:
    """Return the description of a missing tensor: the gradient of an input that requires one and got none."""
    return Tensor(
        role=role,
        name=name,
        dtype=None,
        shape=None,
        layout="",
        digest=None,
        whole=False,
        norm=None,
        largest=None,
        samples=None,
        sketch=None,
    )


@dataclass(frozen=True)
class _Content:
    """The content of a tensor of any layout."""

    layout: str
    """As in the record. Empty for an ordinary dense tensor."""
    shape: tuple[int, ...]
    elements: torch.Tensor | None
    """The elements that are stored: dense, on the CPU, in row-major order. None if there are no elements."""
    numbers: torch.Tensor | None
    """The same as numbers to calculate norms of, which the integers of a quantized tensor are not."""


def describe_tensor(role: str, name: str, tensor: torch.Tensor, keep: int, blobs: Blobs) -> Tensor:
    """Return digest, size and content of `tensor`, and store its content, whole up to `keep` bytes.

    Raises whatever torch raises for a tensor that cannot be read, and ValueError for one of too many dimensions: a case
    may return anything.
    """
    if tensor.dim() > MOST_DIMENSIONS:
        raise ValueError(f"it has {tensor.dim()} dimensions; at most {MOST_DIMENSIONS} are kept")
    with torch.no_grad():
        kept = _extract_content(tensor.detach())
        dtype = str(tensor.dtype).rpartition(".")[2]
        if kept.elements is None or kept.numbers is None:
            return replace(absent_tensor(role, name), dtype=dtype, shape=kept.shape, layout=kept.layout)
        content = raw_bytes(kept.elements)
        whole = len(content) <= keep
        if whole:
            blobs.add(content)
        sizes = _widen(kept.numbers)
        sketched = torch.view_as_real(kept.numbers).double().flatten() if kept.numbers.is_complex() else sizes
        return Tensor(
            role=role,
            name=name,
            dtype=dtype,
            shape=kept.shape,
            layout=kept.layout,
            digest=digest(content),
            whole=whole,
            norm=float(sizes.abs().square().sum().sqrt()),
            largest=float(sizes.abs().max()) if sizes.numel() else 0.0,
            samples=None if whole else blobs.add(raw_bytes(_sample_elements(kept.elements))),
            sketch=None if whole else blobs.add(raw_bytes(sketch(sketched))),
        )


def _widen(numbers: torch.Tensor) -> torch.Tensor:
    """Return the numbers in double precision, one-dimensional."""
    return numbers.to(torch.complex128 if numbers.is_complex() else torch.float64).flatten()


def _extract_content(tensor: torch.Tensor) -> _Content:
    """Return the elements of a tensor of any layout, and what else distinguishes it from a dense one."""
    if tensor.is_nested:
        parts = [_make_dense(part) for part in tensor.unbind()]
        sizes = ", ".join("x".join(map(str, part.shape)) or "scalar" for part in parts)
        kind = "jagged" if tensor.layout is torch.jagged else "nested"
        if len(sizes) > LONGEST_NAME // 2:
            sizes = f"{len(parts)} parts, SHA-256 of their sizes {digest(sizes)[:16]}"
        joined = torch.cat([part.flatten() for part in parts]) if parts else torch.zeros(0, dtype=tensor.dtype)
        return _Content(f"{kind}: {sizes}", (joined.numel(),), joined, joined)
    if tensor.device.type == "meta":
        return _Content("meta", tuple(tensor.shape), None, None)
    if tensor.is_quantized:
        return _Content(f"quantized: {_quantization_scheme(tensor)}", tuple(tensor.shape), *_quantized_content(tensor))
    layout = "" if tensor.layout is torch.strided else str(tensor.layout).rpartition(".")[2]
    dense = _make_dense(tensor)
    return _Content(layout, tuple(tensor.shape), dense, dense)


def _quantization_scheme(tensor: torch.Tensor) -> str:
    """Describe how the integers of a quantized tensor become numbers."""
    scheme = str(tensor.qscheme()).rpartition(".")[2]
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{scheme}, scale {tensor.q_scale()!r}, zero point {tensor.q_zero_point()}"
    scales, points = tensor.q_per_channel_scales().tolist(), tensor.q_per_channel_zero_points().tolist()
    parts = f"axis {tensor.q_per_channel_axis()}, scales {scales}, zero points {points}"
    return f"{scheme}, SHA-256 of its parameters {digest(parts)[:16]}"


def _quantized_content(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the integers of a quantized tensor, and its numbers."""
    return _make_dense(tensor.int_repr()), _make_dense(tensor.dequantize())


def _make_dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as dense and contiguous on the CPU."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg().to("cpu").contiguous()


def _sample_elements(dense: torch.Tensor) -> torch.Tensor:
    return dense.flatten()[torch.tensor(sample_positions(dense.numel()), dtype=torch.int64)]


def sketch(wide: torch.Tensor) -> torch.Tensor:
    """Return a count sketch: every element, with a fixed pseudo-random sign, is added to one of `BUCKETS` sums.

    `wide` is one-dimensional float64. The sketch is linear, so the norm of the difference of two sketches
    estimates the norm of the difference of the tensors, with a relative standard error of sqrt(1/2048).
    """
    scattered = _hash_positions(torch.arange(wide.numel(), dtype=torch.int64))
    signs = (((scattered >> 40) & 1) * 2 - 1).to(torch.float64)
    return torch.zeros(BUCKETS, dtype=torch.float64).index_add_(0, scattered & (BUCKETS - 1), wide * signs)


def _hash_positions(index: torch.Tensor) -> torch.Tensor:
    """Return a fixed hash (splitmix64, with the sign bit kept out of shifts). int64 wraps alike on all machines."""
    value = index * -7046029254386353131 + 1442695040888963407
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        value = (value ^ ((value >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return value ^ ((value >> 31) & ((1 << 33) - 1))
