"""``import_onnx``: from an ONNX file of any tool to a float HBIR module (stage "qat")."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir

from qtune.errors import HbirError, OnnxImportError
from qtune.hbir.attributes import node_attributes
from qtune.hbir.builder import META_BATCH, META_IMPORTED, META_STAGE, GraphBuilder
from qtune.hbir.module import META_DESCS, META_INPUTS, META_NATIVE, META_OUTPUTS, HbirModule
from qtune.hbir.onnx_import import source as files
from qtune.hbir.onnx_import.fold import fold
from qtune.hbir.onnx_import.form import rewrites
from qtune.hbir.onnx_import.graph import Walk
from qtune.hbir.onnx_import.inline import inlined
from qtune.hbir.onnx_import.names import with_unique_names
from qtune.hbir.onnx_import.opset import at_our_opset
from qtune.hbir.onnx_import.pairs import unified
from qtune.hbir.verify import verify
from qtune.ops.registry import kernels


def import_onnx(
    source: files.Source,
    *,
    name: str | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> HbirModule:
    """Return the HBIR module (stage "qat") of an ONNX model, which stays as it is.

    ``source``: a path (external data beside it is found), the file's bytes or a ``ModelProto``;
    opsets are brought to ours, functions are replaced by their bodies, constants are folded.
    ``input_shapes``: sizes of inputs whose shape is symbolic. A symbolic first size alone is a
    free batch where the graph allows it.

    A pair of QuantizeLinear and DequantizeLinear becomes one FakeQuantHalfEven: imported nodes
    round ties to even, and their zero point becomes the range of the codes. Taken are int8 and
    uint8 activations with one scale, int8 weights without zero point (per tensor or per channel)
    and int32 biases.

    Raises ``OnnxImportError`` with one line for every operator or form that has no place here.
    """
    proto = files.read(source)
    proto = unified(with_unique_names(at_our_opset(proto)))
    proto = inlined(proto, own_operators())
    given = files.open_sizes(proto)
    shapes = _shapes(given, input_shapes or {})
    label = name or proto.graph.name or "forward"
    draft = _build(proto, label, shapes)
    metadata = {
        META_STAGE: "qat",
        META_IMPORTED: "1",
        META_NATIVE: "0",
        META_DESCS: json.dumps({}),
        META_INPUTS: json.dumps(_structure(len(draft.graph.inputs))),
        META_OUTPUTS: json.dumps({"list": [{"leaf": i} for i in range(len(draft.graph.outputs))]}),
    }
    model = draft.finish(metadata)
    is_open = _is_open(proto, label, given, shapes, model.graph)
    model.metadata_props[META_BATCH] = "open" if is_open else "fixed"
    verify(model, "qat")
    return HbirModule(model)


def own_operators() -> set[str]:
    """Standard operators that have a form here; all others are replaced by their definition."""
    own = {op_type for domain, op_type in kernels() if not domain}
    return own | set(rewrites())


def _structure(count: int) -> dict[str, object]:
    args = {"tuple": [{"leaf": i} for i in range(count)]}
    return {"dict": [["args", args], ["kwargs", {"dict": []}]]}


def _shapes(
    given: Mapping[str, list[int | None]], wanted: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    unknown = sorted(set(wanted) - set(given))
    if unknown:
        raise OnnxImportError(
            f"input_shapes names {', '.join(unknown)}; the model has the inputs {', '.join(given)}"
        )
    needed = [n for n, sizes in given.items() if n not in wanted and None in sizes[1:]]
    if needed:
        lines = "".join(f"\n  - {name!r}: {given[name]}" for name in needed)
        hint = ", ".join(f"{name!r}: [...]" for name in needed)
        raise OnnxImportError(
            "only the first size of an input may be free; pass all sizes of these as "
            f"input_shapes={{{hint}}}:{lines}"
        )
    return {name: _shape(name, sizes, wanted.get(name)) for name, sizes in given.items()}


def _shape(name: str, sizes: Sequence[int | None], wanted: Sequence[int] | None) -> list[int]:
    if wanted is not None:
        fits = len(wanted) == len(sizes) and all(
            size in (None, int(want)) for size, want in zip(sizes, wanted, strict=True)
        )
        if not fits:
            raise OnnxImportError(
                f"input_shapes[{name!r}] is {list(wanted)}, the model has {list(sizes)}"
            )
        return [int(want) for want in wanted]
    return [1 if size is None else size for size in sizes]


def _build(proto: onnx.ModelProto, name: str, shapes: Mapping[str, Sequence[int]]) -> GraphBuilder:
    model = files.as_ir(files.with_sizes(proto, shapes))
    fold(model)
    builder = GraphBuilder(name)
    walk = Walk(model, builder)
    walk.run()
    if walk.problems:
        lines = "\n".join(f"  - {line}" for line in walk.problems)
        raise OnnxImportError(f"{len(walk.problems)} node(s) can't be imported:\n{lines}")
    builder.remove_dead_nodes()
    return builder


def _is_open(
    proto: onnx.ModelProto,
    name: str,
    given: Mapping[str, list[int | None]],
    shapes: Mapping[str, Sequence[int]],
    graph: ir.Graph,
) -> bool:
    """Whether every input has a symbolic first size and ``graph`` is the same for another one."""
    if not given or any(not sizes or sizes[0] is not None for sizes in given.values()):
        return False
    other_shapes = {key: [sizes[0] + 1, *sizes[1:]] for key, sizes in shapes.items()}
    try:
        other = _build(proto, name, other_shapes)
        twin = other.finish({}).graph if _signature(graph) == _signature(other.graph) else None
    except HbirError:
        return False
    return twin is not None and _follow_batch(graph, twin)


def _signature(graph: ir.Graph) -> list[object]:
    nodes: list[object] = [
        (
            node.domain,
            node.op_type,
            tuple(None if value is None else value.name for value in node.inputs),
            sorted((key, repr(value)) for key, value in node_attributes(node).items()),
        )
        for node in graph
    ]
    constants: list[object] = []
    for key, value in sorted(graph.initializers.items()):
        tensor = value.const_value
        constants.append((key, None if tensor is None else tensor.numpy().tobytes()))
    return [*nodes, *constants]


def _follow_batch(a: ir.Graph, b: ir.Graph) -> bool:
    """Whether every value made from the inputs grows with the batch, in its first size only."""
    variable = set(a.inputs)
    for node, other in zip(a, b, strict=True):
        if variable.isdisjoint(value for value in node.inputs if value is not None):
            continue
        variable.update(node.outputs)
        pairs = zip(node.outputs, other.outputs, strict=True)
        if not all(_grows(value.shape, twin.shape) for value, twin in pairs):
            return False
    return True


def _grows(before: ir.Shape | None, after: ir.Shape | None) -> bool:
    if before is None or after is None or not len(before) or len(before) != len(after):
        return False
    return before[0] != after[0] and list(before[1:]) == list(after[1:])
