"""The projections of multi-head attention, and heads as a dimension of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qtune.ops.attention.masking import Mask
from qtune.ops.spec import DecomposeBuilder

_NAMES = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class Heads:
    """One call of multi-head attention. Inside, tokens are [L, N, E] or, batch first, [N, L, E]."""

    builder: DecomposeBuilder
    operands: Mapping[str, Any]
    count: int
    batched: bool
    batch_first: bool
    add_zero: bool

    @classmethod
    def of(
        cls, builder: DecomposeBuilder, operands: Mapping[str, Any], attrs: Mapping[str, Any]
    ) -> Heads:
        """Read the call."""
        batched = len(builder.shape(operands["query"])) == 3
        batch_first = bool(attrs["batch_first"]) and batched
        return cls(
            builder, operands, attrs["num_heads"], batched, batch_first, attrs["add_zero_attn"]
        )

    @property
    def order(self) -> tuple[int, ...]:
        """The permutation of [N, heads, L, size] back to tokens with heads behind one another."""
        return (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)

    def projected(self) -> tuple[Any, Any, Any]:
        """Queries, keys and values, each with its third of the weights, as tokens."""
        embed = self.builder.shape(self.operands["query"])[-1]
        results = []
        for index, (name, role) in enumerate(zip(_NAMES, ("query", "key", "value"), strict=True)):
            x, third = self.operands[role], slice(index * embed, (index + 1) * embed)
            if not self.batched:
                x = self.builder.call("unsqueeze", (x,), {"dim": 1}, part=f"{name}_batch")
            weight = self.operands[f"{name}_proj_weight"]
            if weight is None:
                weight = self._part_of(self.operands["in_proj_weight"], third, f"{name}_weight")
            bias = self._part_of(self.operands["in_proj_bias"], third, f"{name}_bias")
            results.append(self.builder.call("linear", (x, weight, bias), part=f"{name}_proj"))
        return results[0], results[1], results[2]

    def apart(self, x: Any, name: str) -> Any:
        """Tokens as [N, heads, L, size]."""
        sizes = {"dim": -1, "sizes": (self.count, -1)}
        x = self.builder.call("unflatten", (x,), sizes, part=f"{name}_split")
        order = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        return self.builder.call("permute", (x,), {"dims": order}, part=f"{name}_heads")

    def extended(self, k: Any, v: Any, masks: list[Mask]) -> tuple[Any, Any, list[Mask]]:
        """Keys and values with heads apart; with ``bias_k`` and a zero behind the last token."""
        if self.operands["bias_k"] is not None:
            k = self._with_bias(k, self.operands["bias_k"], "bias_k")
            v = self._with_bias(v, self.operands["bias_v"], "bias_v")
            masks = [self._longer(mask, f"bias_mask_{i}") for i, mask in enumerate(masks)]
        k, v = self.apart(k, "key"), self.apart(v, "value")
        if self.add_zero:
            k, v = self._with_zero(k, "key_zero"), self._with_zero(v, "value_zero")
            masks = [self._longer(mask, f"zero_mask_{i}") for i, mask in enumerate(masks)]
        return k, v, masks

    def alone(self, x: Any, name: str, batch: int = 1) -> Any:
        """Without the batch dimension where the call had none."""
        if self.batched:
            return x
        return self.builder.call("squeeze", (x,), {"dim": batch}, part=f"{name}_alone")

    def _part_of(self, parameter: Any, rows: slice, part: str) -> Any:
        if parameter is None:
            return None
        return self.builder.call("getitem", (parameter, None), {"index": (rows,)}, part=part)

    def _with_bias(self, tokens: Any, bias: Any, part: str) -> Any:
        """One more token [1, 1, E], the same for the whole batch."""
        dim = 1 if self.batch_first else 0
        zero = self._zero(tokens, dim, part)
        token = self.builder.call("add", (zero, bias), part=f"{part}_token")
        return self.builder.call("cat", (tokens, token), {"dim": dim}, part=f"{part}_cat")

    def _with_zero(self, x: Any, part: str) -> Any:
        return self.builder.call("cat", (x, self._zero(x, 2, part)), {"dim": 2}, part=f"{part}_cat")

    def _zero(self, x: Any, dim: int, part: str) -> Any:
        """A zero in place of the first slice of ``x``, on the grid of ``x``."""
        index = (slice(None),) * dim + (slice(0, 1),)
        first = self.builder.call("getitem", (x, None), {"index": index}, part=f"{part}_first")
        return self.builder.call(
            "clamp_scalar", (first,), {"min": 0.0, "max": 0.0}, part=f"{part}_zero"
        )

    def _longer(self, mask: Mask, part: str) -> Mask:
        """The mask with a free position behind the last."""
        return Mask(
            self._padded(mask.blocked, part, False),
            self._padded(mask.addend, f"{part}_addend", 0.0),
        )

    def _padded(self, mask: Any, part: str, value: Any) -> Any:
        if mask is None:
            return None
        attrs = {"pad": (0, 1), "mode": "constant", "value": value}
        return self.builder.call("pad", (mask,), attrs, part=part)


def together(builder: DecomposeBuilder, x: Any, order: tuple[int, ...], part: str) -> Any:
    """[N, heads, L, size] as tokens with all heads behind one another."""
    x = builder.call("permute", (x,), {"dims": order}, part=f"{part}_heads")
    return builder.call("flatten", (x,), {"start_dim": -2, "end_dim": -1}, part=part)
