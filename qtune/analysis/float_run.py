"""One float run of a prepared model: its outputs, and how much each operator computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.fx.node import map_arg

from qtune.capture.inputs import Inputs
from qtune.nn.prepared import PreparedModel
from qtune.profiler.kept_state import apart
from qtune.profiler.observe import operator_of
from qtune.profiler.undisturbed import same_randomness

_PRODUCTS = "gemm"


@dataclass(frozen=True, slots=True)
class FloatRun:
    """``outputs``: as the model gave them. ``flops``: operator name -> ``5184(98.18%)``.

    Those are multiply-adds with their share of the model's, of products and convolutions; an
    addition, an activation or a pool has none and is left out.
    """

    outputs: Any
    flops: Mapping[str, str]


def float_run(model: PreparedModel, inputs: Inputs) -> FloatRun:
    """Run ``model`` as it is now (``all_float``) once; nothing but the outputs is kept."""
    counter = _Counter(model)
    with same_randomness(model):
        outputs = apart(model, model.run_nodes(inputs, counter))
    return FloatRun(outputs, _shares(counter.counts))


class _Counter:
    """Counts by the shapes of operands and results."""

    def __init__(self, model: PreparedModel) -> None:
        self.model = model
        self.counts: dict[str, int] = {}
        self._shapes: dict[fx.Node, tuple[int, ...] | None] = {}

    def __call__(self, node: fx.Node, result: Any) -> Any:
        self._shapes[node] = shape = _shape(result)
        op = operator_of(self.model, node)
        if op is None or op.spec.family != _PRODUCTS or op.spec.flops is None or shape is None:
            return result
        # parameters take the places of operands that are None
        filled = op.fill(tuple(map_arg(node.args, self._shapes.__getitem__)))
        operands = tuple(v if isinstance(v, tuple) else _shape(v) for v in filled)
        count = int(op.spec.flops(op.attrs, operands, shape))
        self.counts[op.name] = self.counts.get(op.name, 0) + count
        return result


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _shares(counts: Mapping[str, int]) -> dict[str, str]:
    total = sum(counts.values()) or 1
    return {name: f"{count}({count / total:.2%})" for name, count in counts.items() if count}
