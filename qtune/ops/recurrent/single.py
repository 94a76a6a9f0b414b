"""What LSTMCell, GRUCell and RNNCell share: one step that the model itself repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.recurrent.cells import Cell, Step, zero_state
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
    Sample,
)

_PARAMS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def cell_spec(
    name: str,
    cls: type[nn.RNNCellBase],
    function_of: Callable[[Mapping[str, Any]], Callable[..., Any]],
    step_of: Callable[[Mapping[str, Any]], Step],
    *,
    functions: Mapping[Callable[..., Any], Mapping[str, Any]],
    states: int,
    gates: int,
    doc: str,
) -> OpSpec:
    """The entry of a recurrent cell; its operands are the input, the state and four weights.

    ``functions``: torch's functions for it, and the attributes that tell which one it is.
    """

    def bind(module: nn.RNNCellBase, input: Any, hx: Any = None) -> Bound:
        given = tuple(hx) if states == 2 and hx is not None else (hx,) * states
        attrs: dict[str, Any] = {"hidden_size": module.hidden_size}
        if name == "rnn_cell":
            attrs["nonlinearity"] = module.nonlinearity
        return Bound((input, *given, None, None, None, None), attrs)

    def bind_function(own: Mapping[str, Any]) -> Callable[..., Bound]:
        def call(
            input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
        ) -> Bound:
            given = tuple(hx) if states == 2 else (hx,)
            return Bound((input, *given, w_ih, w_hh, b_ih, b_hh), {"hidden_size": None, **own})

        return call

    def float_kernel(input: torch.Tensor, *tensors: Any, **attrs: Any) -> Any:
        given, weights = list(tensors[:states]), tensors[states:]
        if given[0] is None:
            given = [input.new_zeros(*input.shape[:-1], attrs["hidden_size"])] * states
        alone = input.dim() == 1  # torch's function has no call without a batch
        if alone:
            input, given = input.unsqueeze(0), [t.unsqueeze(0) for t in given]
        result = function_of(attrs)(input, given if states == 2 else given[0], *weights)
        if states == 1:
            return result.squeeze(0) if alone else result
        return tuple(t.squeeze(0) if alone else t for t in result)

    def decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
        x, *rest = bound.tensors
        given, weights = tuple(rest[:states]), rest[states:]
        cell = Cell(builder, "", [*weights, None])
        if given[0] is None:
            given = (zero_state(builder, x, bound.attrs["hidden_size"]),) * states
        state = step_of(bound.attrs)(cell, cell.from_input(x), given)
        return state[0] if states == 1 else state

    def flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
        hidden = (inputs[2 + states] or (0, 0))[1]
        rows = int(np.prod(inputs[0][:-1], dtype=np.int64))
        return rows * gates * hidden * (inputs[0][-1] + hidden)

    def sample(rng: np.random.Generator) -> Sample:
        batch, features, hidden = (int(v) for v in rng.integers(1, 6, 3))
        attrs: dict[str, Any] = {"hidden_size": hidden}
        if name == "rnn_cell":
            attrs["nonlinearity"] = "tanh"
        rows = gates * hidden
        weights = ((rows, features), (rows, hidden), (rows,), (rows,))
        return Sample(((batch, features), *((batch, hidden),) * states, *weights), attrs)

    return OpSpec(
        name=name,
        family="recurrent",
        rule=Rule.DECOMPOSED,
        roles=("input", *("h_0", "c_0")[:states], *_PARAMS),
        targets=(
            ModuleTarget(cls, bind, {name: name for name in _PARAMS}),
            *(FunctionTarget(f, bind_function(own)) for f, own in functions.items()),
        ),
        float_kernel=float_kernel,
        lower=lower_by_parts(decompose),
        decompose=decompose,
        march=limits.NOT_BERNOULLI,
        flops=flops,
        sample=sample,
        doc=doc,
    )
