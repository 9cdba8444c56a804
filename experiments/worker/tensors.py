"""Tensors as evidence: their raw bytes, or of large ones a sample and a sketch.

A digest is taken over the elements in row-major order, little-endian, so it does not depend on strides,
device or machine. numpy is not used: plain installs of torch lack it.
"""

from __future__ import annotations

import ctypes
import sys

import torch

from ..record import Tensor, digest, sample_positions
from .blobs import Blobs

BUCKETS = 1024
"""Numbers in a sketch: the distance of two tensors is estimated to about 3 %."""


def raw(tensor: torch.Tensor) -> bytes:
    """The elements of a dense tensor on the CPU as little-endian bytes in row-major order."""
    flat = tensor.contiguous()
    content = ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""
    if sys.byteorder == "big" and flat.element_size() > 1:
        width = flat.element_size()
        content = b"".join(content[at : at + width][::-1] for at in range(0, len(content), width))
    return content


def absent(role: str, name: str) -> Tensor:
    """There is no such tensor: an input that requires a gradient and got none."""
    return Tensor(role, name, None, None, None, whole=False, norm=None, largest=None, samples=None, sketch=None)


def describe(role: str, name: str, tensor: torch.Tensor, keep: int, blobs: Blobs) -> Tensor:
    """Digest, size and content of `tensor`; content whole up to `keep` bytes."""
    dense = _dense(tensor)
    content = raw(dense)
    whole = len(content) <= keep
    if whole:
        blobs.add(content)
    wide = dense.to(torch.float64).flatten() if not dense.is_complex() else torch.view_as_real(dense).double().flatten()
    return Tensor(
        role=role,
        name=name,
        dtype=str(tensor.dtype).rpartition(".")[2],
        shape=tuple(tensor.shape),
        digest=digest(content),
        whole=whole,
        norm=float(wide.square().sum().sqrt()),
        largest=float(wide.abs().max()) if wide.numel() else 0.0,
        samples=None if whole else blobs.add(raw(_samples(dense))),
        sketch=None if whole else blobs.add(raw(sketch(wide))),
    )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        return tensor.resolve_conj().resolve_neg().to("cpu").contiguous()


def _samples(dense: torch.Tensor) -> torch.Tensor:
    return dense.flatten()[torch.tensor(sample_positions(dense.numel()), dtype=torch.int64)]


def sketch(wide: torch.Tensor) -> torch.Tensor:
    """A count sketch: every element, with a fixed pseudo-random sign, is added to one of `BUCKETS` sums.

    `wide` is one-dimensional float64. The sketch is linear, so the norm of the difference of two sketches
    estimates the norm of the difference of the tensors, with a relative standard error of sqrt(1/2048).
    """
    scattered = _scatter(torch.arange(wide.numel(), dtype=torch.int64))
    signs = (((scattered >> 40) & 1) * 2 - 1).to(torch.float64)
    return torch.zeros(BUCKETS, dtype=torch.float64).index_add_(0, scattered & (BUCKETS - 1), wide * signs)


def _scatter(index: torch.Tensor) -> torch.Tensor:
    """A fixed hash (splitmix64 with the sign bit kept out of shifts); int64 wraps on every machine alike."""
    value = index * -7046029254386353131 + 1442695040888963407
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        value = (value ^ ((value >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return value ^ ((value >> 31) & ((1 << 33) - 1))
