"""What moves: codes, constants, floats, masks, and results that wait for their scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qtune.dtype import qint8
from qtune.errors import ConvertError
from qtune.ops.kernel import (
    FloatConst,
    FloatNode,
    FloatValue,
    HbirKernel,
    Pending,
    PlainValue,
    QConst,
    QValue,
)
from qtune.ops.movement.moving import is_tensor
from qtune.ops.registry import kernel

PERM = {"perm": (1, 0)}


class Trace:
    """A context whose values are texts."""

    def constant(self, array: np.ndarray, suffix: str = "") -> str:
        return f"const{array.dtype}{list(array.shape)}"

    def add(
        self, op_type: str, inputs: Any, attrs: Any, *, domain: str = "", outputs: int = 1
    ) -> Any:
        text = f"{op_type}({', '.join(inputs)})"
        return text if outputs == 1 else tuple(f"{text}:{i}" for i in range(outputs))


class Waiting(Pending):
    """A result that has no scale yet; ``high_precision`` says whether it has a float form."""

    def __init__(self, high_precision: bool = True, text: str = "gemm") -> None:
        self.high_precision = high_precision
        self.text = text

    def emit(self, ctx: Any, scale: float, dtype: Any) -> QValue:
        return QValue(f"{self.text}@{scale}", dtype, scale, -3, 3)

    def clamp(self, ctx: Any, low: float | None, high: float | None) -> Pending:
        return Waiting(self.high_precision, f"clamp({self.text})")

    def dequantize(self, ctx: Any) -> FloatValue | None:
        return FloatValue(f"float({self.text})") if self.high_precision else None


def move(operand: Any, op_type: str = "Transpose", attrs: Any = None, *rest: Any) -> Any:
    found: HbirKernel | None = kernel("", op_type)
    assert found is not None
    assert found.convert is not None
    node = FloatNode(op_type, PERM if attrs is None else attrs, (operand, *rest), "layer")
    return found.convert(Trace(), node)  # type: ignore[arg-type]


def test_codes_keep_scale_dtype_and_range() -> None:
    assert move(QValue("x", qint8, 0.5, 0, 9)) == QValue("Transpose(x)", qint8, 0.5, 0, 9)


def test_floats_and_masks_stay_what_they_are() -> None:
    assert move(FloatValue("x")) == FloatValue("Transpose(x)")
    assert move(PlainValue("x")) == PlainValue("Transpose(x)")


def test_constants_are_moved_at_convert() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert move(FloatConst(array)).data.shape == (3, 2)
    codes = QConst(array.astype(np.int64), np.float32([0.5]), -1, qint8, array)
    moved = move(codes)
    np.testing.assert_array_equal(moved.codes, codes.codes.T)
    np.testing.assert_array_equal(moved.data, array.T)


def test_a_constant_table_is_gathered_by_indices_of_the_graph() -> None:
    table = QConst(np.zeros((4, 3), np.int64), np.float32([0.5]), -1, qint8, np.zeros((4, 3)))
    rows = move(table, "Gather", {"axis": 0}, PlainValue("ids"))
    assert rows == QValue("Gather(constint8[4, 3], ids)", qint8, 0.5)


def test_constants_with_a_scale_per_channel_are_refused() -> None:
    scales = np.float32([0.5, 0.25])
    codes = QConst(np.zeros((2, 3), np.int64), scales, 0, qint8, np.zeros((2, 3)))
    with pytest.raises(ConvertError, match="2 scales"):
        move(codes)


def test_a_waiting_result_is_emitted_first_and_moved_then() -> None:
    moved = move(Waiting())
    assert moved.emit(None, 0.5, qint8) == QValue("Transpose(gemm@0.5)", qint8, 0.5, -3, 3)
    assert moved.clamp(None, 0.0, None).emit(None, 1.0, qint8).value == "Transpose(clamp(gemm)@1.0)"
    assert moved.dequantize(None) == FloatValue("Transpose(float(gemm))")


def test_a_waiting_result_that_is_split_becomes_float() -> None:
    parts = FloatConst(np.array([1, 2]))
    first, second = move(Waiting(), "Split", {"axis": 0}, parts)
    assert (first.value, second.value) == (
        "Split(float(gemm), constint64[2]):0",
        "Split(float(gemm), constint64[2]):1",
    )
    with pytest.raises(ConvertError, match="no scale and no float form"):
        move(Waiting(False), "Split", {"axis": 0}, parts)


def test_codes_where_a_shape_belongs_are_refused() -> None:
    with pytest.raises(ConvertError, match="layer: Reshape got qint8 codes"):
        move(QValue("x", qint8, 0.5), "Reshape", {}, QValue("shape", qint8, 1.0))


def test_sizes_are_no_tensors() -> None:
    graph = torch.fx.Graph()
    size, tensor = graph.placeholder("n"), graph.placeholder("x")
    tensor.meta["dtype"] = torch.float32
    assert is_tensor(tensor)
    assert not is_tensor(size)
    assert not is_tensor(3)
