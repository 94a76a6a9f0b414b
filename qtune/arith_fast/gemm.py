"""Prepared integer GEMMs: conv2d, transposed conv2d, linear (numerics.md sections 2 and 7).

A kernel holds its weights packed and maps held codes to held codes:
``clamp(rescale(sum(x * w) + bias [+ rescale(addend)], m, n), lo, hi)``, or the int32 accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qtune.arith.rounding import Int64Array
from qtune.arith_fast import buffers
from qtune.arith_fast.blocks import spans
from qtune.arith_fast.epilogue import Addend, Epilogue
from qtune.arith_fast.held import held_dtype
from qtune.arith_fast.native.convolve import POINTWISE, Geometry, NativeConv, native_conv
from qtune.arith_fast.native.depthwise import NativeDepthwise, native_depthwise
from qtune.arith_fast.native.engine import MOST_SHAPES
from qtune.arith_fast.sums import ConvSums, LinearSums
from qtune.arith_fast.terms import bounds
from qtune.arith_fast.transpose import Phase, as_convolution, phases, reach
from qtune.dtype import QuantDType, qint8, qint16, quant_dtype
from qtune.errors import ArgumentError

CHUNK = 1 << 18
"""Sums per thread that are kept at a time: they, and their codes, then stay in the cache."""


class GemmKernel:
    """``kernel(held x[, held addend]) -> held output``.

    ``saturated`` counts, over all calls, sums that the int32 accumulator could not hold.
    """

    def __init__(
        self,
        epilogue: Epilogue,
        run: Callable[..., torch.Tensor],
        source: QuantDType,
        inputs: int,
        axis: int,
    ) -> None:
        self.epilogue, self._run = epilogue, run
        self._source, self._inputs, self._axis = held_dtype(source), inputs, axis

    def __call__(self, x: torch.Tensor, addend: torch.Tensor | None = None) -> torch.Tensor:
        """Run on held codes; raise ``ArgumentError`` where they are not what it was made for."""
        # Compiled code reads memory by these numbers: nothing else may reach it.
        if x.dtype is not self._source or x.shape[self._axis] != self._inputs:
            raise ArgumentError(
                f"expected held codes of {self._source} with {self._inputs} channels in dimension "
                f"{self._axis}, got a {x.dtype} tensor of shape {tuple(x.shape)}"
            )
        if addend is not None and self.epilogue.operand is None:
            raise ArgumentError(
                "this kernel was made without a fused operand but got one: give addend=(m, n, "
                "dtype) when you make it"
            )
        return self._run(x, addend)

    @property
    def saturated(self) -> int:
        """Sums clamped to int32 so far."""
        return self.epilogue.saturated


def conv2d_kernel(
    w_codes: Int64Array,
    bias_q: Any,
    m: Any,
    n: Any,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    in_dtype: QuantDType | str = qint8,
    w_dtype: QuantDType | str = qint8,
    out_dtype: QuantDType | str = qint8,
    lo: int | None = None,
    hi: int | None = None,
    code_range: tuple[int, int] | None = None,
    addend: Addend | None = None,
) -> GemmKernel:
    """Return the kernel of a 2-d convolution on held maps [N, I, H, W].

    ``w_codes`` int64 [O, I/groups, kh, kw]; ``bias_q``, ``m``, ``n``: integers or [O] (bias may be
    ``None``). ``padding`` (top, left, bottom, right), real zeros. ``out_dtype`` ``"int32"`` gives
    the accumulator; m and n are ignored then. ``code_range``: known (lo, hi) of the input's codes.
    ``addend``: ``(m_a, n_a, dtype)`` of a fused operand of the output's shape.
    """
    source, out = as_dtype(in_dtype), as_dtype(out_dtype)
    w = np.asarray(w_codes, dtype=np.int64)
    epilogue = _epilogue(w, source, w_dtype, code_range, bias_q, m, n, out, lo, hi, addend)
    conv = _Conv(w, source, code_range, Geometry(stride, padding, dilation), groups, epilogue)

    def run(x: torch.Tensor, operand: torch.Tensor | None) -> torch.Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        extra = None if operand is None else operand.permute(0, 2, 3, 1)
        return conv(x, extra).permute(0, 3, 1, 2)

    return GemmKernel(epilogue, run, source, groups * w.shape[1], 1)


def conv_transpose2d_kernel(
    w_codes: Int64Array,
    bias_q: Any,
    m: Any,
    n: Any,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    output_padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    in_dtype: QuantDType | str = qint8,
    w_dtype: QuantDType | str = qint8,
    out_dtype: QuantDType | str = qint8,
    lo: int | None = None,
    hi: int | None = None,
    code_range: tuple[int, int] | None = None,
    addend: Addend | None = None,
) -> GemmKernel:
    """Return the kernel of a transposed 2-d convolution; ``w_codes`` [I, O/groups, kh, kw].

    One convolution for each residue of the stride (see ``qtune.arith_fast.transpose``).
    ``padding`` (top, left, bottom, right) cuts the full result, ``output_padding`` (bottom, right)
    extends it. The rest as in :func:`conv2d_kernel`.
    """
    source, out = as_dtype(in_dtype), as_dtype(out_dtype)
    w = np.asarray(w_codes, dtype=np.int64)
    plain = as_convolution(w, groups)
    epilogue = _epilogue(plain, source, w_dtype, code_range, bias_q, m, n, out, lo, hi, addend)
    parts = [
        (p, _Conv(p.weights, source, code_range, _phase_geometry(p), groups, epilogue))
        for p in phases(w, stride, padding, output_padding, dilation, groups)
    ]
    covered = reach(w.shape[2:], padding, output_padding, dilation)

    def run(x: torch.Tensor, operand: torch.Tensor | None) -> torch.Tensor:
        size = [(x.shape[2 + i] - 1) * stride[i] + covered[i] for i in range(2)]
        _check_size(x, size)
        rows = buffers.empty((x.shape[0], *size, len(plain)), held_dtype(out))
        _fill_phases(x, parts, stride, operand, rows)
        return rows.permute(0, 3, 1, 2)

    return GemmKernel(epilogue, run, source, w.shape[0], 1)


def linear_kernel(
    w_codes: Int64Array,
    bias_q: Any,
    m: Any,
    n: Any,
    in_dtype: QuantDType | str = qint8,
    w_dtype: QuantDType | str = qint8,
    out_dtype: QuantDType | str = qint8,
    lo: int | None = None,
    hi: int | None = None,
    code_range: tuple[int, int] | None = None,
    addend: Addend | None = None,
) -> GemmKernel:
    """Return the kernel of ``x @ w.T`` on the last dimension; ``w_codes`` [O, I], x of any rank."""
    source, out = as_dtype(in_dtype), as_dtype(out_dtype)
    w = np.asarray(w_codes, dtype=np.int64)
    sums = LinearSums(w, source, code_range)
    epilogue = _epilogue(w, source, w_dtype, code_range, bias_q, m, n, out, lo, hi, addend)
    native = native_conv(w[:, :, None, None], source, epilogue, POINTWISE)

    def run(x: torch.Tensor, operand: torch.Tensor | None) -> torch.Tensor:
        shape = (*x.shape[:-1], sums.channels)
        flat = x.reshape(-1, x.shape[-1])
        result = buffers.empty((flat.shape[0], sums.channels), held_dtype(out))
        extra = None if operand is None else operand.expand(shape).reshape(-1, sums.channels)
        if native is not None and flat.numel() and native.takes((1, *flat.shape[::-1], 1)):
            as_map = flat.contiguous()[None, :, None].permute(0, 3, 1, 2)
            native(as_map, result[None, :, None], None if extra is None else extra.contiguous())
            return result.view(shape)
        for start, stop in spans(flat.shape[0], _images(sums.channels)):
            part = None if extra is None else extra[start:stop]
            epilogue(sums(flat[start:stop]), result[start:stop], part)
        return result.view(shape)

    return GemmKernel(epilogue, run, source, w.shape[1], -1)


def as_dtype(value: QuantDType | str) -> QuantDType:
    """Return the dtype for itself, ``"qint8"`` or HBIR's ``"int8"``."""
    if isinstance(value, str) and value.startswith("int"):
        return quant_dtype("q" + value)
    return quant_dtype(value)


