"""What the memory plan and the static estimate assume about each march, as data.

The documents publish peaks in TOPS (``MarchLimits.tops``), stride alignments and smallest
allocations of the nash family (toolchain_facts 1.2), and no clock, bandwidth or memory size. What
is not published is an assumption, named in ``Hardware.assumed`` and written into every estimate. An
estimate ranks operators and variants of a model; it is no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from qtune.march import March, as_march

CLOCK_HZ = 1e9
"""Assumed for every march; with it TOPS become multiply-adds in a cycle."""

BANDWIDTH = 50e9
"""Bytes per second between DDR and BPU; assumed for every march."""

ON_CHIP_BYTES = 2 << 20
"""Working memory of a core; assumed for every march."""

MACS_PER_LANE = 64
"""The vector unit treats one element where the MAC array does this many multiply-adds; assumed."""

_ASSUMED = ("clock_hz", "bandwidth", "on_chip_bytes", "vector_lanes")


@dataclass(frozen=True, slots=True)
class Hardware:
    """One march. Sizes in bytes; ``macs_per_cycle`` int8 multiply-adds, ``vector_lanes`` elements.

    ``l2m_bytes``: the cache that the cores share, 0 where the march has none.
    """

    march: str
    tops: float
    macs_per_cycle: float
    vector_lanes: float
    clock_hz: float = CLOCK_HZ
    bandwidth: float = BANDWIDTH
    on_chip_bytes: int = ON_CHIP_BYTES
    stride_alignment: int = 32
    allocation: int = 64
    l2m_bytes: int = 0
    assumed: tuple[str, ...] = _ASSUMED

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes that DDR moves in one cycle."""
        return self.bandwidth / self.clock_hz

    def to_dict(self) -> dict[str, Any]:
        """The data as plain values."""
        return asdict(self)


_UNPUBLISHED_TOPS: Mapping[str, float] = MappingProxyType(
    {"bernoulli2": 5.0, "bayes": 96.0, "bayes-e": 10.0, "nash-b-lite": 18.0, "nash-b-plus": 18.0}
)
"""int8 peaks that the documents do not give; assumed from the boards' headlines."""

_ALIGNMENT: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "nash-e": (32, 64),
        "nash-m": (32, 64),
        "nash-p": (64, 256),
        "nash-h": (64, 256),
        "nash-b": (32, 128),
        "nash-b-lite": (32, 128),
        "nash-b-plus": (32, 128),
    }
)
"""March -> stride alignment and smallest tensor allocation; others as nash-e, assumed."""

_L2M: Mapping[str, int] = MappingProxyType({"nash-p": 8 << 20, "nash-h": 8 << 20})
"""Marches with an L2M cache, and its assumed size."""


def hardware(march: March | str) -> Hardware:
    """The data of a march."""
    target = as_march(march)
    name, assumed = target.value, list(_ASSUMED)
    tops = target.limits.tops
    if tops is None:
        tops = _UNPUBLISHED_TOPS[name]
        assumed.append("tops")
    if name not in _ALIGNMENT:
        assumed.append("stride_alignment")
        assumed.append("allocation")
    if name in _L2M:
        assumed.append("l2m_bytes")
    stride, allocation = _ALIGNMENT.get(name, (32, 64))
    macs = tops * 1e12 / 2 / CLOCK_HZ
    return Hardware(
        name,
        tops,
        macs,
        macs / MACS_PER_LANE,
        stride_alignment=stride,
        allocation=allocation,
        l2m_bytes=_L2M.get(name, 0),
        assumed=tuple(assumed),
    )
