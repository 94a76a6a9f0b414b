"""Recurrent layers unrolled over the steps of the example; LSTM, GRU and RNN share all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from qtune.ops.composed import lower_by_parts
from qtune.ops.elementwise import limits
from qtune.ops.recurrent.cells import Cell, State, Step, zero_state
from qtune.ops.recurrent.samples import sampler
from qtune.ops.spec import (
    Bound,
    DecomposeBuilder,
    FunctionTarget,
    ModuleTarget,
    OpSpec,
    Rule,
)

Results = tuple[Any, list[State]]
Functions = Mapping[Callable[..., Any], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Layers:
    """One call of a recurrent layer: its attributes, and its weights by cell.

    ``states``: how many tensors the state of a cell has (2 for an LSTM).
    """

    builder: DecomposeBuilder
    step: Step
    states: int
    attrs: Mapping[str, Any]
    weights: Sequence[Any]

    def run(self, x: Any, given: Sequence[Any]) -> Results:
        """The last layer's sequence and the final states; ``x`` and ``given`` have a batch."""
        finals: list[State] = []
        dim = 1 if self.attrs["batch_first"] else 0
        for layer in range(self.attrs["num_layers"]):
            sequences = []
            for reverse in range(self.directions):
                cell = self._cell(layer, bool(reverse))
                index = layer * self.directions + reverse
                first = self._first_state(cell, x, dim, given, index)
                hidden, final = self._sequence(cell, x, dim, first, bool(reverse))
                sequences.append(self._stacked(hidden, dim, f"stack{cell.suffix}"))
                finals.append(final)
            x = self._joined(sequences, layer)
        return x, finals

    @property
    def directions(self) -> int:
        """2 where the layer also runs backwards."""
        return 2 if self.attrs["bidirectional"] else 1

    def _cell(self, layer: int, reverse: bool) -> Cell:
        suffix = cell_suffix(layer, reverse)
        count = len(self.weights) // (self.attrs["num_layers"] * self.directions)
        names = weight_names(self.attrs["bias"], count)
        start = (layer * self.directions + int(reverse)) * count
        own = dict(zip(names, self.weights[start : start + count], strict=True))
        return Cell(self.builder, suffix, [own.get(name) for name in WEIGHTS])

    def _first_state(self, cell: Cell, x: Any, dim: int, given: Sequence[Any], index: int) -> State:
        at = (slice(None),) * dim + (0,)
        recurrent, projection = cell.weights[1], cell.weights[4]
        shape = None if projection is None else self.builder.shape(projection)
        sizes = state_sizes(self.builder.shape(recurrent), shape)
        zeros: dict[int, Any] = {}
        state = []
        for tensor, name, size in zip(given, "hc", sizes, strict=False):
            part = f"{name}_0{cell.suffix}"
            if tensor is not None and not self.builder.is_constant(tensor):
                own = self.builder.call("getitem", (tensor, None), {"index": (index,)}, part=part)
                state.append(own)
                continue
            if size not in zeros:
                first = self.builder.call(
                    "getitem", (x, None), {"index": at}, part=f"{name}_first{cell.suffix}"
                )
                zeros[size] = zero_state(self.builder, first, size, f"{name}_zero{cell.suffix}")
            state.append(self._added(zeros[size], tensor, index, part))
        return tuple(state)

    def _added(self, zero: Any, constant: Any, index: int, part: str) -> Any:
        """``zero`` plus the state of one cell in a constant, which may be learned."""
        known = None if constant is None else self.builder.known(constant)
        if constant is None or (known is not None and not known.requires_grad and not known.any()):
            return zero
        own = self.builder.call(
            "getitem", (constant, None), {"index": (index,)}, part=f"{part}_constant"
        )
        return self.builder.call("add", (zero, own), part=part)

    def _sequence(
        self, cell: Cell, x: Any, dim: int, state: State, reverse: bool
    ) -> tuple[list[Any], State]:
        """The hidden states of all steps in order of time, and the final state."""
        projected = cell.from_input(x)
        steps = list(self.builder.items(cell.part("unbind", (projected,), "steps", {"dim": dim})))
        hidden = []
        for step in reversed(steps) if reverse else steps:
            state = self.step(cell, step, state)
            hidden.append(state[0])
        return hidden[::-1] if reverse else hidden, state

    def _stacked(self, tensors: Sequence[Any], dim: int, part: str) -> Any:
        if len(tensors) == 1:
            return self.builder.call("unsqueeze", tensors, {"dim": dim}, part=part)
        return self.builder.call("stack", tensors, {"dim": dim}, part=part)

    def _joined(self, sequences: list[Any], layer: int) -> Any:
        x = sequences[0]
        if len(sequences) > 1:
            x = self.builder.call("cat", sequences, {"dim": -1}, part=f"cat_l{layer}")
        if self.attrs["dropout"] and layer < self.attrs["num_layers"] - 1:
            attrs = {"kind": "dropout", "p": self.attrs["dropout"], "training": None}
            x = self.builder.call("dropout", (x,), attrs, part=f"dropout_l{layer}")
        return x

    def final(self, finals: Sequence[State], index: int) -> Any:
        """The final states of all cells, [cells, N, size]."""
        name = ("h_n", "c_n")[index]
        return self._stacked([state[index] for state in finals], 0, name)


