"""A bound of what separates the integers from the fake-quant model, carried from node to node.

For operators of many parts, or whose bound depends on their numbers: no table holds it. Each
rounding adds a step of its scale, and each part passes on the error of its operands, at most times
its slope. All errors are largest absolute values over a tensor, in real numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qtune.dtype import qint16
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import Quantizers, value_quantizers
from qtune.nn.qat import QATOp
from qtune.quantizers.fake_quantize import FakeQuantize

SLOPES = {"sigmoid": 0.25, "tanh": 1.0, "relu": 1.0}
"""Largest slope of the functions inside recurrent layers."""

SAMPLED = 1.5
"""Steps of the input by which a sample at a fraction of a pixel is off (grid_sample's bar)."""

Propagate = Callable[[QATOp, Sequence[Any], Sequence[float]], float]
"""``propagate(op, values, errors)``: the error of the result before it is rounded."""


def error_bounds(prepared: PreparedModel, inputs: Sequence[Tensor]) -> list[float]:
    """The bound of each output of ``prepared`` on ``inputs``, in real numbers."""
    walk = _Walk(prepared)
    with torch.no_grad():
        walk.run(*inputs)
    (output,) = prepared.graph.find_nodes(op="output")
    return [walk.errors.get(node, 0.0) for node in output.args[0]]


class _Walk(fx.Interpreter):
    """Runs the fake-quant model and notes the error of each node."""

    def __init__(self, prepared: PreparedModel) -> None:
        super().__init__(prepared)
        self.errors: dict[fx.Node, float] = {}
        self._known: Quantizers = value_quantizers(prepared)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node and bound its error; one without a quantized operand has none."""
        args, _ = self.fetch_args_kwargs_from_env(n)
        result = super().run_node(n)
        before = [self.errors.get(a, 0.0) if isinstance(a, fx.Node) else 0.0 for a in n.args]
        op = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        if isinstance(op, QATOp):
            self.errors[n] = self._behind(n, op, op.fill(args), before)
        elif n.op != "output":
            self.errors[n] = max(before, default=0.0)
        return result

    def _behind(
        self, node: fx.Node, op: QATOp, values: Sequence[Any], before: Sequence[float]
    ) -> float:
        errors = list(before)
        for key, quantizer in op.input_fake_quants.items():
            errors[int(key)] += _step(quantizer)
        if op.spec.name == "deform_conv2d":
            given = dict(op.input_fake_quants.items()).get("0", self._source(node))
            errors[0] += SAMPLED * _step(given)
        error = _propagate(op)(op, values, errors)
        if op.spec.name in SLOPES:
            error += SLOPES[op.spec.name] * self._beyond(node, values[0])
        if op.spec.name == "clamp_scalar":  # a bound between two codes is rounded to one
            error += 0.5 * _step(self._source(node))
        # A sum of two rounded multiples is off by one step more (numerics.md section 3).
        roundings = 0 if op.spec.name == "quant_stub" else 2 if op.spec.name in _SUMS else 1
        rounded = error + roundings * _step(op.activation_post_process)
        return min(rounded, _span(op.activation_post_process))

    def _source(self, node: fx.Node) -> FakeQuantize | None:
        """The fake-quantize whose grid the first operand lies on."""
        first = node.args[0]
        return self._known.get(first) if isinstance(first, fx.Node) else None

    def _beyond(self, node: fx.Node, x: Tensor) -> float:
        """How far ``x`` leaves the range of an int16 table, where the border's value holds.

        Calibration sees what unquantized weights give, the table's range; rounded ones give more.
        """
        source = self._source(node)
        if source is None or source.dtype != qint16:
            return 0.0
        low, high = source.observed_range()
        return float(torch.maximum(low - x, x - high).max().clamp(min=0.0)) + _step(source)


def _step(quantizer: Any) -> float:
    return float(quantizer.scale.max()) if isinstance(quantizer, FakeQuantize) else 0.0


def _span(quantizer: Any) -> float:
    """Two codes of one grid are no further apart than its ends."""
    if not isinstance(quantizer, FakeQuantize):
        return math.inf
    return (quantizer.quant_max - quantizer.quant_min) * _step(quantizer)


def _largest(x: Any) -> float:
    return float(x.abs().max()) if isinstance(x, Tensor) else abs(float(x))


def _linear(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    weight = op.quantize_weight(values[1], op.attrs)
    return errors[0] * float(weight.abs().sum(1).max())


def _convolution(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    """Rounded to int8 codes first, an input on the border of two may take either, in each term."""
    weight = op.quantize_weight(values[1], op.attrs).abs()
    channel = 1 if op.spec.name.startswith("conv_transpose") else 0
    return errors[0] * float(weight.transpose(0, channel).flatten(1).sum(1).max())


def _matmul(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    a, b = (x.abs() if x.dim() > 1 else x.abs().unsqueeze(axis) for axis, x in enumerate(values))
    row, column = float(a.sum(-1).max()), float(b.sum(-2).max())
    both: float = a.shape[-1] * errors[0] * errors[1]
    return row * errors[1] + column * errors[0] + both


def _product(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    (a, b), (left, right) = values[:2], errors[:2]
    return _largest(a) * right + _largest(b) * left + left * right


def _sum(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    return errors[0] + errors[1]


def _function(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    return errors[0] * SLOPES[op.spec.name]


def _deformed(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    """Each sample, times its weight and its mask, which is the same number in both models."""
    weight, mask = values[2], values[4]
    taps = op.quantize_weight(weight, op.attrs).abs().flatten(1).sum(1).max()
    share = 1.0 if mask is None else _largest(mask)
    return float(taps) * share * errors[0]


def _moved(op: QATOp, values: Sequence[Any], errors: Sequence[float]) -> float:
    return max(errors, default=0.0)


_SUMS = frozenset({"add", "sub"})
_RULES: dict[str, Propagate] = {
    "linear": _linear,
    "conv3d": _convolution,
    "conv_transpose3d": _convolution,
    "matmul": _matmul,
    "mul": _product,
    "add": _sum,
    "sub": _sum,
    "deform_conv2d": _deformed,
    **dict.fromkeys(SLOPES, _function),
    **dict.fromkeys(("quant_stub", "dequant_stub", "clamp_scalar", "maximum", "minimum"), _moved),
}


def _propagate(op: QATOp) -> Propagate:
    if op.spec.family == "movement":
        return _moved
    if op.spec.name not in _RULES:
        raise NotImplementedError(f"propagation: no rule for the error of {op.spec.name}")
    return _RULES[op.spec.name]
