"""embedding: rows of a table chosen by a tensor of indices (numerics.md section 3).

The table is a constant with one scale for the whole of it, on the grid that the operator's output
is configured for; the result holds its codes and keeps its scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.kernel import Builder, LowerCall
from qtune.ops.movement.moving import no_flops
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    FunctionTarget,
    MarchRule,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)

MAX_SIZE = 65536
"""Largest dimension of a gather on nash (toolchain_facts 7.1)."""


def _bind(
    input: Any,
    weight: Any,
    padding_idx: Any = None,
    max_norm: Any = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Bound:
    if max_norm is not None:
        raise NotImplementedError(
            f"embedding with max_norm={max_norm}, which rescales rows of the weight in every call; "
            "rescale the weight once and pass max_norm=None"
        )
    attrs = {
        "padding_idx": padding_idx,
        "scale_grad_by_freq": scale_grad_by_freq,
        "sparse": sparse,
    }
    return Bound((weight, input), attrs)


def _bind_torch(
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Bound:
    row = None if padding_idx == -1 else padding_idx  # torch.embedding's way to say none
    return _bind(indices, weight, row, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def _bind_module(module: nn.Embedding, input: Any) -> Bound:
    return _bind(
        input,
        None,
        module.padding_idx,
        module.max_norm,
        module.norm_type,
        module.scale_grad_by_freq,
        module.sparse,
    )


def float_kernel(
    table: torch.Tensor,
    index: torch.Tensor,
    *,
    padding_idx: int | None = None,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """``table[index]``: [rows, width] and int64 or int32 of any shape give [*index, width].

    The attributes change the gradient only.
    """
    return F.embedding(
        index, table, padding_idx, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse
    )


def _lower(b: Builder, call: LowerCall) -> Any:
    return b.add("Gather", list(call.operands), {"axis": 0})


def _check(
    attrs: Mapping[str, Any], inputs: Sequence[tuple[int, ...] | None], output: tuple[int, ...]
) -> str | None:
    table = inputs[0] or ()
    largest = max(table, default=0)
    if largest <= MAX_SIZE:
        return None
    return f"a table of {' x '.join(map(str, table))}, sizes up to {MAX_SIZE} are possible"


def _sample(rng: np.random.Generator) -> Sample:
    rows, width = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    chosen = tuple(int(v) for v in rng.integers(1, 5, int(rng.integers(0, 3))))
    return Sample(((rows, width), chosen), indices={1: rows})


register(
    OpSpec(
        name="embedding",
        family="movement",
        rule=Rule.INPUT_SCALE,
        roles=("table", "index"),
        targets=(
            ModuleTarget(nn.Embedding, _bind_module, {"table": "weight"}),
            FunctionTarget(F.embedding, _bind),
            FunctionTarget(torch.embedding, _bind_torch),
        ),
        float_kernel=float_kernel,
        lower=_lower,
        # On nash it is the gather of the table's rows, whose data are int8 (toolchain_facts 7.1,
        # row "index"), as for index_select.
        march=(MarchRule(("bayes",)), MarchRule(("nash",), ("qint8",), ("qint8",), _check)),
        flops=no_flops,
        sample=_sample,
        doc="rows of a quantized table chosen by a tensor of indices",
    )
)
