"""Scaled dot-product attention as parts: scale, matmul, mask, softmax, matmul."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from qtune.dtype import qint16
from qtune.ops.attention.masking import Mask, merged
from qtune.ops.spec import DecomposeBuilder


@dataclass(frozen=True, slots=True)
class Options:
    """How queries [..., L, E] meet keys [..., S, E]: masks that broadcast on [..., L, S].

    ``dropout``: attributes of a dropout on the weights, ``None`` for none.
    """

    masks: Sequence[Mask] = field(default_factory=tuple)
    is_causal: bool = False
    scale: float | None = None
    dropout: Mapping[str, Any] | None = None


def attend(builder: DecomposeBuilder, q: Any, k: Any, v: Any, options: Options) -> tuple[Any, Any]:
    """The result [..., L, Ev] and the weights [..., L, S]; scores are int16."""
    factor = options.scale
    if factor is None:
        factor = 1 / math.sqrt(builder.shape(q)[-1])
    scaled = builder.call("mul", (q, float(factor)), part="scale")
    turned = builder.call("transpose", (k,), {"dim0": -2, "dim1": -1}, part="transpose")
    scores = builder.call("matmul", (scaled, turned), part="scores", forced_dtype=qint16)
    for index, mask in enumerate(m for m in options.masks if m.addend is not None):
        part = f"bias_{index}" if index else "bias"
        scores = builder.call("add", (scores, mask.addend), part=part, forced_dtype=qint16)
    blocking = [mask for mask in options.masks if mask.blocked is not None]
    blocked = [mask.blocked for mask in blocking]
    if options.is_causal:
        blocked.append(_causal(builder, q, k))
    if blocked:
        together = merged(builder, blocked, "blocked")
        spread = all(mask.finite for mask in blocking) and not options.is_causal
        attrs = {"dim": -1, "spread": spread}
        weights = builder.call("masked_softmax", (scores, together), attrs, part="softmax")
    else:
        weights = builder.call("softmax", (scores,), {"dim": -1, "dtype": None}, part="softmax")
    if options.dropout is not None:
        weights = builder.call("dropout", (weights,), options.dropout, part="dropout")
    return builder.call("matmul", (weights, v), part="values"), weights


def _causal(builder: DecomposeBuilder, q: Any, k: Any) -> Any:
    """True above the diagonal, for the example's lengths."""
    why = "the causal mask is made for {} {}"
    sizes = [
        builder.require_size(t, -2, why.format(builder.shape(t)[-2], what))
        for t, what in ((q, "queries"), (k, "keys"))
    ]
    mask = torch.ones(sizes, dtype=torch.bool).triu(1)
    return builder.constant(mask, part="causal_mask")


def dropout_attrs(p: float, training: Any) -> dict[str, Any] | None:
    """Attributes of a dropout part; ``training`` as in the call."""
    return {"kind": "dropout", "p": p, "training": training} if p else None
