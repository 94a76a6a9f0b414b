"""``optimize_graph``: one scale for the inputs and the result of a concatenation (bernoulli)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from torch import fx

from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.qat import QATOp
from qtune.nn.table import forget_sources, note_sources
from qtune.ops.spec import Rule
from qtune.quantizers.fake_quantize import FakeQuantize

_log = logging.getLogger(__name__)

MOVEMENT = "movement"
"""Family of the operators that only move values. Those with a scale of their own have it because
their inputs may come on several grids."""


def share_cat_scales(model: PreparedModel) -> None:
    """Let operators that only gather values share the fake-quantize of what they gather.

    The hardware then copies codes. Inputs of another dtype or on a fixed scale keep their own,
    which is said in the log. All values of one forward are one batch to the shared observer.
    """
    known = value_quantizers(model)
    shared: dict[FakeQuantize, FakeQuantize] = {}
    for node, op in model.operators():
        own = op.activation_post_process
        if op.spec.family != MOVEMENT or op.spec.rule is not Rule.OWN_SCALE:
            continue
        if not isinstance(own, FakeQuantize):
            continue
        for value in _operands(node):
            other = known.get(value)
            if other is None:
                continue
            if other.dtype != own.dtype or _is_fixed(other) or _is_fixed(own):
                _log.warning("optimize_graph: %s keeps its scale beside %s", other.name, op.name)
                continue
            shared[_root(other, shared)] = _root(own, shared)
    for _, op in model.operators():
        _replace(op, shared)
    forget_sources(model)
    note_sources(model)


def _operands(node: fx.Node) -> Iterator[fx.Node]:
    return (value for value in node.args if isinstance(value, fx.Node))


def _is_fixed(quantizer: FakeQuantize) -> bool:
    return quantizer.activation_post_process.is_fixed


def _root(quantizer: FakeQuantize, shared: dict[FakeQuantize, FakeQuantize]) -> FakeQuantize:
    while shared.get(quantizer, quantizer) is not quantizer:
        quantizer = shared[quantizer]
    return quantizer


def _replace(op: QATOp, shared: dict[FakeQuantize, FakeQuantize]) -> None:
    own = op.activation_post_process
    if isinstance(own, FakeQuantize):
        op.activation_post_process = _root(own, shared)
