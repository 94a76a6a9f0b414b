"""MultiheadAttention: linear x3, heads apart, attention, heads together, linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from qtune.ops.attention.core import Options, attend, dropout_attrs
from qtune.ops.attention.heads import Heads, together
from qtune.ops.attention.masking import Mask, split_mask
from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.registry import register
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)

_ROLES = (
    "query", "key", "value", "key_padding_mask", "attn_mask", "in_proj_weight", "q_proj_weight",
    "k_proj_weight", "v_proj_weight", "in_proj_bias", "bias_k", "bias_v", "out_proj_weight",
    "out_proj_bias",
)  # fmt: skip
_PARAMS = {
    **{name: name for name in _ROLES[5:12]},
    "out_proj_weight": "out_proj.weight",
    "out_proj_bias": "out_proj.bias",
}


def _bind_module(
    module: nn.MultiheadAttention, query: Any, key: Any, value: Any, key_padding_mask: Any = None,
    need_weights: Any = True, attn_mask: Any = None, average_attn_weights: Any = True,
    is_causal: Any = False,
) -> Bound:  # fmt: skip
    attrs = {
        "num_heads": module.num_heads, "batch_first": module.batch_first,
        "add_zero_attn": module.add_zero_attn, "dropout": module.dropout, "training": None,
        "need_weights": need_weights, "average_attn_weights": average_attn_weights,
        "is_causal": is_causal,
    }  # fmt: skip
    operands = (query, key, value, key_padding_mask, attn_mask)
    return Bound((*operands, *(None,) * len(_PARAMS)), attrs)


def _bind_function(
    query: Any, key: Any, value: Any, embed_dim_to_check: Any, num_heads: Any, in_proj_weight: Any,
    in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: Any, dropout_p: Any,
    out_proj_weight: Any, out_proj_bias: Any, training: Any = True, key_padding_mask: Any = None,
    need_weights: Any = True, attn_mask: Any = None, use_separate_proj_weight: Any = False,
    q_proj_weight: Any = None, k_proj_weight: Any = None, v_proj_weight: Any = None,
    static_k: Any = None, static_v: Any = None, average_attn_weights: Any = True,
    is_causal: Any = False,
) -> Bound:  # fmt: skip
    if static_k is not None or static_v is not None:
        raise NotImplementedError(
            "multi_head_attention_forward with static_k or static_v is not done; concatenate them "
            "to key and value"
        )
    attrs = {
        "num_heads": num_heads, "batch_first": False, "add_zero_attn": add_zero_attn,
        "dropout": dropout_p, "training": training, "need_weights": need_weights,
        "average_attn_weights": average_attn_weights, "is_causal": is_causal,
    }  # fmt: skip
    weights = (in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias)
    projections = (*weights, bias_k, bias_v, out_proj_weight, out_proj_bias)
    return Bound((query, key, value, key_padding_mask, attn_mask, *projections), attrs)


def _float_kernel(
    query: Any, key: Any, value: Any, key_padding_mask: Any = None, attn_mask: Any = None,
    in_proj_weight: Any = None, q_proj_weight: Any = None, k_proj_weight: Any = None,
    v_proj_weight: Any = None, in_proj_bias: Any = None, bias_k: Any = None, bias_v: Any = None,
    out_proj_weight: Any = None, out_proj_bias: Any = None, *, num_heads: int, batch_first: bool,
    add_zero_attn: bool, dropout: float, training: Any, need_weights: bool,
    average_attn_weights: bool, is_causal: bool,
) -> Any:  # fmt: skip
    """torch's function; its key padding mask and attention mask have one kind."""
    swaps = batch_first and query.dim() == 3
    query, key, value = (t.transpose(0, 1) if swaps else t for t in (query, key, value))
    result, weights = F.multi_head_attention_forward(
        query, key, value, query.shape[-1], num_heads, in_proj_weight, in_proj_bias, bias_k,
        bias_v, add_zero_attn, dropout, out_proj_weight, out_proj_bias, training=bool(training),
        key_padding_mask=_float_mask(key_padding_mask, query), need_weights=need_weights,
        attn_mask=_float_mask(attn_mask, query),
        use_separate_proj_weight=in_proj_weight is None, q_proj_weight=q_proj_weight,
        k_proj_weight=k_proj_weight, v_proj_weight=v_proj_weight,
        average_attn_weights=average_attn_weights, is_causal=is_causal,
    )  # fmt: skip
    return result.transpose(0, 1) if swaps else result, weights