class _Conv:
    """One convolution on held maps, compiled where that is possible, else on torch's operators."""

    def __init__(
        self,
        w: Int64Array,
        source: QuantDType,
        code_range: tuple[int, int] | None,
        geometry: Geometry,
        groups: int,
        epilogue: Epilogue,
    ) -> None:
        stride, padding, dilation = geometry.stride, geometry.padding, geometry.dilation
        self._sums = ConvSums(w, source, code_range, stride, padding, dilation, groups)
        self._epilogue, self._dtype = epilogue, held_dtype(epilogue.out)
        self._plans: dict[torch.Size, tuple[tuple[int, ...], bool]] = {}
        self._native: NativeConv | NativeDepthwise | None = None
        if groups == 1:
            self._native = native_conv(w, source, epilogue, geometry)
        elif groups == w.shape[0] and w.shape[1] == 1:
            self._native = native_depthwise(w, source, epilogue, geometry)

    def __call__(self, x: torch.Tensor, addend: torch.Tensor | None) -> torch.Tensor:
        """The held result [N, H, W, O] of ``x`` in channels_last; ``addend`` broadcasts to it."""
        shape, fits = self._planned(x)
        result = buffers.empty(shape, self._dtype)
        if addend is not None:
            addend = addend.expand(shape)
        if fits and self._native is not None:
            self._native(x, result, None if addend is None else addend.contiguous())
        else:
            self._in_parts(x, result, addend)
        return result

    def _planned(self, x: torch.Tensor) -> tuple[tuple[int, ...], bool]:
        """The output's shape, and whether the compiled kernel takes the call."""
        found = self._plans.get(x.shape)
        if found is None:
            size = self._sums.output_size(x.shape[2], x.shape[3])
            _check_size(x, size)
            shape = (x.shape[0], *size, self._sums.channels)
            fits = self._native is not None and x.numel() > 0 and self._native.takes(x.shape)
            if len(self._plans) >= MOST_SHAPES:
                self._plans.clear()
            found = self._plans[x.shape] = (shape, fits)
        return found

    def _in_parts(self, x: torch.Tensor, result: torch.Tensor, addend: torch.Tensor | None) -> None:
        """A few images at a time: their sums stay in the cache."""
        _, height, width, channels = result.shape
        for start, stop in spans(x.shape[0], _images(height * width * channels)):
            target = result[start:stop].view(-1, channels)
            part = None if addend is None else addend[start:stop].reshape(target.shape)
            self._epilogue(self._sums(x[start:stop]), target, part)


