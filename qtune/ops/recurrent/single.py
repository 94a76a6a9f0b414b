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
    decompose = _decomposer(step_of, states)
    own = next(iter(functions.values()))
    return OpSpec(
        name=name,
        family="recurrent",
        rule=Rule.DECOMPOSED,
        roles=("input", *("h_0", "c_0")[:states], *_PARAMS),
        targets=(
            ModuleTarget(cls, _bind_module(states, tuple(own)), {name: name for name in _PARAMS}),
            *(FunctionTarget(f, _bind_function(states, attrs)) for f, attrs in functions.items()),
        ),
        float_kernel=_float_kernel(function_of, states),
        lower=lower_by_parts(decompose),
        decompose=decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops(states, gates),
        sample=_sampler(states, gates, own),
        doc=doc,
    )


def _bind_module(states: int, attributes: Sequence[str]) -> Callable[..., Bound]:
    def bind(module: nn.RNNCellBase, input: Any, hx: Any = None) -> Bound:
        given = tuple(hx) if states == 2 and hx is not None else (hx,) * states
        attrs = {key: getattr(module, key) for key in ("hidden_size", *attributes)}
        return Bound((input, *given, None, None, None, None), attrs)

    return bind


def _bind_function(states: int, own: Mapping[str, Any]) -> Callable[..., Bound]:
    def bind(
        input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
    ) -> Bound:
        given = tuple(hx) if states == 2 else (hx,)
        return Bound((input, *given, w_ih, w_hh, b_ih, b_hh), {"hidden_size": None, **own})

    return bind


def _float_kernel(
    function_of: Callable[[Mapping[str, Any]], Callable[..., Any]], states: int
) -> Callable[..., Any]:
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

    return float_kernel


def _decomposer(
    step_of: Callable[[Mapping[str, Any]], Step], states: int
) -> Callable[[DecomposeBuilder, Bound], Any]:
    def decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
        x, *rest = bound.tensors
        given, weights = tuple(rest[:states]), rest[states:]
        cell = Cell(builder, "", [*weights, None])
        if given[0] is None:
            given = (zero_state(builder, x, bound.attrs["hidden_size"]),) * states
        state = step_of(bound.attrs)(cell, cell.from_input(x), given)
        return state[0] if states == 1 else state

    return decompose


def _flops(states: int, gates: int) -> Callable[..., int]:
    def flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
        hidden: int = (inputs[2 + states] or (0, 0))[1]
        rows = int(np.prod(inputs[0][:-1], dtype=np.int64))
        width: int = inputs[0][-1]
        return rows * gates * hidden * (width + hidden)

    return flops


def _sampler(
    states: int, gates: int, own: Mapping[str, Any]
) -> Callable[[np.random.Generator], Sample]:
    def sample(rng: np.random.Generator) -> Sample:
        batch, features, hidden = (int(v) for v in rng.integers(1, 6, 3))
        rows = gates * hidden
        weights = ((rows, features), (rows, hidden), (rows,), (rows,))
        shapes = ((batch, features), *((batch, hidden),) * states, *weights)
        return Sample(shapes, {"hidden_size": hidden, **own})

    return sample
