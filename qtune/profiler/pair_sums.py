"""Statistics and distances of two tensors in one pass over their values, in float64.

Metrics that are made of a few sums (:mod:`qtune.profiler.sum_formulas`) share the pass. Large
float32 tensors take a compiled kernel where there is one; else the values are widened block by
block, only the sums that are asked for are taken, and nothing larger than a block is made. What is
no finite real tensor has no sums; its metrics are computed one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from qtune.arith_fast.native.pair_summing import ENDS, FIELDS, SUMS, native_pair_sums
from qtune.profiler.metric import Metric, MetricInfo
from qtune.profiler.sum_formulas import FORMULAS

_BLOCK = 65536
"""Values of a block: small beside any layer, large beside the cost of a call."""
_LINE = 8
"""float64 values of a cache line: all rows of a block begin on one."""
_SHORT = 16
"""Values of a channel of a sample below which a row of sums for each costs more than it saves."""

Range = tuple[float, float]
Reduce = Callable[[Tensor, Tensor, Tensor], Tensor]
_REDUCTIONS: Mapping[str, Reduce] = MappingProxyType(
    {
        "a": lambda p, q, e: p.sum(),
        "b": lambda p, q, e: q.sum(),
        "aa": lambda p, q, e: p.dot(p),
        "bb": lambda p, q, e: q.dot(q),
        "ab": lambda p, q, e: p.dot(q),
        "ee": lambda p, q, e: e.dot(e),
        # these get abs(e)
        "abs_e": lambda p, q, e: e.sum(),
        "top_e": lambda p, q, e: e.amax(),
    }
)
_SIZES, _LARGEST = ("abs_e", "top_e"), "top_e"
MEANS = frozenset({"a", "b"})
"""The sums of which the two means are made."""
TOP = frozenset({_LARGEST})
"""The largest difference."""


@dataclass(frozen=True, slots=True)
class PairSums:
    """Finite sums over two tensors of ``count`` values.

    ``sums`` by name: ``a`` and ``b`` (the values of the baseline and the other), the products
    ``aa``, ``bb``, ``ab``, ``ee`` with ``e = a - b``, ``abs_e`` and ``top_e``, the largest
    ``abs(e)``. ``ranges``: smallest and largest value of both. ``channels``: ``aa`` and ``ee`` of
    each channel (dimension 1), float64 [2, channels]. Both are there where they came along.
    """

    count: int
    sums: Mapping[str, float]
    ranges: tuple[Range, Range] | None = None
    channels: Tensor | None = None

    @property
    def means(self) -> tuple[float, float]:
        """Means of the two tensors; of sums taken with :data:`MEANS`."""
        return self.sums["a"] / self.count, self.sums["b"] / self.count

    @property
    def largest(self) -> float:
        """``max(abs(a - b))``; of sums taken with :data:`TOP`."""
        return self.sums[_LARGEST]


def sums_for(metrics: Iterable[MetricInfo]) -> frozenset[str]:
    """Names of the sums that these metrics are made of."""
    return frozenset(name for m in metrics if _is_known(m) for name in FORMULAS[m.name].needs)


def sums_of(a: Tensor, b: Tensor, wanted: Set[str]) -> PairSums | None:
    """The ``wanted`` sums, ``None`` if there is none or the tensors are no finite real ones."""
    real = a.is_floating_point() and b.is_floating_point() and a.shape == b.shape
    if not real or not wanted or not a.numel():
        return None
    a, b = a.detach(), b.detach()
    found = _from_kernel(a, b) or _in_blocks(a.flatten(), b.flatten(), wanted)
    return found if all(map(math.isfinite, found.sums.values())) else None


def channel_energies(a: Tensor, b: Tensor, sums: PairSums | None = None) -> Tensor:
    """Sums of ``a * a`` and ``(a - b) ** 2`` of each channel (dimension 1), float64 [2, channels].

    ``sums``: those of the two, which may have them.
    """
    if sums is not None and sums.channels is not None:
        return sums.channels
    found = torch.zeros(2, a.shape[1], dtype=torch.float64, device=a.device)
    some = max(1, _BLOCK // max(1, a[0].numel()))  # samples at a time
    for x, y in zip(torch.split(a, some), torch.split(b, some), strict=True):
        p = x.double()
        for total, part in zip(found, (p, p - y), strict=True):
            rows = part.reshape(*part.shape[:2], -1)
            total += torch.linalg.vector_norm(rows, dim=2).square().sum(0)
    return found


def extremes(value: Tensor) -> Range | None:
    """Smallest and largest value, of complex tensors as real ones; NaN shows in both.

    ``None`` for an empty tensor.
    """
    if value.numel() == 0:
        return None
    real = torch.view_as_real(value) if value.is_complex() else value
    low, high = torch.aminmax(real.byte() if real.dtype == torch.bool else real)
    return float(low), float(high)


def distance(metric: MetricInfo, a: Tensor, b: Tensor, sums: PairSums | None) -> float | None:
    """The value of ``metric`` (scope pertensor), from ``sums`` where they tell it."""
    if sums is None or not _is_known(metric):
        return metric(a, b)
    formula = FORMULAS[metric.name]
    value = formula.of(sums.count, *(sums.sums[name] for name in formula.needs))
    return metric(a, b) if value is None else value


def _from_kernel(a: Tensor, b: Tensor) -> PairSums | None:
    """All sums of two large float32 tensors, by the compiled kernel."""
    inner = math.prod(a.shape[2:]) if a.dim() > 1 else 0
    by_channel = inner >= _SHORT
    rows = native_pair_sums(a, b, inner if by_channel else _BLOCK)
    if rows is None:
        return None
    sums = dict(zip(SUMS, rows[:, : len(SUMS)].sum(0).tolist(), strict=True))
    smallest, largest = (end.tolist() for end in rows[:, len(SUMS) :].aminmax(dim=0))
    top, low_a, high_a, low_b, high_b = (
        (smallest if name.startswith("low") else largest)[i] for i, name in enumerate(ENDS)
    )
    channels = None
    if by_channel:
        energies = rows[:, [FIELDS.index("aa"), FIELDS.index("ee")]]
        channels = energies.view(*a.shape[:2], 2).sum(0).T
    ranges = (low_a, high_a), (low_b, high_b)
    return PairSums(a.numel(), sums | {_LARGEST: top}, ranges, channels)


def _in_blocks(x: Tensor, y: Tensor, wanted: Set[str]) -> PairSums:
    found = _of_equal(x, wanted) if torch.equal(x, y) else _sums(x, y, wanted)
    return PairSums(x.numel(), found)


def _of_equal(x: Tensor, wanted: Set[str]) -> dict[str, float]:
    """The sums of a tensor and itself."""
    names = {name: name.replace("b", "a") for name in wanted if "e" not in name}
    own = _sums(x, x, set(names.values())) if names else {}
    return {name: own[names[name]] if name in names else 0.0 for name in wanted}


def _sums(x: Tensor, y: Tensor, wanted: Set[str]) -> dict[str, float]:
    signed = [name for name in _REDUCTIONS if name in wanted and name not in _SIZES]
    sizes = [name for name in _SIZES if name in wanted]
    width = min(_BLOCK, -(-x.numel() // _LINE) * _LINE)
    wide = torch.empty(3, width, dtype=torch.float64, device=x.device)
    found: list[Tensor] = []
    for start in range(0, x.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        p, q, e = wide[:, : min(_BLOCK, x.numel() - start)]
        p.copy_(x[part])
        q.copy_(y[part])
        if sizes or "ee" in wanted:
            torch.sub(p, q, out=e)
        found += [_REDUCTIONS[name](p, q, e) for name in signed]
        if sizes:
            e.abs_()
            found += [_REDUCTIONS[name](p, q, e) for name in sizes]
    blocks = torch.stack(found).view(-1, len(signed) + len(sizes)).T.tolist()
    joined = zip((*signed, *sizes), blocks, strict=True)
    return {name: max(parts) if name == _LARGEST else sum(parts) for name, parts in joined}


def _is_known(metric: MetricInfo) -> bool:
    return _BUILT_IN.get(metric.name) is metric


_BUILT_IN = MappingProxyType({name: Metric.get_metric(name) for name in FORMULAS})
