"""Element types of a file: quantization starts from float32."""

from __future__ import annotations

import onnx

from qtune.errors import OnnxImportError

_HALVES = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_DOUBLE = onnx.TensorProto.DOUBLE


def refuse_other_floats(proto: onnx.ModelProto) -> None:
    """Raise one ``OnnxImportError`` for a model in half or double precision, with the remedy.

    Looked at are inputs and constants; a single double number among float32 is left alone.
    """
    inputs = [(i.name, i.type.tensor_type.elem_type) for i in proto.graph.input]
    constants = [(t.name, t.data_type) for t in proto.graph.initializer]
    found = [item for item in inputs if item[1] in (*_HALVES, _DOUBLE)]
    found += [item for item in constants if item[1] in _HALVES]
    if not found:
        return
    name, kind = found[0]
    subject = f"{name!r} and {len(found) - 1} more have" if len(found) > 1 else f"{name!r} has"
    raise OnnxImportError(
        f"{subject} elements of type {onnx.TensorProto.DataType.Name(kind)}; the model "
        "has to be float32, which quantization starts from. Export it in float32: with PyTorch, "
        "call model.float() and make the example inputs float32 before torch.onnx.export; leave "
        "out options for half precision (half=True, fp16) of other exporters"
    )
