"""One call of an operator as a value: operands, attributes, grid, scales. What a snippet holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtune.errors import ArgumentError
from qtune.ops import registry
from qtune.ops.spec import OpSpec, Sample
from qtune.testing.fuzzing.line import Line, build_line
from qtune.testing.fuzzing.model import Model, Operator, is_finite
from qtune.testing.fuzzing.operands import Slot, slots

DATA, NOISE = "data", "noise"


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall:
    """An operator with operands, and how its model is quantized.

    ``operands`` follow the roles of the operator: tensors (real numbers float32, indices int64,
    masks bool), Python numbers, or ``None``. ``dtype``: ``"qint8"`` or ``"qint16"``, of inputs
    and result. ``scales``: of each operand, ``None`` where calibration decides. ``output_scale``:
    of the result, where it has one of its own. ``calibrated_on``: the operands themselves
    (``"data"``), or normal numbers of the same shapes (``"noise"``), always the same ones.
    """

    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "qint8"
    march: str = "nash-e"
    scales: tuple[float | None, ...] = ()
    output_scale: float | None = None
    calibrated_on: str = DATA

    def __post_init__(self) -> None:
        if self.calibrated_on not in (DATA, NOISE):
            raise ArgumentError(
                f"OperatorCall: calibrated_on must be {DATA!r} or {NOISE!r} but got "
                f"{self.calibrated_on!r}"
            )
        if self.scales and len(self.scales) != len(self.operands):
            raise ArgumentError(
                f"OperatorCall: {len(self.scales)} scales for {len(self.operands)} operands of "
                f"{self.op}; give one (or None) for each, or none at all"
            )

    @property
    def entry(self) -> OpSpec:
        """The operator's entry of the registry."""
        return registry.spec(self.op)

    @property
    def slots(self) -> list[Slot]:
        """What each operand is."""
        shapes = [tuple(x.shape) if isinstance(x, Tensor) else None for x in self.operands]
        pairs = list(enumerate(self.operands))
        numbers = {i: x for i, x in pairs if isinstance(x, int | float)}
        rows = {
            i: int(x.max()) + 1 if x.numel() else 1
            for i, x in pairs
            if isinstance(x, Tensor) and x.dtype == torch.int64
        }
        return slots(self.entry, Sample(tuple(shapes), self.attrs, numbers, rows))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The operands that the model gets in each call."""
        pairs = zip(self.slots, self.operands, strict=True)
        return tuple(value for slot, value in pairs if slot.is_input)

    def model(self) -> Model:
        """The float model, in eval mode."""
        return Model(Operator(self.entry, self.slots, self.operands, self.attrs)).eval()

    def calibration(self) -> tuple[Tensor, ...]:
        """The inputs that the model is calibrated on."""
        if self.calibrated_on == DATA:
            return self.inputs
        return noise(self.model(), self.slots, self.inputs)

    def line(self) -> Line:
        """The prepared, calibrated and converted model of this call, ready to run."""
        return build_line(self)

    def input_scales(self) -> list[float | None]:
        """Given scales, input by input."""
        given = self.scales or (None,) * len(self.operands)
        return [scale for slot, scale in zip(self.slots, given, strict=True) if slot.is_input]

    def weight_scale(self) -> float | None:
        """The given scale of the weight that a module owns."""
        given = self.scales or (None,) * len(self.operands)
        pairs = zip(self.slots, given, strict=True)
        owned = [s for slot, s in pairs if slot.is_owned and slot.role == self.entry.weight_role]
        return owned[0] if owned else None


def noise(
    model: Model, operands: Sequence[Slot], like: Sequence[Tensor], seed: int = 0
) -> tuple[Tensor, ...]:
    """Normal numbers for the inputs (positive ones, if need be) on which the result is finite.

    Indices and masks are those of ``like``.
    """
    wanted = [slot for slot in operands if slot.is_input]
    for positive in (False, True):
        rng = np.random.default_rng(seed)
        drawn = tuple(
            slot.draw(rng, positive=positive) if slot.is_real else given
            for slot, given in zip(wanted, like, strict=True)
        )
        if is_finite(model(*drawn)):
            return drawn
    return tuple(like)
