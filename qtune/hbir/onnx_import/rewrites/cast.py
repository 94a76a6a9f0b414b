"""Cast between float32, integers and bool."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    target = int(node.attrs["to"])
    if helper.tensor_dtype_to_np_dtype(target) == np.dtype(node.dtypes[0]):
        return b.add("Identity", [node.inputs[0]])
    return b.add("AsType", [node.inputs[0]], {"to": target}, domain="qtune")


register_rewrite("Cast", _rewrite)
