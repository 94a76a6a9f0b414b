"""AveragePool: explicit, even pads; uneven ones only where the padding counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from qtune.hbir.onnx_import.form import OnnxNode, register_rewrite
from qtune.hbir.onnx_import.rewrites.windows import geometry, is_even
from qtune.ops.kernel import Builder


def _rewrite(b: Builder, node: OnnxNode) -> Any:
    kernel = tuple(node.attrs["kernel_shape"])
    attrs = geometry(node, kernel)
    if len(kernel) != 2:
        raise node.refusal(f"{len(kernel)} spatial axes have no form here, only 2")
    if max(attrs.pop("dilations")) > 1:
        raise node.refusal("dilations have no form here")
    counts = int(node.attrs.get("count_include_pad", 0))
    ceil = int(node.attrs.get("ceil_mode", 0))
    x, pads = node.inputs[0], attrs["pads"]
    wide = any(p > k // 2 for p, k in zip(pads[:2], kernel, strict=True))
    if wide or not is_even(pads):
        if not counts or ceil:
            raise node.refusal(
                f"the pads {pads} differ at both ends or exceed half the kernel; this has a form "
                "only with count_include_pad=1 and ceil_mode=0"
            )
        places = np.array([0, 0, *pads[:2], 0, 0, *pads[2:]], dtype=np.int64)
        x = b.add("Pad", [x, b.constant(places, "pads")], {"mode": "constant"})
        attrs["pads"] = (0, 0, 0, 0)
    return b.add("AveragePool", [x], {**attrs, "count_include_pad": counts, "ceil_mode": ceil})


register_rewrite("AveragePool", _rewrite)
