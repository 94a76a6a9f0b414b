"""Calls of converted operators that the BPU does not run: float ones, and those on constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qtune.arith.quantize import fake_quantize
from qtune.nn.qat.op import TRAINING
from qtune.nn.quantized.call import OpCall
from qtune.nn.quantized.frozen import FrozenOp, Grid
from qtune.nn.quantized.qtensor import QTensor
from qtune.ops.spec import Rule


def is_float(call: OpCall) -> bool:
    """Whether nothing is quantized: no operand, no parameter, no result."""
    if any(isinstance(value, QTensor) for value in call.operands):
        return False
    return not any(
        member.activation_post_process is not None
        or member.weight_fake_quant is not None
        or member.input_fake_quants
        for member in call.members
    )


def is_plain(call: OpCall) -> bool:
    """Whether it moves or compares masks and integers only, which programs do as well."""
    tensors = [value for value in call.operands if isinstance(value, torch.Tensor)]
    lowers = all(member.spec.lower is not None for member in call.members)
    return lowers and bool(tensors) and not any(x.is_floating_point() for x in tensors)


def run_float(call: OpCall) -> Any:
    """What stays float runs torch's own functions."""
    made: list[Any] = []
    for index, member in enumerate(call.members):
        args, kwargs = call.wiring.resolve(index, call.operands, made)
        made.append(member.compute(member.fill(args), _in_eval(member, kwargs)))
    return made[-1]


def run_folded(call: OpCall) -> Any:
    """Operators on constants: computed on real numbers, then brought to their grid.

    So the converter folds what no input decides.
    """
    plain = [v.dequantize() if isinstance(v, QTensor) else v for v in call.operands]
    made: list[Any] = []
    for index, member in enumerate(call.members):
        args, kwargs = call.wiring.resolve(index, plain, made)
        operands = _on_grids(member, member.fill(args))
        made.append(member.compute(operands, _in_eval(member, kwargs)))
    grid = _grid_of(call)
    if grid is None or not isinstance(made[-1], torch.Tensor):
        return made[-1]
    return QTensor.quantize(made[-1], grid.scale, grid.dtype)


def _grid_of(call: OpCall) -> Grid | None:
    """The grid of the result: the operator's own, or the operand's where it is kept."""
    own: Any = call.members[-1].activation_post_process
    if isinstance(own, Grid):
        return own
    first = next((v for v in call.operands if isinstance(v, QTensor)), None)
    if first is None or call.members[-1].spec.rule is not Rule.INPUT_SCALE:
        return None
    return Grid(first.q_per_channel_scales(), first.dtype)


def _in_eval(member: FrozenOp, dynamic: dict[str, Any]) -> dict[str, Any]:
    attrs = {**member.attrs, **dynamic}
    return {**attrs, TRAINING: False} if member.follows_training else attrs


def _on_grids(member: FrozenOp, operands: Sequence[Any]) -> list[Any]:
    """Operands after the operator's own fake-quantizes."""
    values = list(operands)
    for key, grid in member.input_fake_quants.items():
        x = values[int(key)]
        if isinstance(grid, Grid):
            real = fake_quantize(x.cpu().numpy(), grid.scale.cpu().numpy(), grid.dtype)
            values[int(key)] = torch.from_numpy(real).to(x.device)
        else:
            values[int(key)] = grid(x)
    return values