ATTRS = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
"""Attributes of a recurrent module that decide its result."""

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def cell_suffix(layer: int, reverse: bool) -> str:
    """How torch ends the names of a cell's parameters."""
    return f"_l{layer}{'_reverse' if reverse else ''}"


def weight_names(bias: bool, count: int) -> tuple[str, ...]:
    """Which of ``WEIGHTS`` a cell with ``count`` parameters has, in torch's order."""
    biases = WEIGHTS[2:4] if bias else ()
    projection = WEIGHTS[4:] if count % 2 else ()
    return (*WEIGHTS[:2], *biases, *projection)


def state_sizes(recurrent: tuple[int, ...], projection: tuple[int, ...] | None) -> tuple[int, int]:
    """Sizes of h and c from the shapes of weight_hh and (or ``None``) weight_hr."""
    return recurrent[1], recurrent[1] if projection is None else projection[1]


def all_weight_names(module: nn.RNNBase) -> list[str]:
    """All parameters of a recurrent module in torch's order."""
    count = (4 if module.bias else 2) + bool(module.proj_size)
    return [
        f"{name}{cell_suffix(layer, bool(reverse))}"
        for layer in range(module.num_layers)
        for reverse in range(2 if module.bidirectional else 1)
        for name in weight_names(module.bias, count)
    ]


def refuse_packed(name: str, input: Any) -> None:
    """Raise ``NotImplementedError`` for what is no tensor."""
    if isinstance(input, tuple):
        raise NotImplementedError(
            f"{name} of a PackedSequence has no integer form: its steps depend on the data. Pass a "
            "padded tensor of one length and mask what lies behind the end of each sequence"
        )


def bind_module(name: str, states: int, extra: Sequence[str]) -> Callable[..., Bound]:
    """``bind`` of the module; ``hx`` is one tensor, or a pair for an LSTM."""

    def bind(module: nn.RNNBase, input: Any, hx: Any = None) -> Bound:
        refuse_packed(name, input)
        given = tuple(hx) if states == 2 and hx is not None else (hx,) * states
        attrs = {key: getattr(module, key) for key in (*ATTRS, *extra)}
        weights = (None,) * len(all_weight_names(module))
        return Bound((input, *given, *weights), {**attrs, "training": None, "flat": False})

    return bind


def bind_function(name: str, states: int, extra: Mapping[str, Any]) -> Callable[..., Bound]:
    """``bind`` of ``torch.lstm`` and its likes, with all weights in one list."""

    def bind(
        input: Any, hx: Any, params: Any, has_biases: Any, num_layers: Any, dropout: Any,
        train: Any, bidirectional: Any, batch_first: Any = None,
    ) -> Bound:  # fmt: skip
        if not isinstance(params, list | tuple):
            refuse_packed(name, ())
        given = tuple(hx) if states == 2 else (hx,)
        values = (num_layers, has_biases, batch_first, dropout, bidirectional)
        attrs = {**dict(zip(ATTRS, values, strict=True)), "training": train, **extra, "flat": True}
        return Bound((input, *given, *params), attrs)

    return bind


