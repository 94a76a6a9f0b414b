"""insert_transpose and insert_split: other layouts and other numbers of arguments.

An input that goes to a QuantStub is quantized first and moved as codes, so that the Quantize stays
next to the input and can be removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qtune.errors import ArgumentError
from qtune.hbir.argument import Argument
from qtune.hbir.domain import DOMAIN
from qtune.hbir.passes.edit import (
    Edit,
    Grid,
    before_convert,
    first_node,
    grid_of,
    shape_of,
    stubs_take_codes,
)
from qtune.hbir.passes.ports import close_batch, replace_argument
from qtune.hbir.verify import MAX_ARGUMENTS
from qtune.ops.kernel import Attrs

PIXELS = "Pixels"


@dataclass(frozen=True, slots=True)
class Entry:
    """How the numbers of an input enter the graph.

    ``target``: the value that stands for the input. ``pixels``: attributes of the Pixels node
    between the two, for a picture of bytes. ``grid``: where a QuantStub puts the numbers.
    """

    target: ir.Value
    pixels: Attrs | None
    grid: Grid | None

    def open(self, edit: Edit, value: ir.Value) -> ir.Value:
        """``value``, a new input, as the numbers that the input stood for."""
        shape = shape_of(value)
        if self.pixels is not None:
            real = (ir.DataType.FLOAT, shape)
            return edit.emit(PIXELS, [value], dict(self.pixels), real, domain=DOMAIN)
        return value if self.grid is None else edit.fake_quant(value, self.grid)


def entry_of(value: ir.Value) -> Entry:
    """The entry of a graph input."""
    users = [use.node for use in value.uses()]
    if len(users) == 1 and users[0].domain == DOMAIN and users[0].op_type == PIXELS:
        target = users[0].outputs[0]
        attrs = {key: attribute.value for key, attribute in users[0].attributes.items()}
        return Entry(target, attrs, grid_of(target))
    is_float = value.dtype is not None and value.dtype.is_floating_point()
    return Entry(value, None, grid_of(value) if is_float else None)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def insert_transpose(argument: Argument, permutes: Sequence[int]) -> list[Argument]:
    """Let dimension ``i`` of the argument become dimension ``permutes[i]``."""
    index = before_convert(argument, "insert_transpose")
    rank = len(argument.shape)
    is_list = isinstance(permutes, (Sequence, np.ndarray)) and all(map(_is_whole, permutes))
    if not is_list or sorted(permutes) != list(range(rank)):
        raise ArgumentError(
            f"insert_transpose({argument.name!r}): permutes must hold each of 0..{rank - 1} once, "
            f"got {permutes!r}"
        )
    order = [int(place) for place in permutes]
    if order[:1] != [0]:
        close_batch(argument.function)
    axes = [int(axis) for axis in np.argsort(order)]
    shape = [argument.shape[axis] for axis in axes]
    edit = Edit(argument.function.model)
    op = edit.operator_name(f"{argument.name}_transpose")
    with edit.emitting_for(op):
        if argument.kind == "inputs":
            return _transpose_input(edit, argument, index, order, shape)
        return _transpose_output(edit, argument, index, axes, shape)


def _transpose_input(
    edit: Edit, argument: Argument, index: int, order: list[int], shape: list[int]
) -> list[Argument]:
    old, name = argument.value, argument.name
    entry = entry_of(old)
    edit.free_name(old, f"{name}_before_transpose")
    new = edit.new_input(name, _element(old), shape)
    value = entry.open(edit, new)
    like = (value.dtype, argument.shape)
    moved = edit.emit("Transpose", [value], {"perm": order}, like)
    return settle_input(edit, argument, index, entry, [new], edit.on_grid(moved, entry.grid))


def settle_input(
    edit: Edit,
    argument: Argument,
    index: int,
    entry: Entry,
    inputs: Sequence[ir.Value],
    result: ir.Value,
) -> list[Argument]:
    """Let ``result``, made from the new ``inputs``, stand where the old input stood."""
    before = first_node(edit.model)
    if entry.grid is not None:
        stubs_take_codes(entry.target)
    for use in list(entry.target.uses()):
        use.node.replace_input_with(use.idx, result)
    edit.place(before)
    arguments = replace_argument(argument.function, "inputs", index, inputs)
    if entry.target.is_graph_output():
        outputs = edit.graph.outputs
        outputs[outputs.index(entry.target)] = result
    edit.finish()
    return arguments


def _transpose_output(
    edit: Edit, argument: Argument, index: int, axes: list[int], shape: list[int]
) -> list[Argument]:
    old, name = argument.value, argument.name
    edit.free_name(old, f"{name}_before_transpose")
    source, barrier = _before_barrier(old)
    value = edit.emit("Transpose", [source], {"perm": axes}, (old.dtype, shape))
    return _settle_outputs(edit, argument, index, [(value, name, shape)], barrier)


def _settle_outputs(
    edit: Edit,
    argument: Argument,
    index: int,
    results: Sequence[tuple[ir.Value, str, Sequence[int]]],
    barrier: ir.Node | None,
) -> list[Argument]:
    values = []
    for value, name, shape in results:
        value.name = f"{name}_moved" if barrier is not None else name
        if barrier is not None:
            value = edit.emit("Barrier", [value], {}, (argument.value.dtype, shape), domain=DOMAIN)
            value.name = name
            node = value.producer()
            if node is not None and len(results) == 1:
                node.metadata_props.update(barrier.metadata_props)
        values.append(value)
    edit.place(barrier)
    arguments = replace_argument(argument.function, "outputs", index, values)
    edit.finish()
    return arguments


def _before_barrier(value: ir.Value) -> tuple[ir.Value, ir.Node | None]:
    """What a DeQuantStub takes, so that codes are moved; ``value`` itself without one."""
    node = value.producer()
    if node is None or (node.domain, node.op_type) != (DOMAIN, "Barrier"):
        return value, None
    source = node.inputs[0]
    return (value, None) if source is None else (source, node)


def insert_split(argument: Argument, dim: int) -> list[Argument]:
    """Replace the argument by one of size 1 for each index of ``dim``."""
    index = before_convert(argument, "insert_split")
    rank = len(argument.shape)
    if not _is_whole(dim) or not -rank <= dim < rank:
        raise ArgumentError(
            f"insert_split({argument.name!r}): the argument has the dimensions 0..{rank - 1}, got "
            f"dim={dim!r}"
        )
    axis = dim % rank
    arguments = len(getattr(argument.function, argument.kind)) - 1 + argument.shape[axis]
    if arguments > MAX_ARGUMENTS:
        raise ArgumentError(
            f"insert_split({argument.name!r}): dimension {dim} has {argument.shape[axis]} indices, "
            f"and a function has at most {MAX_ARGUMENTS} {argument.kind}"
        )
    if axis == 0:
        close_batch(argument.function)
    part = [1 if place == axis else size for place, size in enumerate(argument.shape)]
    edit = Edit(argument.function.model)
    with edit.emitting_for(edit.operator_name(f"{argument.name}_split")):
        if argument.kind == "inputs":
            return _split_input(edit, argument, index, axis, part)
        return _split_output(edit, argument, index, axis, part)


def _split_input(
    edit: Edit, argument: Argument, index: int, axis: int, part: list[int]
) -> list[Argument]:
    old, name = argument.value, argument.name
    entry = entry_of(old)
    edit.free_name(old, f"{name}_before_split")
    count = argument.shape[axis]
    new = [edit.new_input(f"{name}_{place}", _element(old), part) for place in range(count)]
    values = [entry.open(edit, value) for value in new]
    like = (values[0].dtype, argument.shape)
    joined = edit.emit("Concat", values, {"axis": axis}, like)
    return settle_input(edit, argument, index, entry, new, edit.on_grid(joined, entry.grid))


def _split_output(
    edit: Edit, argument: Argument, index: int, axis: int, part: list[int]
) -> list[Argument]:
    old, name = argument.value, argument.name
    edit.free_name(old, f"{name}_before_split")
    source, barrier = _before_barrier(old)
    axes = edit.constant(np.array([axis], dtype=np.int64), "axes")
    results = []
    for place in range(argument.shape[axis]):
        bounds = [edit.constant(np.array([v], dtype=np.int64)) for v in (place, place + 1)]
        value = edit.emit("Slice", [source, *bounds, axes], {}, (old.dtype, part))
        results.append((value, f"{name}_{place}", part))
    return _settle_outputs(edit, argument, index, results, barrier)


def _element(value: ir.Value) -> ir.DataType:
    return ir.DataType.FLOAT if value.dtype is None else value.dtype
