"""Histograms of magnitudes in torch: all channels at once, counts equal to qtune.arith.histogram.

``counts`` are int64 [channels, bins]; widths and tops float32 [channels].
"""

from __future__ import annotations

import torch

from qtune.arith.histogram import SMALLEST_WIDTH


def bin_widths(top: torch.Tensor, bins: int) -> torch.Tensor:
    """The least width of each channel's ``bins`` bins that reach ``top``; 0 where that is 0."""
    width = top / bins
    above = torch.nextafter(width, torch.full_like(width, torch.inf))
    width = torch.where(width.double() * bins < top.double(), above, width)
    return torch.where(top > 0, width.clamp_(min=float(SMALLEST_WIDTH)), 0.0)


def magnitude_counts(x: torch.Tensor, width: torch.Tensor, bins: int, axis: int) -> torch.Tensor:
    """Count the finite ``abs(x)`` of each channel along ``axis`` (-1: all of ``x`` is one)."""
    channels = width.numel()
    if x.numel() == 0:
        return torch.zeros((channels, bins), dtype=torch.int64, device=width.device)
    steps = x.to(torch.float32).abs() if x.dtype != torch.float32 else x.abs()
    divisor = torch.where(width > 0, width, torch.inf)
    along = [] if axis == -1 else [-1 if d == axis else 1 for d in range(x.dim())]
    divisor = divisor.reshape(along)
    index = steps.div_(divisor).ceil_()
    beyond_float32 = bool(index.amax() == torch.inf)
    index = index.clamp_(max=bins).to(torch.int32)
    if axis != -1:
        first = torch.arange(channels, device=x.device, dtype=torch.int32) * (bins + 1)
        index += first.reshape(divisor.shape)
    index = index[x.isfinite()] if beyond_float32 else index.flatten()
    counts = torch.bincount(index, minlength=channels * (bins + 1)).reshape(channels, bins + 1)
    counts[:, 1] += counts[:, 0]
    return counts[:, 1:].contiguous()


def doublings(width: torch.Tensor, bins: int, top: torch.Tensor) -> torch.Tensor:
    """For each channel the least ``k >= 0`` with ``width * bins * 2**k >= top``: int64."""
    ratio = top.double() / (width.double() * bins)
    fraction, exponent = torch.frexp(torch.where((width > 0) & (top > 0), ratio, 1.0))
    return torch.where(fraction == 0.5, exponent - 1, exponent).clamp_(min=0).to(torch.int64)


def merged(counts: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The counts of bins ``2**k`` (int64 [channels]) times as wide, as many as before."""
    index = torch.arange(counts.shape[1], device=counts.device) >> k.clamp(max=62)[:, None]
    return torch.zeros_like(counts).scatter_add_(1, index, counts)


def stretched(counts: torch.Tensor, top: torch.Tensor, wider: torch.Tensor) -> torch.Tensor:
    """The counts over [0, top] as counts over [0, wider]: each bin goes where its centre falls."""
    if torch.equal(top, wider):
        return counts
    bins = counts.shape[1]
    ratio = torch.where(wider > 0, top / wider, 1.0)[:, None]
    centres = torch.arange(bins, device=top.device, dtype=torch.float32) + 0.5
    index = (centres * ratio).clamp_(max=bins - 1).to(torch.int64)
    return torch.zeros_like(counts).scatter_add_(1, index, counts)
