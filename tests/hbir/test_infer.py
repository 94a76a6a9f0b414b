"""Types of a graph: what is inconsistent, and what only looks so to onnx."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest

from qtune.errors import HbirError
from qtune.hbir.infer import infer_types


def model(op_type: str, shapes: Sequence[Sequence[int]]) -> tuple[ir.Model, ir.Value]:
    """One operator on float inputs behind an Identity each."""
    float32 = ir.TensorType(ir.DataType.FLOAT)
    inputs = [ir.Value(name=f"x{i}", type=float32, shape=ir.Shape(s)) for i, s in enumerate(shapes)]
    same = [ir.node("Identity", [value]) for value in inputs]
    axis = ir.Value(name="axis", const_value=ir.tensor([1], name="axis"))
    column = ir.node("Unsqueeze", [same[0].outputs[0], axis])
    last = ir.node(op_type, [column.outputs[0], same[1].outputs[0]])
    result = last.outputs[0]
    graph = ir.Graph(
        inputs, [result], nodes=[*same, column, last], initializers=[axis], name="g",
        opset_imports={"": 21},
    )  # fmt: skip
    return ir.Model(graph, ir_version=10), result


def test_a_column_times_a_row_of_numbers_is_no_calculation_with_sizes() -> None:
    found, result = model("Mul", [(3,), (4,)])
    infer_types(found)
    assert result.shape == [3, 4]
    assert result.dtype == ir.DataType.FLOAT


def test_shapes_that_do_not_fit_are_refused() -> None:
    found, _ = model("MatMul", [(3,), (4, 5)])
    with pytest.raises(HbirError, match="the graph 'g' is inconsistent"):
        infer_types(found)
