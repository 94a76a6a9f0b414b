"""What raised stubs cost: multiply-adds with an int16 operand, cycles, and estimated latency."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from qtune.bpu.compiler import convert
from qtune.bpu.estimate import INT16_COST, estimate
from qtune.bpu.hardware import hardware
from qtune.capture.inputs import Inputs
from qtune.dtype import qint16
from qtune.march import March, march
from qtune.nn.prepared import PreparedModel
from qtune.ops.registry import spec
from qtune.qconfig.plan import Basis, OpView, Resolution
from qtune.quantization.hbdk4 import export


class Costs:
    """Costs of a resolution of the views in ``basis``.

    Shapes are those of the example that the model was prepared with.
    """

    def __init__(self, basis: Basis) -> None:
        self._views = basis.views
        self._machine = hardware(basis.march)
        self._macs = {view.name: _macs(view) for view in self._views if view.is_gemm}

    def int16_share(self, resolution: Resolution) -> float:
        """Multiply-adds of GEMMs with one or two int16 operands, as a share of those of all GEMMs.

        GEMMs that stay float count in neither; 0 where there is none.
        """
        counted = self._gemms(resolution)
        total = sum(self._macs[view.name] for view in counted)
        wide = sum(self._macs[v.name] for v in counted if _int16_operands(v, resolution))
        return wide / total if total else 0.0

    def cycles(self, resolution: Resolution) -> float:
        """A rough number to rank stubs by: arithmetic and traffic, not overlapping.

        Every result is written once and read by each of its consumers, every weight read once.
        """
        arithmetic = sum(
            self._macs[view.name] * INT16_COST[_int16_operands(view, resolution)]
            for view in self._gemms(resolution)
        )
        moved = sum(_bytes(view, resolution) for view in self._views)
        return arithmetic / self._machine.macs_per_cycle + moved / self._machine.bytes_per_cycle

    def _gemms(self, resolution: Resolution) -> list[OpView]:
        return [
            view
            for view in self._views
            if view.name in self._macs and resolution.plans[view.name].float_reason is None
        ]


def latency_us(model: PreparedModel, inputs: Inputs, target: March) -> float:
    """Microseconds of the whole model as it is now, by the static estimate (docs/compiler.md).

    ``inputs``: what it is exported with; their batch size counts. The model stays as it is.
    """
    with march(target):
        quantized = convert(export(model, inputs), target)
    return estimate(quantized.model, target.value).latency_us


def _macs(view: OpView) -> int:
    count: Callable[..., int] | None = spec(view.op).flops
    if count is None or not view.input_shapes:
        return 0
    return count(view.attrs, view.input_shapes, view.output_shape)


def _int16_operands(view: OpView, resolution: Resolution) -> int:
    """How many of the two factors of a GEMM are int16."""
    plan = resolution.plans[view.name]
    if plan.weight is not None:
        return int(plan.weight.dtype == qint16) + _is_int16(view, 0, resolution)
    return sum(_is_int16(view, index, resolution) for index in (0, 1))


def _is_int16(view: OpView, index: int, resolution: Resolution) -> bool:
    port = resolution.plans[view.name].inputs.get(index)
    if port is not None:
        return bool(port.dtype == qint16)
    source = view.producers[index] if index < len(view.producers) else None
    return source is not None and bool(resolution.plans[source].dtype == qint16)


def _bytes(view: OpView, resolution: Resolution) -> int:
    plan = resolution.plans[view.name]
    size = 2 if plan.dtype == qint16 else 1
    is_written = view.group in ("", view.name)  # of a fused group the last one
    moved = size * prod(view.output_shape) * (1 + len(view.consumers)) if is_written else 0
    if plan.weight is None:  # also of what stays float, which the registry need not know
        return moved
    entry = spec(view.op)
    if entry.weight_role is None:
        return moved
    shape = view.input_shapes[entry.roles.index(entry.weight_role)]
    return moved + (2 if plan.weight.dtype == qint16 else 1) * prod(shape or ())