def _float_mask(mask: Any, like: torch.Tensor) -> Any:
    """A bool mask as torch's layers turn it into a float one."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -torch.inf)


def _decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
    operands = dict(zip(_ROLES, bound.tensors, strict=True))
    attrs = bound.attrs
    heads = Heads.of(builder, operands, attrs)
    q, k, v = heads.projected()
    masks = [_padding(builder, operands, heads), _attention(builder, operands, heads)]
    k, v, masks = heads.extended(k, v, masks)
    if attrs["is_causal"] and operands["attn_mask"] is None:
        raise NotImplementedError("is_causal=True without attn_mask; torch refuses it, too")
    options = Options(masks, dropout=dropout_attrs(attrs["dropout"], attrs["training"]))
    values, weights = attend(builder, heads.apart(q, "query"), k, v, options)
    joined = together(builder, values, heads.order, "joined")
    operands_out = (joined, operands["out_proj_weight"], operands["out_proj_bias"])
    result = heads.alone(builder.call("linear", operands_out, part="out_proj"), "result")
    if not attrs["need_weights"]:
        return result, None
    if attrs["average_attn_weights"]:
        mean = {"dim": (1,), "keepdim": False}
        weights = builder.call("mean", (weights,), mean, part="average")
    return result, heads.alone(weights, "weights", batch=0)


def _padding(builder: DecomposeBuilder, operands: Mapping[str, Any], heads: Heads) -> Mask:
    """The key padding mask [N, S] as [N, 1, 1, S]."""
    given = operands["key_padding_mask"]
    mask = split_mask(builder, given, "padding", true_blocks=True)

    def shaped(x: Any, name: str) -> Any:
        x = x if heads.batched else builder.call("unsqueeze", (x,), {"dim": 0}, part=f"{name}_n")
        x = builder.call("unsqueeze", (x,), {"dim": 1}, part=f"{name}_heads")
        return builder.call("unsqueeze", (x,), {"dim": 1}, part=f"{name}_queries")

    return _mapped(mask, shaped, "padding")


def _attention(builder: DecomposeBuilder, operands: Mapping[str, Any], heads: Heads) -> Mask:
    """The attention mask [L, S], or [N heads, L, S] as [N, heads, L, S]."""
    given = operands["attn_mask"]
    mask = split_mask(builder, given, "mask", true_blocks=True)

    def shaped(x: Any, name: str) -> Any:
        if len(builder.shape(x)) == 2:
            return x
        sizes = {"dim": 0, "sizes": (-1, heads.count)}
        return builder.call("unflatten", (x,), sizes, part=f"{name}_heads")

    return _mapped(mask, shaped, "mask")


def _mapped(mask: Mask, change: Any, part: str) -> Mask:
    blocked = None if mask.blocked is None else change(mask.blocked, part)
    addend = None if mask.addend is None else change(mask.addend, f"{part}_addend")
    return Mask(blocked, addend, mask.finite)


def _flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
    sides = [shape or (0,) for shape in inputs[:3]]
    embed = output[-1]
    rows = [int(np.prod(shape[:-1], dtype=np.int64)) for shape in sides]
    projections = sum(n * shape[-1] for n, shape in zip(rows, sides, strict=True))
    axis = 1 if attrs["batch_first"] and len(sides[1]) == 3 else 0
    return embed * (projections + rows[0] * embed + 2 * rows[0] * sides[1][axis])


def _sample(rng: np.random.Generator) -> Sample:
    heads, size, length, batch = (int(v) for v in rng.integers(1, 4, 4))
    embed = heads * size
    tokens = (length, batch, embed)
    weights = ((3 * embed, embed), None, None, None, (3 * embed,), None, None)
    attrs = {
        "num_heads": heads, "batch_first": bool(rng.integers(2)), "add_zero_attn": False,
        "dropout": 0.0, "training": False, "need_weights": True, "average_attn_weights": True,
        "is_causal": False,
    }  # fmt: skip
    shapes = (tokens, tokens, tokens, None, None, *weights, (embed, embed), (embed,))
    return Sample(shapes, attrs)


register(
    OpSpec(
        name="multi_head_attention",
        family="attention",
        rule=Rule.DECOMPOSED,
        roles=_ROLES,
        targets=(
            ModuleTarget(nn.MultiheadAttention, _bind_module, _PARAMS),
            FunctionTarget(F.multi_head_attention_forward, _bind_function),
        ),
        float_kernel=_float_kernel,
        lower=lower_by_parts(_decompose),
        decompose=_decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops,
        sample=_sample,
        doc="three projections, attention per head, one projection",
    )
)