def _phase_geometry(phase: Phase) -> Geometry:
    return Geometry((1, 1), phase.padding, phase.dilation)


def _fill_phases(
    x: torch.Tensor,
    parts: Sequence[tuple[Phase, _Conv]],
    stride: Sequence[int],
    addend: torch.Tensor | None,
    rows: torch.Tensor,
) -> None:
    """Run the convolutions of a transposed one, each into its places of ``rows`` [N, H, W, O]."""
    x = x.contiguous(memory_format=torch.channels_last)
    extra = None if addend is None else addend.permute(0, 2, 3, 1).expand(rows.shape)
    for phase, conv in parts:
        window = (slice(None), *(slice(phase.start[i], None, stride[i]) for i in range(2)))
        target = rows[window]
        if target.numel():
            target.copy_(conv(x, None if extra is None else extra[window]))


def _epilogue(
    w: Int64Array,
    source: QuantDType,
    w_dtype: QuantDType | str,
    code_range: tuple[int, int] | None,
    bias: Any,
    m: Any,
    n: Any,
    out: QuantDType,
    lo: int | None,
    hi: int | None,
    addend: Addend | None,
) -> Epilogue:
    weight_dtype = as_dtype(w_dtype)
    if w.size and (w.min() < weight_dtype.qmin or w.max() > weight_dtype.qmax):
        raise ArgumentError(f"weight codes {w.min()} .. {w.max()} do not fit {weight_dtype}")
    low, high = code_range if code_range is not None else (source.qmin, source.qmax)
    largest, smallest = bounds(w, low, high)
    return Epilogue(
        bias,
        m,
        n,
        bound=int(max(largest.max(initial=0), -smallest.min(initial=0))),
        out=out,
        lo=lo,
        hi=hi,
        addend=addend,
        wide=source is qint16 and weight_dtype is qint16,
    )


def _check_size(x: torch.Tensor, size: Sequence[int]) -> None:
    if min(size) < 1:
        raise ArgumentError(
            f"a map of shape {tuple(x.shape)} would give an output of {size[0]} x {size[1]}: "
            "kernel and pads do not fit it"
        )


def _images(elements: int) -> int:
    return max(1, CHUNK * torch.get_num_threads() // max(elements, 1))
