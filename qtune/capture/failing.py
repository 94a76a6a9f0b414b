"""Which operator of a graph an error of torch came from: torch's own text does not say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from qtune.errors import QtuneError

_HEAD = "qtune: raised by "


def name_operator(
    error: Exception, node: fx.Node, sources: Sequence[fx.Node], values: Sequence[Any]
) -> None:
    """Add a note to an error that is not qtune's own: the operator, what it got, what to do.

    ``sources``: the nodes among the arguments of ``node``; ``values``: what they gave in this run.
    """
    notes = getattr(error, "__notes__", ())
    if isinstance(error, QtuneError) or any(note.startswith(_HEAD) for note in notes):
        return
    pairs = [(of, got) for of, got in zip(sources, values, strict=True) if isinstance(got, Tensor)]
    got = ", ".join(_text(value.dtype, value.shape, value.device) for _, value in pairs)
    known = [of.meta for of, _ in pairs if "shape" in of.meta and "dtype" in of.meta]
    recorded = ", ".join(_text(meta["dtype"], meta["shape"]) for meta in known)
    error.add_note(
        f"{_HEAD}'{node.target if node.op == 'call_module' else node.name}' "
        f"({node.meta.get('source') or 'no line of the model'}) on {got or 'no tensor'}"
        + (f"; recorded with {recorded}" if recorded else "")
        + ". Pass inputs of the rank, channels, size, dtype and device of the example that the "
        "model was prepared with. A layer that was replaced or removed since then: change the "
        "float model instead, and prepare it again"
    )


def _text(dtype: Any, shape: Sequence[Any], device: Any = "cpu") -> str:
    place = "" if str(device) == "cpu" else f" on {device}"
    return f"{str(dtype).removeprefix('torch.')} ({', '.join(map(str, shape))}){place}"
