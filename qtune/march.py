"""The marches (chips) that the emulated BPU knows, as data (toolchain_facts sections 1, 7)."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from qtune.errors import MarchError


@dataclass(frozen=True, slots=True)
class MarchLimits:
    """What a march can do, beyond the rules that the operators carry themselves.

    ``int16_activations``: int16 between operators. ``dual_int16``: GEMMs whose operands are both
    int16. ``float16``: the vector unit computes in float16, and GEMMs give it. ``vpu``: a unit of
    its own quantizes and dequantizes at the borders. ``max_rank``: most dimensions of a tensor.
    ``cores``: BPU cores.
    ``tops``: int8 peak in 1e12 operations per second, ``None`` where unpublished.
    """

    series: str
    cores: int = 1
    tops: float | None = None
    int16_activations: bool = True
    dual_int16: bool = False
    float16: bool = False
    vpu: bool = False
    max_rank: int = 10


class March(enum.StrEnum):
    """A march; the value is its documented string."""

    BERNOULLI2 = "bernoulli2"
    BAYES = "bayes"
    BAYES_E = "bayes-e"
    NASH_E = "nash-e"
    NASH_M = "nash-m"
    NASH_P = "nash-p"
    NASH_H = "nash-h"
    NASH_B = "nash-b"
    NASH_B_LITE = "nash-b-lite"
    NASH_B_PLUS = "nash-b-plus"

    Bernoulli2 = "bernoulli2"
    Bayes = "bayes"

    @property
    def limits(self) -> MarchLimits:
        """The limits of this march."""
        return _LIMITS[self.value]

    @property
    def series(self) -> str:
        """``bernoulli``, ``bayes`` or ``nash``."""
        return self.limits.series

    @property
    def num_cores(self) -> int:
        """BPU cores of the chip."""
        return self.limits.cores

    @classmethod
    def get(cls, name: March | str) -> March:
        """The member of a string or name; ``MarchError`` lists the known ones."""
        return as_march(name)

    def __str__(self) -> str:
        return self.value


# The tables list int16 for a few element-wise operators and the stubs of bernoulli2, but nothing
# there computes it for them and no GEMM takes it, so it is left out as a whole.
_LIMITS = {
    "bernoulli2": MarchLimits("bernoulli", cores=2, int16_activations=False, max_rank=4),
    "bayes": MarchLimits("bayes"),
    "bayes-e": MarchLimits("bayes"),
    "nash-e": MarchLimits("nash", tops=80.0, dual_int16=True, vpu=True),
    "nash-m": MarchLimits("nash", tops=128.0, dual_int16=True, vpu=True),
    "nash-p": MarchLimits("nash", cores=4, tops=560.0, dual_int16=True, float16=True, vpu=True),
    "nash-h": MarchLimits("nash", cores=3, tops=420.0, dual_int16=True, float16=True, vpu=True),
    "nash-b": MarchLimits("nash", tops=18.0, dual_int16=True, float16=True),
    "nash-b-lite": MarchLimits("nash", dual_int16=True, float16=True),
    "nash-b-plus": MarchLimits("nash", dual_int16=True, float16=True),
}

_current: March | None = None


def as_march(value: March | str) -> March:
    """Return the march for a member, its string (``"nash-e"``) or its name (``"NASH_E"``)."""
    if isinstance(value, March):
        return value
    text = str(value).lower().replace("_", "-")
    for march in March:
        if march.value == text:
            return march
    known = ", ".join(m.value for m in March)
    raise MarchError(f"unknown march {value!r}; choose one of: {known}")


def set_march(march: March | str) -> None:
    """Set the march for everything prepared or converted from now on in this process."""
    global _current
    _current = as_march(march)


def get_march() -> March:
    """Return the march that was set; raise ``MarchError`` where none was."""
    if _current is None:
        raise MarchError(
            "no march is set: call qtune.set_march('nash-e') (or another march) before prepare, "
            "export or convert"
        )
    return _current


def refuse_other_march(found: str, where: str, march: March | str | None = None) -> None:
    """Raise ``MarchError`` where a compiled or converted model ``found`` for one march is opened
    for another: ``march``, or the one that is set (without either, anything may be opened).
    """
    wanted = _current if march is None else as_march(march)
    if wanted is not None and found != wanted.value:
        source = "set" if march is None else "asked for"
        raise MarchError(
            f"{where} was made for the march {found}, but {wanted} is {source}. Convert and "
            f"compile the model again for {wanted}, or call qtune.set_march({found!r}) (or pass "
            f"march={found!r}) to open it as it is"
        )


@contextmanager
def march(value: March | str) -> Iterator[March]:
    """Use a march inside a ``with`` block and restore the earlier one after it."""
    global _current
    before = _current
    _current = as_march(value)
    try:
        yield _current
    finally:
        _current = before
