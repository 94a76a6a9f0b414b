"""Strategies for whole calls of operators, from the samplers of the registry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor

from qtune.dtype import QuantDType, quant_dtype
from qtune.errors import ArgumentError
from qtune.march import as_march
from qtune.ops import registry
from qtune.ops.spec import OpSpec, Rule, Sample
from qtune.testing.fuzzing.call import DATA, NOISE, OperatorCall
from qtune.testing.fuzzing.model import Model, Operator, flat, is_finite
from qtune.testing.fuzzing.operands import LEFT_OUT, VARIANCE, Slot, slots
from qtune.testing.strategies.generator import DrawnGenerator
from qtune.testing.strategies.values import code_arrays, real_values, tensors

KERNELS, INTEGERS = "kernels", "integers"
PLAIN_SCALES = (1.0, 0.5, 0.25, 2.0, 2.0**-5, 2.0**-9, 16.0)
"""Of operands of sums and products: reals are whole numbers, ratios of scales anything."""

RANGES = (4.0, 1.0, 16.0, 0.125)
"""Half ranges of operands of functions, whose results must stay finite."""

TIGHTNESS = (0, 1, -1, -2, 3)
"""The output scale is the power of two that just holds the results, times two to one of these."""

RECURRENT = 4.0
"""Normal numbers are divided by it for the weights of recurrent layers, of a few elements a row."""

_MARGIN = 0.02
"""Share of a domain left out at either end: there lie poles, of which no table has a bound."""

COARSE = 64
"""Noise in a snippet is rounded to such parts of one, so that its literals are short."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """One call so far: its operator, its grid, and what its operands are."""

    entry: OpSpec
    grid: QuantDType
    sample: Sample
    slots: list[Slot]

    @property
    def is_linear(self) -> bool:
        """Whether operands of any size are fine: the integer rule is sums and products."""
        return self.entry.rule not in (Rule.TABLE, Rule.DECOMPOSED)

    def input_steps(self) -> tuple[float | None, ...]:
        """Scales on whose grids normal numbers fit, for the inputs."""
        step = _step(self.grid)
        return tuple(step if slot.is_input and slot.is_real else None for slot in self.slots)

    def is_finite(self, operands: Sequence[Any]) -> bool:
        """Whether the float result holds neither NaN nor infinities."""
        return is_finite(self.results(operands))

    def results(self, operands: Sequence[Any]) -> list[Tensor]:
        """The results of the float model."""
        model = Model(Operator(self.entry, self.slots, operands, self.sample.attrs)).eval()
        inputs = [x for slot, x in zip(self.slots, operands, strict=True) if slot.is_input]
        with torch.no_grad():
            return flat(model(*inputs))


def attributes(op: str) -> st.SearchStrategy[Mapping[str, Any]]:
    """The attributes of a call of ``op``, as its sampler gives them."""
    entry = registry.spec(op)
    return _samples(entry).map(lambda sample: dict(sample.attrs))


@st.composite
def _samples(draw: Any, entry: OpSpec) -> Sample:
    if entry.sample is None:
        raise ArgumentError(
            f"operator {entry.name!r} has no sampler: give its OpSpec a sample= to fuzz it"
        )
    return entry.sample(DrawnGenerator(draw))


@st.composite
def operators(
    draw: Any,
    ops: str | Sequence[str] | None = None,
    *,
    dtypes: Sequence[str] = ("qint8", "qint16"),
    march: str = "nash-e",
    for_: str = KERNELS,
) -> OperatorCall:
    """Calls of operators of the registry: ``ops`` (a name, several, or all of them).

    ``dtypes``: those that the march has no room for are left out. ``for_="kernels"``: operands and
    scales of any kind, for two kernels that must agree in every bit. ``for_="integers"``: calls
    whose integer result follows the fake-quant model within the operator's documented bar, which
    takes ranges for granted that calibration would give.
    """
    if for_ not in (KERNELS, INTEGERS):
        raise ArgumentError(f"operators: for_ must be {KERNELS!r} or {INTEGERS!r}, got {for_!r}")
    names = (
        [ops] if isinstance(ops, str) else list(ops or sorted({*registry.specs()} - {*LEFT_OUT}))
    )
    entry = registry.spec(draw(st.sampled_from(names)))
    possible = _possible(dtypes, march)
    if for_ == INTEGERS and entry.family == "attention" and not as_march(march).limits.dual_int16:
        # Its products then take int8, and no bar is known for a code on the border of two.
        possible = [name for name in possible if quant_dtype(name).bits <= 8] or reject()
    grid = quant_dtype(draw(st.sampled_from(possible)))
    sample = draw(_samples(entry))
    plan = _Plan(entry, grid, sample, slots(entry, sample))
    parts = _for_kernels(draw, plan) if for_ == KERNELS else _for_integers(draw, plan)
    return OperatorCall(entry.name, attrs=sample.attrs, dtype=grid.name, march=march, **parts)


def _possible(dtypes: Sequence[str], march: str) -> list[str]:
    has_int16 = as_march(march).limits.int16_activations
    found = [name for name in dtypes if has_int16 or quant_dtype(name).bits <= 8]
    if not found:
        raise ArgumentError(f"operators: {march} has none of the dtypes {', '.join(dtypes)}")
    return found


def _for_kernels(draw: Any, plan: _Plan) -> dict[str, Any]:
    """Operands on a grid, mostly with exact scales; sums of saturated codes and ties are usual."""
    is_exact = draw(st.sampled_from((True, True, False)))
    scales = [_scale(draw, plan, slot) for slot in plan.slots]
    operands = _finite(
        plan, [_operand(draw, plan, *pair) for pair in zip(plan.slots, scales, strict=True)]
    )
    if not is_exact:
        return {"operands": operands, "calibrated_on": draw(st.sampled_from((DATA, NOISE)))}
    return {
        "operands": operands,
        "scales": tuple(scales),
        "output_scale": _output_scale(draw, plan, operands),
    }


def _scale(draw: Any, plan: _Plan, slot: Slot) -> float | None:
    """A power of two for an operand of real numbers."""
    if not slot.is_real or slot.domain is not None:
        return None
    if slot.is_owned and slot.role == plan.entry.weight_role and draw(st.booleans()):
        return None  # calibration: a scale per channel
    if plan.is_linear:
        return float(draw(st.sampled_from(PLAIN_SCALES)))
    return float(draw(st.sampled_from(RANGES)) / -plan.grid.qmin)


def _operand(draw: Any, plan: _Plan, slot: Slot, scale: float | None) -> Any:
    if slot.shape is None:
        return slot.number
    if not slot.is_real:
        return _whole(draw, plan, slot)
    if slot.domain is not None:
        return _within(draw, plan, slot)
    grid = quant_dtype("qint8") if slot.role == plan.entry.weight_role else plan.grid
    found = draw(tensors(slot.sizes, grid, 1.0 if scale is None else scale))
    return found.abs() + 0.125 if slot.role == VARIANCE else found


def _whole(draw: Any, plan: _Plan, slot: Slot) -> Tensor:
    """Indices, or a mask."""
    found = torch.from_numpy(draw(code_arrays(slot.sizes, plan.grid)))
    return found % slot.rows if slot.rows is not None else found % 2 == 1


def _within(draw: Any, plan: _Plan, slot: Slot) -> Tensor:
    """Numbers in the operand's domain."""
    low, high = slot.domain or (0.0, 1.0)
    grid = plan.grid
    found = draw(code_arrays(slot.sizes, grid)).astype(np.float64)
    part = _MARGIN + (1 - 2 * _MARGIN) * (found - grid.qmin) / (grid.qmax - grid.qmin)
    return torch.from_numpy(np.asarray(low + (high - low) * part, dtype=np.float32))


