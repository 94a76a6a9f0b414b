"""One step of each recurrent cell, in torch's gate order (numerics.md section 3).

Inside all is int16; the hidden state, which the next step multiplies with weights, has the
configured dtype. All steps call the same parts, so each part has one scale over all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qtune.dtype import QuantDType, qint16
from qtune.ops.spec import DecomposeBuilder

State = tuple[Any, ...]
"""``(h,)``, or ``(h, c)`` of an LSTM; each [N, size]."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Emits the parts of one cell; ``suffix`` (``_l0_reverse``) ends their names.

    ``weights``: weight_ih, weight_hh, bias_ih, bias_hh, weight_hr; ``None`` for absent ones.
    """

    builder: DecomposeBuilder
    suffix: str
    weights: Sequence[Any]

    def part(
        self,
        op: str,
        tensors: Sequence[Any],
        name: str,
        attrs: Mapping[str, Any] | None = None,
        dtype: QuantDType | None = qint16,
    ) -> Any:
        """One part, int16 unless ``dtype`` says otherwise (``None``: the configured one)."""
        return self.builder.call(
            op, tensors, attrs, part=f"{name}{self.suffix}", forced_dtype=dtype
        )

    def from_input(self, x: Any) -> Any:
        """``x @ weight_ih.T + bias_ih``, for one step or for all of them at once."""
        return self.part("linear", (x, self.weights[0], self.weights[2]), "ih")

    def from_hidden(self, h: Any) -> Any:
        """``h @ weight_hh.T + bias_hh``."""
        return self.part("linear", (h, self.weights[1], self.weights[3]), "hh")

    def split(self, x: Any, count: int, name: str) -> tuple[Any, ...]:
        """The gates of ``x``, which lie behind one another in its last dimension."""
        return self.builder.items(self.part("chunk", (x,), name, {"chunks": count, "dim": -1}))


Step = Callable[[Cell, Any, State], State]
"""``step(cell, from_input, state)``: the next state."""


def lstm_step(cell: Cell, from_input: Any, state: State) -> State:
    """c' = f c + i g, h' = o tanh(c'), and its projection where the cell has one."""
    h, c = state
    gates = cell.part("add", (from_input, cell.from_hidden(h)), "gates")
    i, f, g, o = cell.split(gates, 4, "split")
    kept = cell.part("mul", (cell.part("sigmoid", (f,), "f"), c), "fc")
    i, g = cell.part("sigmoid", (i,), "i"), cell.part("tanh", (g,), "g")
    c = cell.part("add", (kept, cell.part("mul", (i, g), "ig")), "c")
    o, tanh_c = cell.part("sigmoid", (o,), "o"), cell.part("tanh", (c,), "tanh_c")
    h = cell.part("mul", (o, tanh_c), "h", dtype=None)
    if cell.weights[4] is not None:
        h = cell.part("linear", (h, cell.weights[4], None), "hr", dtype=None)
    return h, c


def gru_step(cell: Cell, from_input: Any, state: State) -> State:
    """n = tanh(x_n + r h_n), h' = n + z (h - n)."""
    (h,) = state
    x_r, x_z, x_n = cell.split(from_input, 3, "split_ih")
    h_r, h_z, h_n = cell.split(cell.from_hidden(h), 3, "split_hh")
    r = cell.part("sigmoid", (cell.part("add", (x_r, h_r), "add_r"),), "r")
    z = cell.part("sigmoid", (cell.part("add", (x_z, h_z), "add_z"),), "z")
    n = cell.part("add", (x_n, cell.part("mul", (r, h_n), "rh")), "add_n")
    n = cell.part("tanh", (n,), "n")
    moved = cell.part("mul", (z, cell.part("sub", (h, n), "hn")), "zhn")
    return (cell.part("add", (n, moved), "h", dtype=None),)


def rnn_step(nonlinearity: str) -> Step:
    """h' = tanh(x + h), or relu; the step of a plain cell."""

    def step(cell: Cell, from_input: Any, state: State) -> State:
        hidden = cell.from_hidden(state[0])
        if nonlinearity == "relu":  # relu keeps the scale and the dtype of the sum
            total = cell.part("add", (from_input, hidden), "add", dtype=None)
            return (cell.part("relu", (total,), "h", dtype=None),)
        total = cell.part("add", (from_input, hidden), "add")
        return (cell.part("tanh", (total,), "h", dtype=None),)

    return step


def zero_state(builder: DecomposeBuilder, x: Any, size: int, part: str = "zero") -> Any:
    """Zeros [N, size] for the inputs ``x`` [N, ...] of one step.

    They are the input clamped to 0, so that they follow the batch and lie on a grid: the first step
    is then one like all others.
    """
    rank = len(builder.shape(x))
    first = builder.call(
        "getitem", (x, None), {"index": (Ellipsis, slice(0, 1))}, part=f"{part}_of"
    )
    zero = builder.call("clamp_scalar", (first,), {"min": 0.0, "max": 0.0}, part=part)
    sizes = (-1,) * (rank - 1) + (size,)
    return builder.call("expand", (zero,), {"sizes": sizes}, part=f"{part}_state")