def decomposer(
    step_of: Callable[[Mapping[str, Any]], Step], states: int
) -> Callable[[DecomposeBuilder, Bound], Any]:
    """``decompose`` of a layer with these cells: ``(y, h_n)``, or ``(y, (h_n, c_n))``."""

    def decompose(builder: DecomposeBuilder, bound: Bound) -> Any:
        x, *rest = bound.tensors
        given, weights = rest[:states], rest[states:]
        attrs = bound.attrs
        batched = len(builder.shape(x)) == 3
        if not batched:
            attrs = {**attrs, "batch_first": False}
            x = builder.call("unsqueeze", (x,), {"dim": 1}, part="batch")
            given = [_batch_of_state(builder, t, n) for t, n in zip(given, "hc", strict=False)]
        dim = 1 if attrs["batch_first"] else 0
        builder.require_size(
            bound.tensors[0], dim, f"the layer is unrolled for {builder.shape(x)[dim]} steps"
        )
        layers = Layers(builder, step_of(attrs), states, attrs, weights)
        y, finals = layers.run(x, given)
        results = [y, *(layers.final(finals, i) for i in range(states))]
        if not batched:
            names = ("y", "h", "c")
            results = [
                builder.call("squeeze", (r,), {"dim": 1}, part=f"{n}_alone")
                for r, n in zip(results, names, strict=False)
            ]
        return _results(results[0], results[1:], attrs)

    return decompose


def _batch_of_state(builder: DecomposeBuilder, state: Any, name: str) -> Any:
    if state is None:
        return None
    return builder.call("unsqueeze", (state,), {"dim": 1}, part=f"{name}_batch")


def float_layer(functions: Functions, states: int) -> Callable[..., Any]:
    """torch's own function on a module's arguments, with or without a batch."""

    def kernel(input: torch.Tensor, *tensors: Any, **attrs: Any) -> Any:
        given, weights = list(tensors[:states]), list(tensors[states:])
        batched = input.dim() == 3
        if not batched:
            input = input.unsqueeze(1)
            given = [None if t is None else t.unsqueeze(1) for t in given]
        batch_first = attrs["batch_first"] and batched
        if given[0] is None:
            given = _zeros(input, input.shape[0 if batch_first else 1], weights, attrs)[:states]
        function = next(f for f, own in functions.items() if own.items() <= attrs.items())
        results = function(
            input, given[0] if states == 1 else given, weights, attrs["bias"], attrs["num_layers"],
            attrs["dropout"], bool(attrs["training"]), attrs["bidirectional"], batch_first,
        )  # fmt: skip
        y, *finals = results if batched else [result.squeeze(1) for result in results]
        return _results(y, finals, attrs)

    return kernel


def _results(y: Any, finals: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
    """``(y, h_n)`` or ``(y, (h_n, c_n))``; torch's functions give ``(y, h_n, c_n)``."""
    if attrs["flat"] or len(finals) == 1:
        return (y, *finals)
    return y, tuple(finals)


def _zeros(
    x: torch.Tensor, batch: int, weights: Sequence[Any], attrs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The states that torch takes where none is given."""
    cells = attrs["num_layers"] * (2 if attrs["bidirectional"] else 1)
    count = len(weights) // cells
    projection = tuple(weights[count - 1].shape) if count % 2 else None
    sizes = state_sizes(tuple(weights[1].shape), projection)
    return [x.new_zeros(cells, batch, size) for size in sizes]


def _flops(states: int) -> Callable[..., int]:
    def flops(attrs: Mapping[str, Any], inputs: Sequence[Any], output: tuple[int, ...]) -> int:
        parts = (shape for shape in inputs[1 + states :] if len(shape or ()) == 2)
        sizes: list[int] = [shape[0] * shape[1] for shape in parts]
        rows: int = math.prod(inputs[0][:-1])
        return sum(sizes) * rows

    return flops


def layer_spec(
    name: str,
    cls: type[nn.RNNBase],
    functions: Functions,
    step_of: Callable[[Mapping[str, Any]], Step],
    *,
    states: int,
    gates: int,
    doc: str,
) -> OpSpec:
    """The entry of a recurrent layer. ``gates``: how often its weights hold ``hidden_size`` rows.

    ``functions``: torch's functions for it, and the attributes that tell which one it is.
    """
    decompose = decomposer(step_of, states)
    extra = next(iter(functions.values()))

    return OpSpec(
        name=name,
        family="recurrent",
        rule=Rule.DECOMPOSED,
        roles=("input", *("h_0", "c_0")[:states], "*weights"),
        targets=(
            ModuleTarget(cls, bind_module(name, states, tuple(extra)), many=all_weight_names),
            *(FunctionTarget(f, bind_function(name, states, own)) for f, own in functions.items()),
        ),
        float_kernel=float_layer(functions, states),
        lower=lower_by_parts(decompose),
        decompose=decompose,
        march=limits.NOT_BERNOULLI,
        flops=_flops(states),
        sample=sampler(states, gates, extra),
        doc=doc,
    )
