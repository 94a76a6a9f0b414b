"""Padding and sizes of convolutions, without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtune.errors import ArgumentError

Ints = tuple[int, ...]


def per_axis(value: Any, rank: int) -> tuple[Any, ...]:
    """Return one entry per spatial axis from one number or a sequence.

    >>> per_axis(3, 2), per_axis([1, 2], 2)
    ((3, 3), (1, 2))
    """
    if isinstance(value, (list, tuple)):
        return tuple(value) * rank if len(value) == 1 else tuple(value)
    return (value,) * rank


def padding_pairs(padding: Any, kernel: Ints, dilation: Ints) -> tuple[Ints, Ints]:
    """Return the padding before and after each spatial axis.

    ``padding`` is torch's: numbers, ``"valid"`` (none) or ``"same"`` (``dilation * (kernel - 1)``
    in total, the odd one behind).
    """
    if padding == "valid":
        return (0,) * len(kernel), (0,) * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    if isinstance(padding, str):
        raise ArgumentError(f"padding={padding!r}: expected numbers, 'same' or 'valid'")
    return tuple(padding), tuple(padding)


def torch_pads(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """Return the order that ``F.pad`` takes: last axis first, before and after.

    >>> torch_pads((1, 2), (3, 4))
    [2, 4, 1, 3]
    """
    pairs = list(zip(begin, end, strict=True))
    return [amount for pair in reversed(pairs) for amount in pair]


def split_pads(pads: Sequence[int]) -> tuple[Ints, Ints]:
    """Split ONNX pads (all begins, then all ends)."""
    rank = len(pads) // 2
    return tuple(pads[:rank]), tuple(pads[rank:])


def transposed_size(size: Ints, kernel: Ints, attrs: Any, output_padding: Ints) -> Ints:
    """Return the spatial output size of a transposed convolution (torch attrs)."""
    axes = zip(size, kernel, attrs["stride"], attrs["padding"], attrs["dilation"], strict=True)
    plain = ((n - 1) * s - 2 * p + d * (k - 1) + 1 for n, k, s, p, d in axes)
    return tuple(n + extra for n, extra in zip(plain, output_padding, strict=True))
