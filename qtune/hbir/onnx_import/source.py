"""From an ONNX file of any tool to a checked model of our opset with static shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import checker, defs, helper, inliner, version_converter

from qtune.errors import OnnxImportError
from qtune.hbir import hz_calibration
from qtune.hbir.builder import META_STAGE
from qtune.hbir.domain import IR_VERSION, OPSET

Source = str | Path | bytes | onnx.ModelProto
Shapes = Mapping[str, Sequence[int]]

_STANDARD = ("", "ai.onnx")


def read(source: Source) -> onnx.ModelProto:
    """The model of a path, of bytes, or a copy of a ``ModelProto``; checked by onnx."""
    where = str(source) if isinstance(source, (str, Path)) else "the ONNX model"
    try:
        proto = _read(source)
        checker.check_model(proto)
    except OSError as error:
        raise OnnxImportError(f"{where} can't be read: {error.strerror or error}") from None
    except (DecodeError, UnicodeDecodeError):
        raise OnnxImportError(f"{where} is no ONNX file or is cut off") from None
    except checker.ValidationError as error:
        raise OnnxImportError(f"{where} is no valid ONNX model: {error}") from None
    if any(item.key == META_STAGE for item in proto.metadata_props):
        raise OnnxImportError(
            f"{where} is a module of qtune, not of another tool; open the .bc file that it was "
            "saved as"
        )
    return proto


def read_calibrated(source: Source) -> onnx.ModelProto:
    """A model with calibration nodes, checked, in the opset that HBIR uses; ``source`` stays."""
    where = str(source) if isinstance(source, (str, Path)) else "the ONNX model"
    try:
        proto = _read(source)
    except OSError as error:
        raise OnnxImportError(f"{where} can't be read: {error.strerror or error}") from None
    except (DecodeError, UnicodeDecodeError):
        raise OnnxImportError(f"{where} is no ONNX file or is cut off") from None
    hz_calibration.declare(proto)
    try:
        checker.check_model(proto)
    except checker.ValidationError as error:
        raise OnnxImportError(f"{where} is no valid ONNX model: {error}") from None
    return proto


def _read(source: Source) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy
    if isinstance(source, bytes):
        return onnx.load_model_from_string(source)
    return onnx.load(str(source))


def at_our_opset(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto`` in the opset that HBIR uses; refuses operators of other domains by name."""
    local = {(function.domain, function.name) for function in proto.functions}
    foreign = sorted(
        {
            f"{node.domain}::{node.op_type}"
            for node in proto.graph.node
            if node.domain not in _STANDARD and (node.domain, node.op_type) not in local
        }
    )
    if foreign:
        raise OnnxImportError(
            f"operators of other domains have no form here: {', '.join(foreign)}. Export the model "
            "with standard ONNX operators only"
        )
    version = next((o.version for o in proto.opset_import if o.domain in _STANDARD), OPSET)
    if version < OPSET:
        return _converted(proto, version)
    if version > OPSET:
        _check_newer(proto, version)
        for entry in proto.opset_import:
            if entry.domain in _STANDARD:
                entry.version = OPSET
    proto.ir_version = min(proto.ir_version, IR_VERSION)
    return proto


def _converted(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
    try:
        return version_converter.convert_version(proto, OPSET)
    except Exception as error:  # the converter raises whatever its C++ part throws
        raise OnnxImportError(
            f"the model is of opset {version} and can't be brought to opset {OPSET}: {error}. "
            f"Export it with opset {OPSET}"
        ) from None


def _check_newer(proto: onnx.ModelProto, version: int) -> None:
    """A newer opset is taken where its nodes have a form that they could have in ours."""
    changed = sorted({n.op_type for n in proto.graph.node if not _is_old_form(n, version)})
    if changed:
        raise OnnxImportError(
            f"opset {version} defines {', '.join(changed)} otherwise than opset {OPSET}; export "
            f"the model with opset {OPSET}"
        )


def _is_old_form(node: onnx.NodeProto, version: int) -> bool:
    if not (defs.has(node.op_type) and defs.has(node.op_type, OPSET)):
        return False
    new, old = (defs.get_schema(node.op_type, v, "") for v in (version, OPSET))
    inputs = [item.name for item in old.inputs]
    same_inputs = [item.name for item in new.inputs][: len(inputs)] == inputs
    fits = len(node.input) <= old.max_input and len(node.output) <= old.max_output
    return same_inputs and fits and {item.name for item in node.attribute} <= set(old.attributes)


def inlined(proto: onnx.ModelProto, keep: Collection[str]) -> onnx.ModelProto:
    """``proto`` with functions replaced by their bodies, but for the standard operators ``keep``.

    Functions are the model's own and those that the ONNX standard defines by other operators.
    """
    ids = [("", name) for name in sorted(keep)]
    _declare_initializers(proto)
    return inliner.inline_selected_functions(proto, ids, exclude=True, inline_schema_functions=True)


def _declare_initializers(proto: onnx.ModelProto) -> None:
    """State the types of initializers: the inliner chooses function bodies by types it is told."""
    graph = proto.graph
    known = {info.name for info in (*graph.input, *graph.output, *graph.value_info)}
    for tensor in graph.initializer:
        if tensor.name not in known:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.value_info.append(info)


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
        found[info.name] = [
            dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim
        ]
    return found


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
