"""The range a grid should cover, in torch: all channels at once, equal to qtune.arith.ranges.

``counts`` int64 [channels, bins], ``width`` and ``top`` float32 [channels]. Searches go through
their candidates in blocks, so that the memory they take does not grow with channels or bins.
"""

from __future__ import annotations

import torch

from qtune.arith.ranges import DIVERGENCE_STEPS, MIX_PERCENTILES, MSE_STEPS, SHARE_SLACK
from qtune.dtype import QuantDType

_BLOCK = 1 << 21
"""Most elements of a search that are held at once."""


def percentile_range(
    counts: torch.Tensor, width: torch.Tensor, top: torch.Tensor, percentile: float
) -> torch.Tensor:
    """The upper edge of the first bin that reaches ``percentile`` %: float32 [channels]."""
    reached = counts.cumsum(1)
    total = reached[:, -1:]
    needed = total.double() * percentile / 100 * SHARE_SLACK
    index = (reached < needed).sum(1, keepdim=True)
    edge = torch.minimum((index[:, 0] + 1).float() * width, top)
    return torch.where((reached.gather(1, index) == total)[:, 0], top, edge)


def mse_candidates(top: torch.Tensor, stride: int) -> torch.Tensor:
    """``top * i / 100`` for i = 100 down to 1 in steps of ``stride``: [candidates, channels]."""
    steps = torch.arange(MSE_STEPS, 0, -stride, device=top.device, dtype=torch.float64)
    return (top.double() * steps[:, None] / MSE_STEPS).float()


def mix_candidates(counts: torch.Tensor, width: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """The ranges of ``MIX_PERCENTILES``: [candidates, channels]."""
    return torch.stack([percentile_range(counts, width, top, p) for p in MIX_PERCENTILES])


def least_squares_range(
    counts: torch.Tensor, width: torch.Tensor, candidates: torch.Tensor, grid: QuantDType
) -> torch.Tensor:
    """Of ``candidates`` the one with the least squared error, the first of equal ones."""
    filled = counts > 0
    most = max(1, int(filled.sum(1).max()))
    bins = filled.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
    centres = (bins.float() + 0.5) * width[:, None]
    known = counts.gather(1, bins).double()
    per_block = max(1, _BLOCK // max(1, known.numel()))
    blocks = torch.split(candidates, per_block)
    best = torch.cat([_errors(known, centres, part, grid) for part in blocks]).argmin(dim=0)
    return candidates.gather(0, best[None])[0]


def _errors(
    counts: torch.Tensor, centres: torch.Tensor, candidates: torch.Tensor, grid: QuantDType
) -> torch.Tensor:
    """Squared errors, float64 [candidates, channels]."""
    tiny = torch.finfo(torch.float32).tiny
    scale = (candidates / grid.divisor).clamp_min(tiny)[..., None]
    error = (centres / scale).add_(0.5).floor_().clamp_(max=grid.qmax).mul_(scale).sub_(centres)
    return (error.double().square_() * counts).sum(dim=-1)


def kl_range(
    counts: torch.Tensor, width: torch.Tensor, top: torch.Tensor, grid: QuantDType
) -> torch.Tensor:
    """The range whose quantized distribution diverges least, the larger of equal ones."""
    bins, codes = counts.shape[1], grid.qmax + 1
    if codes >= bins:
        return top
    positions = torch.arange(1, bins + 1, device=counts.device)
    used = torch.where(counts > 0, positions, 0).amax(1).clamp_(min=1)
    kept = torch.arange(bins, codes - 1, -1, device=counts.device)
    per_block = max(1, _BLOCK // (counts.shape[0] * codes))
    blocks = [_divergences(counts, part, grid) for part in torch.split(kept, per_block)]
    steps = torch.cat(blocks, dim=1).mul_(DIVERGENCE_STEPS).add_(0.5).floor_()
    steps = torch.where(kept <= used[:, None], steps, torch.inf)
    chosen = kept[steps.argmin(dim=1)]
    cut = (used >= codes) & (chosen < used)
    return torch.where(cut, torch.minimum(chosen.float() * width, top), top)


def _divergences(counts: torch.Tensor, kept: torch.Tensor, grid: QuantDType) -> torch.Tensor:
    """``KL(P || Q)`` of ``qtune.arith.ranges.divergence``, float64 [channels, candidates].

    ``sum_j P_j log P_j - sum_code P_code log(Q_code / bins_code)``, both from running sums.
    """
    start = _first_bins(kept, grid).flatten()
    entropy = torch.xlogy(counts.double(), counts.double())
    sums = torch.stack([counts.double(), (counts > 0).double(), entropy])
    running = torch.nn.functional.pad(sums.cumsum(-1), (1, 0))
    shape = (counts.shape[0], kept.numel(), -1)
    total, filled = running[:2, :, start].reshape(2, *shape).diff(dim=-1)
    number = running[0, :, -1:]
    cut = number - running[0][:, kept]
    last = counts[:, kept - 1].double()
    filled[..., -1] += (cut > 0) & (last == 0)
    mass = total.clone()
    mass[..., -1] += cut
    q_total = running[0][:, kept] + ((total[..., -1] == 0) & (cut > 0))
    q = mass * (total.clamp_(min=1).log_() - filled.clamp_(min=1).log_())
    p = running[2][:, kept - 1] + torch.xlogy(last + cut, last + cut)
    number = number.clamp(min=1)
    constant = q_total.clamp_(min=1).log_() - number.log()
    divergences: torch.Tensor = (p - q.sum(-1)) / number + constant
    return divergences


def _first_bins(kept: torch.Tensor, grid: QuantDType) -> torch.Tensor:
    """The first bin of each code, and the end of the last: int64 [candidates, codes + 1]."""
    steps = grid.qmax - grid.qmin
    code = torch.arange(grid.qmax + 2, device=kept.device)
    above = (4 * code - 2) * kept[:, None] - steps
    first = -torch.div(-above, 2 * steps, rounding_mode="floor")
    first[:, -1] = kept
    return torch.minimum(first.clamp_(min=0), kept[:, None])
