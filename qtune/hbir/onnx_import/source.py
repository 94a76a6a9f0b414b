"""From an ONNX file of any tool to a checked model of our opset with static shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import checker, external_data_helper, inliner, shape_inference

from qtune.errors import ArgumentError, OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.builder import META_STAGE
from qtune.hbir.onnx_import.branches import refuse_control, with_branches_taken
from qtune.hbir.onnx_import.elements import refuse_other_floats
from qtune.hbir.onnx_import.large import Apart, apart
from qtune.hbir.onnx_import.names import name_nodes, with_unique_names
from qtune.hbir.onnx_import.opset import at_our_opset, check_opset
from qtune.hbir.onnx_import.order import put_in_order
from qtune.hbir.onnx_import.pairs import QUANTIZERS, unified
from qtune.hbir.onnx_import.removed_relus import with_relus_back

Source = str | Path | bytes | onnx.ModelProto
Shapes = Mapping[str, Sequence[int]]


def read(source: Source) -> onnx.ModelProto:
    """The model of a path, of bytes, or a copy of a ``ModelProto``, with unique names of nodes.

    Checked by onnx. Calibration nodes have our domain and quantize nodes of onnxruntime's domain
    the standard one, whose operators they are; nothing else differs.
    """
    held = _checked(source)
    refuse_other_floats(held.proto)
    return held.joined(with_unique_names(with_branches_taken(held.proto)))


def read_calibrated(source: Source) -> onnx.ModelProto:
    """A model with calibration nodes, checked, in the opset that HBIR uses; ``source`` stays.

    Nodes and tensors keep their names. Functions of the model's own are replaced by their bodies;
    operators of other domains stay. Pairs of quantize nodes are as :func:`unified` and
    :func:`with_relus_back` say.
    """
    held = _checked(source)
    proto = with_unique_names(with_branches_taken(held.proto))
    refuse_control(proto)
    if proto.functions:
        proto = inliner.inline_local_functions(proto, convert_version=True)
    proto = at_our_opset(proto)
    hz_calibration.declare(proto)
    proto = held.joined(proto)
    _take_initializers_from_inputs(proto)
    proto = with_relus_back(unified(proto))
    name_nodes(proto.graph)
    return proto


def _checked(source: Source) -> Apart:
    """The model with unique names of nodes, its large constants apart."""
    where = str(source) if isinstance(source, (str, Path)) else "the ONNX model"
    try:
        given = _read(source)
    except OSError as error:
        raise OnnxImportError(f"{where} can't be read: {error.strerror or error}") from None
    except (DecodeError, UnicodeDecodeError):
        raise OnnxImportError(f"{where} is no ONNX file or is cut off") from None
    if not given.ir_version and not given.graph.node:
        raise OnnxImportError(f"{where} is no ONNX file or is empty")
    check_opset(given, where)
    held = apart(given)
    put_in_order(held.proto.graph)
    _name_known_domains(held.proto)
    _state_outputs(held.proto)
    try:
        for tensor in held.tensors:
            checker.check_tensor(tensor)
        checker.check_model(held.proto)
    except checker.ValidationError as error:
        raise OnnxImportError(f"{where} is no valid ONNX model: {error}") from None
    if any(item.key == META_STAGE for item in held.proto.metadata_props):
        raise OnnxImportError(
            f"{where} is a module of qtune, not a model of another tool; qtune.bpu.compiler.load "
            "opens it. The ONNX debugger takes the calibrated model that it was made from"
        )
    name_nodes(held.proto.graph)
    return held


def _state_outputs(proto: onnx.ModelProto) -> None:
    """Give outputs the type and shape that tools for editing graphs leave out, by inference."""
    lacking = [info for info in proto.graph.output if not _is_stated(info)]
    if not lacking:
        return
    inferred = onnx.ModelProto()
    inferred.CopyFrom(proto)
    hz_calibration.hide(inferred)
    with suppress(shape_inference.InferenceError, RuntimeError):  # what is unknown is named below
        inferred = shape_inference.infer_shapes(inferred, data_prop=True)
    known = {i.name: i for i in (*inferred.graph.output, *inferred.graph.value_info)}
    for info in lacking:
        found = known.get(info.name)
        if found is None or not _is_stated(found):
            raise OnnxImportError(
                f"the output {info.name!r} states no type and shape, and they can't be inferred; "
                "state them (onnx.helper.make_tensor_value_info)"
            )
        info.type.CopyFrom(found.type)


def _is_stated(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or info.type.tensor_type.HasField("shape"))


def _take_initializers_from_inputs(proto: onnx.ModelProto) -> None:
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [info for info in proto.graph.input if info.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)


def _name_known_domains(proto: onnx.ModelProto) -> None:
    for node in proto.graph.node:
        if node.op_type in QUANTIZERS and node.domain == "com.microsoft":
            node.domain = ""
    hz_calibration.own(proto)


def _read(source: Source) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, bytes):
        return onnx.load_model_from_string(source)
    if not isinstance(source, (str, Path)):
        raise ArgumentError(
            "an ONNX model is a path, the file's bytes or a ModelProto, got "
            f"{type(source).__name__}"
        )
    proto = onnx.load(str(source), load_external_data=False)
    try:
        external_data_helper.load_external_data_for_model(proto, str(Path(source).parent))
    except (checker.ValidationError, ValueError) as error:
        raise OnnxImportError(f"the external data of {source} can't be read: {error}") from None
    return proto


def open_sizes(proto: onnx.ModelProto) -> dict[str, list[int | None]]:
    """Shape of each graph input that is no initializer; ``None`` for sizes that are not numbers."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    found: dict[str, list[int | None]] = {}
    for info in proto.graph.input:
        if info.name in constants:
            continue
        kind = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise OnnxImportError(
                f"input {info.name!r} is no tensor of known rank; only tensors are taken"
            )
        found[info.name] = [known_size(dim) for dim in kind.shape.dim]
    return found


def known_size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """The size of a dimension; ``None`` for a free one, which some tools write as -1."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def with_sizes(proto: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    """A copy whose inputs have these static shapes; all other shape notes are dropped."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for info in copy.graph.input:
        if info.name in shapes:
            dims = info.type.tensor_type.shape.dim
            for dim, size in zip(dims, shapes[info.name], strict=True):
                dim.dim_value = int(size)
    inputs = {info.name for info in copy.graph.input}
    for info in copy.graph.output:
        if info.name not in inputs:
            info.type.tensor_type.ClearField("shape")
    del copy.graph.value_info[:]
    return copy


def as_ir(proto: onnx.ModelProto) -> ir.Model:
    """The model with unique names, constants as initializers and every default attribute set."""
    model = ir.from_proto(proto)
    steps = (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.RemoveInitializersFromInputsPass(),
        passes.TopologicalSortPass(),
        passes.NameFixPass(),
        passes.AddDefaultAttributesPass(),
    )
    return ir.passes.Sequential(*steps)(model).model
