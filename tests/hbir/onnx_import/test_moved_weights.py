"""Operators between a quantized constant and its reader: the scales keep their channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qtune.errors import OnnxImportError
from qtune.hbir.onnx_import.calibrations import moved_weight
from qtune.hbir.onnx_import.form import OnnxWeight

CODES = np.arange(-12, 12).reshape(2, 3, 1, 4)
SCALES = np.array([0.5, 0.25, 2.0], np.float32)


def weight() -> OnnxWeight:
    values = (CODES * SCALES.reshape(1, 3, 1, 1)).astype(np.float32)
    return OnnxWeight(values, SCALES, 1, (-128, 127))


@pytest.mark.parametrize(
    ("op_type", "argument", "shape", "axis"),
    [
        ("Unsqueeze", [0], (1, 2, 3, 1, 4), 2),
        ("Unsqueeze", [-1, 1], (2, 1, 3, 1, 4, 1), 2),
        ("Squeeze", [2], (2, 3, 4), 1),
        ("Squeeze", [-2], (2, 3, 4), 1),
        ("Squeeze", None, (2, 3, 4), 1),
    ],
)
def test_scales_keep_their_channels(
    op_type: str, argument: Any, shape: tuple[int, ...], axis: int
) -> None:
    node = ir.node(op_type, [None])
    constants = [None] if argument is None else [None, np.array(argument)]
    found = moved_weight(node, weight(), constants)
    assert (found.data.shape, found.axis) == (shape, axis)
    np.testing.assert_array_equal(found.codes().reshape(-1), CODES.reshape(-1))


def test_what_would_part_channels_is_refused() -> None:
    node = ir.node("Reshape", [None], name="flat")
    with pytest.raises(OnnxImportError, match="flat: Reshape of a quantized weight has no form"):
        moved_weight(node, weight(), [None, np.array([6, 4])])