def _finite(plan: _Plan, operands: Sequence[Any]) -> tuple[Any, ...]:
    """The operands, made positive if need be, with which the result is finite."""
    positive = [
        x.abs() + 0.125 if slot.is_real and slot.is_input and slot.domain is None else x
        for slot, x in zip(plan.slots, operands, strict=True)
    ]
    for candidate in (operands, positive):
        if plan.is_finite(candidate):
            return tuple(candidate)
    return reject()


def _output_scale(draw: Any, plan: _Plan, operands: Sequence[Any]) -> float:
    """A power of two near the one that just holds the results; some saturate."""
    shift = draw(st.sampled_from(TIGHTNESS))
    sizes = [float(x.abs().max()) for x in plan.results(operands) if _is_real_tensor(x)]
    largest = max(sizes, default=0.0)
    exponent = math.ceil(math.log2(largest / plan.grid.qmax)) if largest > 0 else 0
    return float(2.0 ** max(-24, min(24, exponent + shift)))


def _is_real_tensor(x: Tensor) -> bool:
    return x.is_floating_point() and x.numel() > 0


def _for_integers(draw: Any, plan: _Plan) -> dict[str, Any]:
    """Operands of usual ranges; beyond them only where the bar holds for any input."""
    seed = draw(st.integers(0, 2**16))
    usual = _finite(plan, [_usual(plan, slot, seed + i) for i, slot in enumerate(plan.slots)])
    if plan.entry.rule not in (Rule.INPUT_SCALE, Rule.OWN_SCALE):
        if plan.entry.rule is Rule.TABLE:
            usual = _finite(plan, [_in_range(draw, plan, slot) for slot in plan.slots])
        # A bound or a constant beyond the grid saturates (numerics.md section 3): no fault.
        wide = plan.input_steps() if plan.sample.numbers else ()
        if plan.entry.rule is Rule.TABLE and not _is_resolved(plan, usual):
            return reject()
        return {"operands": usual, "scales": wide}
    pairs = zip(plan.slots, usual, strict=True)
    operands = [_beyond(draw, plan, slot, x) for slot, x in pairs]
    if not plan.is_finite(operands):
        return {"operands": usual}
    return {
        "operands": tuple(operands),
        "scales": plan.input_steps(),
        "calibrated_on": NOISE,
    }


