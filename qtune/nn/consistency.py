"""The consistency level of a prepared model (numerics.md section 4).

Level 1 and up: scales of activations are powers of two, and a GEMM adds the bias that the integer
GEMM adds. Level 2 and up: scales of weights are powers of two as well. Levels 0 and unset leave the
prepared model as it is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from qtune.nn.propagate import operand_quantizer, value_quantizers
from qtune.nn.qat import iter_stubs
from qtune.quantizers.fake_quantize import FakeQuantize

if TYPE_CHECKING:
    from qtune.nn.prepared import PreparedModel

_log = logging.getLogger(__name__)


def apply_level(model: PreparedModel, level: int | None) -> None:
    """Give a freshly prepared model its level; ``None``: unset."""
    model.consistency_level = level
    if level is None:
        return
    for _, op in model.operators():
        op.consistency_level = level
    if level >= 1:
        _note_sources(model)
    for name, kind, quantizer in iter_stubs(model):
        if level >= (2 if kind == "weight" else 1):
            _round_up(f"{name} {kind}", quantizer, level)


def _round_up(where: str, quantizer: FakeQuantize, level: int) -> None:
    given = quantizer.scale.clone()
    quantizer.use_power_of_two()
    if bool(quantizer.observed) and not torch.equal(given, quantizer.scale):
        _log.warning(
            "prepare: consistency level %d rounds the given scale %s of %s up to %s",
            level,
            given.tolist(),
            where,
            quantizer.scale.tolist(),
        )


def _note_sources(model: PreparedModel) -> None:
    """Tell every operator which fake-quantizes the first operand of its calls comes from."""
    known = value_quantizers(model)
    for node, op in model.operators():
        if node.args:
            source = operand_quantizer(op, node, 0, known)
            op.grid_sources = (*op.grid_sources, source)
