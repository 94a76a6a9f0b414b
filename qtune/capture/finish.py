"""From a finished run to a :class:`~qtune.capture.graph.GraphModel`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx, nn

from qtune.capture.branches import BLOCK
from qtune.capture.folding import fold_constants
from qtune.capture.graph import GraphModel
from qtune.capture.guards import CaptureReport, guards_of
from qtune.capture.identity import name_calls
from qtune.capture.interface import refuse_opaque
from qtune.capture.nodes import tensors_in
from qtune.capture.restore import Restorer
from qtune.capture.sizes import is_symbol
from qtune.capture.structure import Spec, flatten, leaf_names
from qtune.capture.tape import Tape
from qtune.errors import CaptureError

_REMOVABLE = ("size", "item", "attribute", "value")
"""Kinds of nodes that do nothing but give a value."""


def write_output(tape: Tape, output: Any) -> Spec:
    """Append the output node, a flat tuple of the result's leaves; return their structure."""
    leaves, spec = flatten(output)
    pairs = zip(leaf_names(spec), leaves, strict=True)
    values = tuple(_output_value(tape, name, leaf) for name, leaf in pairs)
    tape.emit("output", "output", (values,), kind="output")
    return spec


def _output_value(tape: Tape, name: str, leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        tape.origins.refuse_unseen(leaf)
        return tape.node_of(leaf)
    if is_symbol(leaf):
        return tape.symbol_node(leaf)
    if isinstance(leaf, slice):
        return tape.convert(leaf)
    refuse_opaque(f"output {name!r}" if name else "the output", leaf)
    return leaf


def write_buffers(tape: Tape, restorer: Restorer) -> None:
    """Append what keeps the state: ``self.mean = new`` becomes a copy into the buffer."""
    for before, now in restorer.rebound_buffers():
        entry = tape.ledger.find(now) if isinstance(now, Tensor) else None
        if entry is None or entry.node not in tape.changing:
            continue
        if not isinstance(before, Tensor) or before.shape != now.shape or before.dtype != now.dtype:
            raise CaptureError(
                f"forward replaces a buffer by a tensor of another shape or dtype "
                f"({_sort(before)} by {_sort(now)}), which a recorded graph can't keep; pass such "
                "state in and out of forward"
            )
        args = (tape.node_of(before), tape.node_of(now))
        tape.emit("call_method", "copy_", args, value=before)


def _sort(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)


def notes_on_state(tape: Tape, restorer: Restorer, names: dict[int, str]) -> tuple[str, ...]:
    """Plain attributes that forward sets to computed tensors: a replay doesn't."""
    notes = [*restorer.random_notes(), *_notes_on_inputs(tape)]
    for module, name, value in restorer.rebound_attributes():
        entries = [tape.ledger.find(tensor) for tensor in tensors_in(value)]
        if any(entry is not None and entry.node in tape.changing for entry in entries):
            path = names.get(id(module), "")
            notes.append(
                f"forward sets {f'{path}.{name}' if path else name} to a computed tensor; "
                "the recorded graph leaves the attribute alone"
            )
    return tuple(notes)


def _notes_on_inputs(tape: Tape) -> Iterator[str]:
    """Inputs that forward changes in place: a recorded graph does so too, a prepared one not."""
    for entry in tape.ledger.entries():
        is_input = entry.first.op == "placeholder"
        if is_input and (entry.node is not entry.first or entry.missing):
            yield (
                f"forward changes its input {entry.first.target!s} in place; a prepared model "
                "computes the same and leaves the caller's tensor as it is"
            )


def remove_unused(graph: fx.Graph) -> None:
    """Erase nodes that only give a value which nobody uses."""
    for node in reversed(list(graph.nodes)):
        if node.meta.get("kind") in _REMOVABLE and not node.users:
            graph.erase_node(node)


def build(
    tape: Tape, model: nn.Module, call: dict[str, Any], out_spec: Spec, notes: tuple[str, ...]
) -> GraphModel:
    """The recorded model. ``call``: ``in_spec``, ``signature`` and ``constants``."""
    tape.origins.copy_changed()
    fold_constants(tape)
    remove_unused(tape.graph)
    name_calls([node for node in tape.graph.nodes if BLOCK in node.meta])
    used = {str(node.target) for node in tape.graph.nodes if node.op == "get_attr"}
    kept = {name: item for name, item in tape.origins.constants.items() if name in used}
    report = CaptureReport(
        constants=tuple(info for _, info in kept.values()),
        guards=guards_of(tape.graph),
        notes=notes,
    )
    recorded = GraphModel(model, tape.graph, out_spec=out_spec, report=report, **call)
    for name, (value, _) in kept.items():
        recorded.add_constant(name, value)
    return recorded