def _is_resolved(plan: _Plan, operands: Sequence[Any]) -> bool:
    """Whether the float32 of the input tells steps of the result apart.

    Half its last bit, ``|x| 2**-24``, times a slope of up to 4 must be less than half an int16 step
    of the result, ``|y| 2**-16``. Else (logit about 0.5) the fake-quant model itself is unsure.
    """
    sizes = [float(x.abs().max()) for x in operands if isinstance(x, Tensor) and x.numel()]
    results = [float(x.abs().max()) for x in plan.results(operands) if _is_real_tensor(x)]
    largest = max(results, default=0.0)
    return largest == 0 or largest >= max(sizes, default=0.0) * 2.0**-6


def _step(grid: QuantDType) -> float:
    """The power of two whose grid holds normal numbers."""
    return 4.0 / -grid.qmin


def _usual(plan: _Plan, slot: Slot, seed: int) -> Any:
    """Normal numbers; weights of recurrent layers so small that errors do not grow by steps.

    Rows of them then add up to about 1 or less, as torch begins; with larger ones the state may
    double an error each time, and any bar of several steps would allow anything.
    """
    found = _noise(slot, seed)
    is_small = plan.entry.family == "recurrent" and slot.is_owned and slot.shape is not None
    return found / RECURRENT if is_small else found


def _noise(slot: Slot, seed: int) -> Any:
    found = slot.draw(np.random.default_rng(seed))
    if slot.is_real and slot.shape is not None and slot.domain is None:
        return torch.round(found * COARSE) / COARSE + (slot.role == VARIANCE) / COARSE
    return found


def _in_range(draw: Any, plan: _Plan, slot: Slot) -> Any:
    """An operand of a function: in its domain, or about 0."""
    if slot.domain is not None or not slot.is_real:
        return _operand(draw, plan, slot, None)
    return draw(tensors(slot.sizes, plan.grid, _step(plan.grid)))


def _beyond(draw: Any, plan: _Plan, slot: Slot, usual: Any) -> Any:
    """An input about the grid's ties and ends; parameters stay as they are."""
    if not slot.is_input or slot.domain is not None:
        return usual
    if not slot.is_real:
        return _whole(draw, plan, slot)
    return draw(real_values(slot.sizes, plan.grid, _step(plan.grid)))
