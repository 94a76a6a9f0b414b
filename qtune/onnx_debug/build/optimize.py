"""The optimized float model: what the calibrated one is made from.

Our opset, functions inlined, constants folded, dropouts and identities gone, batch norms folded
into the GEMMs before them, shapes inferred, unique names of nodes. Names of inputs, outputs and of
the tensors that stay are those of the source. Nothing changes beyond float rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx import shape_inference

from qtune.errors import ArgumentError
from qtune.hbir.onnx_import import source as files
from qtune.hbir.onnx_import.fold import fold
from qtune.hbir.onnx_import.inline import inlined
from qtune.hbir.onnx_import.load import own_operators
from qtune.hbir.onnx_import.names import with_unique_names
from qtune.hbir.onnx_import.opset import at_our_opset
from qtune.hbir.onnx_import.pairs import unified
from qtune.hbir.onnx_import.support import refuse_unsupported
from qtune.onnx_debug.build.join import fold_batch_norms, fold_biases
from qtune.onnx_debug.build.kept import Kept
from qtune.onnx_debug.build.take_out import taken_out
from qtune.onnx_debug.build.written_grids import with_calibrations_named

Shapes = Mapping[str, Sequence[int]]


def optimized(source: files.Source, shapes: Shapes | None = None) -> onnx.ModelProto:
    """Return the optimized model of a path, bytes or a ``ModelProto``, which stays as it is.

    ``shapes``: sizes of inputs, which replace symbolic ones. A symbolic first size alone may stay
    (a free batch). Raises ``OnnxImportError`` for what is no valid model of standard operators,
    ``ArgumentError`` for shapes that do not fit its inputs.
    """
    return optimized_with_grids(source, shapes)[0]


def optimized_with_grids(
    source: files.Source, shapes: Shapes | None = None
) -> tuple[onnx.ModelProto, Kept]:
    """As :func:`optimized`, and the grids that the file brings, which were taken out."""
    proto = unified(with_unique_names(at_our_opset(files.read(source))))
    proto = inlined(proto, own_operators())
    proto = files.with_sizes(proto, static_sizes(proto, shapes or {}))
    model = files.as_ir(proto)
    fold(model)
    refuse_unsupported(model)
    _drop_dropouts(model.graph)
    _drop_identities(model.graph)
    _name_sums(model.graph)
    fold_batch_norms(model.graph)
    fold_biases(model.graph)
    passes.RemoveUnusedNodesPass()(model)
    made = with_unique_names(ir.to_proto(model))
    kept = taken_out(with_calibrations_named(made))
    return shape_inference.infer_shapes(made, data_prop=True), kept


def static_sizes(proto: onnx.ModelProto, shapes: Shapes) -> dict[str, list[int]]:
    """Sizes for the inputs that are named in ``shapes``; every other one must need none."""
    given = files.open_sizes(proto)
    unknown = sorted(set(shapes) - set(given))
    if unknown:
        raise ArgumentError(
            f"input_dict names {', '.join(unknown)}; the model has the inputs {', '.join(given)}"
        )
    for name, wanted in shapes.items():
        sizes = given[name]
        if len(sizes) != len(wanted) or any(
            size not in (None, want) for size, want in zip(sizes, wanted, strict=True)
        ):
            raise ArgumentError(
                f"input_dict: input {name!r} has the shape {_text(sizes)} in the model, got "
                f"input_shape {list(wanted)}"
            )
    needed = [n for n, sizes in given.items() if n not in shapes and None in sizes[1:]]
    if needed:
        lines = "".join(f"\n  - {name!r}: {_text(given[name])}" for name in needed)
        hint = ", ".join(f"{name!r}: {{'input_shape': [...]}}" for name in needed)
        raise ArgumentError(
            "only the first size of an input may be free; give all sizes of these as "
            f"input_dict={{{hint}}}:{lines}"
        )
    return {name: [int(size) for size in wanted] for name, wanted in shapes.items()}


def _text(sizes: Sequence[int | None]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in sizes)}]"


def _name_sums(graph: ir.Graph) -> None:
    """A Sum of two is an Add, which can join a GEMM."""
    for node in graph:
        if node.op_type == "Sum" and not node.domain and len(node.inputs) == 2:
            node.op_type = "Add"


def _drop_dropouts(graph: ir.Graph) -> None:
    """A dropout that only hands its input on becomes an Identity."""
    for node in list(graph):
        if node.op_type != "Dropout" or node.domain:
            continue
        mask = node.outputs[1] if len(node.outputs) > 1 else None
        training = node.inputs[2] if len(node.inputs) > 2 else None
        trains = training is not None and (
            training.const_value is None or bool(training.const_value.numpy())
        )
        if trains or (mask is not None and (mask.uses() or mask.is_graph_output())):
            continue
        copy = ir.node("Identity", [node.inputs[0]], name=node.name)
        _replace(graph, node, copy)


def _replace(graph: ir.Graph, node: ir.Node, new: ir.Node) -> None:
    old, value = node.outputs[0], new.outputs[0]
    name, value.type, value.shape = old.name, old.type, old.shape
    graph.insert_before(node, new)
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    value.name = name


def _drop_identities(graph: ir.Graph) -> None:
    """Identities go, but for those that give an output the name of something that has its own.

    So do casts to the type that the tensor has.
    """
    for node in list(graph):
        source = _handed_on(node)
        if source is None:
            continue
        value = node.outputs[0]
        if value.is_graph_output():
            maker = source.producer()
            if maker is None or source.is_graph_output():
                continue
        is_output, name = value.is_graph_output(), value.name
        ir.convenience.replace_all_uses_with(value, source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        if is_output:
            source.name = name


def _handed_on(node: ir.Node) -> ir.Value | None:
    """What an identity, or a cast to the type of its input, hands on; else ``None``."""
    source = node.inputs[0] if node.inputs and not node.domain else None
    if source is None or node.op_type == "Identity":
        return source
    wanted = node.attributes.get("to")
    same = wanted is not None and source.dtype is not None and wanted.value == source.dtype.value
    return source if node.op_type == "Cast" and same else None
