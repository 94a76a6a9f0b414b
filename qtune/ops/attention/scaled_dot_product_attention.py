"""scaled_dot_product_attention: ``softmax(q k^T scale + mask) v``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F

from qtune.ops.attention.core import Options, attend, dropout_attrs
from qtune.ops.attention.masking import split_mask
from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.registry import register
from qtune.ops.spec import Bound, DecomposeBuilder, FunctionTarget, OpSpec, Rule, Sample


def _bind(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: Any = 0.0,
    is_causal: Any = False, scale: Any = None, enable_gqa: Any = False,
) -> Bound:  # fmt: skip
    attrs = {
        "dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa,
    }  # fmt: skip
    return Bound((query, key, value, attn_mask), attrs)


def _float_kernel(query: Any, key: Any, value: Any, attn_mask: Any = None, **attrs: Any) -> Any:
    return F.scaled_dot_product_attention(query, key, value, attn_mask, **attrs)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    q, k, v, mask = bound.tensors
    attrs = bound.attrs
    if attrs["is_causal"] and mask is not None:
        raise NotImplementedError("attn_mask together with is_causal=True; torch refuses it, too")
    if attrs["enable_gqa"]:
        k, v = (_repeated(builder, t, q, name) for t, name in ((k, "key"), (v, "value")))
    options = Options(
        masks=[split_mask(builder, mask, "mask", true_blocks=False)],
        is_causal=bool(attrs["is_causal"]),
        scale=attrs["scale"],
        dropout=dropout_attrs(attrs["dropout_p"], True),
    )
    return attend(builder, q, k, v, options)[0]


def _repeated(builder: DecomposeBuilder, x: Any, q: Any, name: str) -> Any:
    """Keys or values with one head for each head of the queries."""
    times = builder.shape(q)[-3] // builder.shape(x)[-3]
    if times == 1:
        return x
    attrs = {"repeats": times, "dim": -3}
    return builder.call("repeat_interleave", (x,), attrs, part=f"repeat_{name}")


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    rows, width = math.prod(output[:-1]), output[-1]
    keys, features = int(inputs[1][-2]), int(inputs[0][-1])
    return rows * keys * (features + width)


def _sample(rng: np.random.Generator) -> Sample:
    heads, length, keys, size = (int(v) for v in rng.integers(1, 6, 4))
    shapes = ((2, heads, length, size), (2, heads, keys, size), (2, heads, keys, size), None)
    attrs = {
        "dropout_p": 0.0, "is_causal": bool(rng.integers(2)), "scale": None, "enable_gqa": False,
    }  # fmt: skip
    return Sample(shapes, attrs)


register(
    OpSpec(
        name="scaled_dot_product_attention",
        family="attention",
        rule=Rule.DECOMPOSED,
        roles=("query", "key", "value", "attn_mask"),
        targets=(FunctionTarget(F.scaled_dot_product_attention, _bind),),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="softmax(q k^T scale + mask) v; scores and softmax int16 inside",
    )
)
