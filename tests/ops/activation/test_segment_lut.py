"""SegmentLUT: a user's function as an int8 or int16 table (numerics.md section 3)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.dtype import qint8, qint16
from qtune.errors import ArgumentError, ExportError
from qtune.nn import SegmentLUT
from qtune.nn.table import TableOp
from qtune.quantization.hbdk4 import pre_export
from tests.ops.norm.line import Function, Line, sqnr_db
from tests.quantization.flow import run

X = torch.linspace(-3, 5, 4096).reshape(2, 4, 8, 64)


def table(line: Line, name: str = "m") -> TableOp:
    found = pre_export(line.prepared).get_submodule(name)
    assert isinstance(found, TableOp)
    return found


def steps_off(line: Line) -> float:
    """The largest distance of the integers to the float model, in steps of the output."""
    scale = float(line.prepared.get_submodule("m").activation_post_process.scale)  # type: ignore[union-attr, arg-type]
    return float((line.integers() - line.reference).abs().max()) / scale


def test_in_float_it_is_its_function() -> None:
    assert torch.equal(SegmentLUT(torch.sin)(X), torch.sin(X))


@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
def test_a_lambda_becomes_a_table_that_the_file_holds(dtype: Any) -> None:
    line = Line.of(SegmentLUT(lambda x: torch.sin(x) * torch.exp(-x / 4)), X, dtype)
    # Both input and output are rounded; the function is steeper than 1 in places.
    assert sqnr_db(line.integers(), line.reference) > {qint8: 32, qint16: 80}[dtype]
    assert {n.op_type for n in line.quantized.model.graph} >= {
        "Lut8" if dtype is qint8 else "Lut16"
    }
    if dtype is qint8:
        assert table(line).entries.shape == (256,)
    assert torch.equal(line.float_state(), line.reference)


def test_no_address_of_a_function_is_written() -> None:
    """Files and prints are the same in every process."""
    line = Line.of(SegmentLUT(lambda x: x * x.sigmoid(), inverse_func=lambda y: -y), X)
    props = [dict(node.metadata_props) for node in line.quantized.model.graph]
    assert any("<lambda>" in text for prop in props for text in prop.values())
    assert not any(" at 0x" in text for prop in props for text in prop.values())
    assert repr(line.model.m) == "SegmentLUT(<lambda>, inverse_func=<lambda>)"


def test_dividing_points_and_their_error_are_in_the_table_and_the_report() -> None:
    line = Line.of(SegmentLUT(torch.tanh, dividing_points=[-1.0, 0.0, 5.0]), X)
    made = table(line)
    bounds = made.last.double() * made.input_scale.double()
    # half a step of the input's grid
    assert torch.allclose(bounds, torch.tensor([-1.0, 0.0, 5.0]).double(), rtol=0, atol=1e-4)
    line.integers()
    (note,) = [item for item in line.quantized.report if item["kind"] == "table_error"]
    assert note["op"] == "m"
    assert note["details"] == {"error": made.error, "segments": 3}
    assert made.error > 1


def test_input_range_replaces_the_observed_one() -> None:
    line = Line.of(SegmentLUT(torch.tanh, input_range=(-1.0, 1.0)), X)
    result = line.integers()
    limit = float(torch.tanh(torch.tensor(1.0)))
    assert abs(float(result.max()) - limit) < 1e-4  # a step of the output is 3e-5
    inside = (line.x.abs() < 0.99).expand_as(result)
    assert float((result - line.reference)[inside].abs().max()) < 3e-4  # steps of in- and output


def test_symmetric_mode_makes_a_mirror_image() -> None:
    line = Line.of(SegmentLUT(torch.tanh, symmetric_mode="centrosymmetric"), X)
    made = table(line)
    half = len(made.first) // 2
    assert torch.equal(made.entries[:half], -made.entries[half:].flip(0, 1))
    assert steps_off(line) <= 6  # 5 of the input's rounding (5 / 32767 at slope 1), 1 of the table


def test_is_centrosymmetric_is_deprecated_and_still_means_that() -> None:
    with pytest.warns(DeprecationWarning, match='symmetric_mode="centrosymmetric"'):
        old = SegmentLUT(torch.tanh, is_centrosymmetric=True)
    assert (
        old.table_options == SegmentLUT(torch.tanh, symmetric_mode="centrosymmetric").table_options
    )


def test_strategies_place_other_points() -> None:
    x = X.abs() + 0.05
    tables = {
        name: table(Line.of(SegmentLUT(torch.reciprocal, auto_divide_strategy=name), x))
        for name in ("evenly", "curvature", "mix")
    }
    assert tables["curvature"].error < tables["evenly"].error
    assert tables["mix"].error == tables["curvature"].error
    assert len(set(torch.diff(tables["evenly"].first).tolist())) <= 2


def test_inverse_func_leaves_out_what_saturates() -> None:
    """The output has a threshold of 1, which 1 / x exceeds below 1."""
    from qtune.quantization import QconfigSetter, get_qconfig
    from qtune.quantization.hbdk4 import convert, export
    from qtune.quantization.qconfig_setter import ModuleNameTemplate
    from tests.ops.norm.line import Whole
    from tests.quantization.flow import calib, prep

    x = X.abs() + 0.05
    template = ModuleNameTemplate({"": qint16, "m": {"dtype": qint16, "threshold": 1.0}})
    firsts = []
    for inverse in (None, torch.reciprocal):
        model = Whole(SegmentLUT(torch.reciprocal, inverse_func=inverse))
        p = prep(model, x, qconfig_setter=QconfigSetter(get_qconfig(), [template]))
        calib(p, [x])
        made = pre_export(p).get_submodule("m")
        firsts.append(float(made.first[0] * made.input_scale))
        y = convert(export(p, (x,)), "nash-e")[0](x)
        # 5 steps of the table, and the input's step (1.5e-4) at a slope of 1
        assert float((y - (1 / x).clamp(max=1.0)).abs().max()) < 5 / 32768 + 1.6e-4
    assert abs(firsts[0] - 0.05) < 1e-3
    assert abs(firsts[1] - 1.0) < 1e-3


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"auto_divide_strategy": "best"}, "SegmentLUT: auto_divide_strategy must be one of"),
        ({"symmetric_mode": True}, "'axisymmetric'; got True"),
        ({"dividing_points": 3}, "sequence of numbers, got 3"),
        ({"dividing_points": [2.0, 1.0]}, "rising numbers"),
        ({"input_range": ("a", "b")}, "sequence of numbers"),
        ({"inverse_func": 1.0}, "function of a tensor"),
        ({"is_centrosymmetric": True, "symmetric_mode": "axisymmetric"}, "contradicts"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is_centrosymmetric:DeprecationWarning")
def test_bad_knobs_give_one_clear_error(knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        SegmentLUT(torch.tanh, **knobs)


def test_a_function_that_is_none_or_changes_the_shape_is_refused() -> None:
    with pytest.raises(ArgumentError, match="simulated_func must be a function"):
        SegmentLUT("tanh")  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentError, match=r"element-wise function.*\(2, 4, 8, 64\).*returned \(\)"
    ):
        SegmentLUT(torch.sum)(X)


def test_in_float_a_function_of_torch_has_a_form_in_the_file_and_a_lambda_none() -> None:
    from qtune.quantization import DeQuantStub, QuantStub
    from qtune.quantization.hbdk4 import export
    from tests.quantization.flow import calib, prep

    class Mixed(nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.quant, self.dequant, self.lut = QuantStub(), DeQuantStub(), SegmentLUT(function)

        def forward(self, x: Tensor) -> Tensor:
            return self.lut(self.dequant(F.relu(self.quant(x))))

    for function in (torch.tanh, lambda x: torch.tanh(x)):
        prepared = prep(Mixed(function), X)
        calib(prepared, [X])
        if function is torch.tanh:
            assert torch.equal(export(prepared, (X,))[0](X), run(prepared, X))
            continue
        with pytest.raises(ExportError, match="<lambda> is not quantized"):
            export(prepared, (X,))


def test_copies_and_pickles_of_a_model_with_a_named_function() -> None:
    line = Line.of(SegmentLUT(torch.tanh), X)
    expected = run(line.prepared, X)
    for twin in (copy.deepcopy(line.prepared), pickle.loads(pickle.dumps(line.prepared))):
        assert torch.equal(run(twin, X), expected)
        assert torch.equal(run(pre_export(twin), X), line.looked_up())


def test_an_int16_table_behind_abs_covers_what_abs_makes_of_the_range() -> None:
    """The stub saw -3 .. 1, the table gets 0 .. 3."""
    x = torch.linspace(-3, 1, 512).reshape(2, 4, 64)
    line = Line.of(Function(lambda x: torch.exp(x.abs().neg())), x)
    # a step of the table, half a step of the input (3 / 32767) at a slope of 1
    assert float((line.integers() - line.reference).abs().max()) < 3e-4


def test_tables_beyond_64_segments_state_their_error() -> None:
    """Many periods of a sine: the report says how far off the table is, and it is that far off."""
    x = torch.linspace(-400, 400, 8192).reshape(1, 8, 1024)
    line = Line.of(Function(torch.sin), x)
    (note,) = [item for item in line.quantized.report if item["kind"] == "table_error"]
    error, segments = note["details"]["error"], note["details"]["segments"]
    assert segments == 64
    assert f"off by up to {error} steps" in note["message"]
    name = next(op.name for _, op in line.prepared.operators() if op.op == "sin")
    made = table(line, name)
    codes = np.arange(int(made.first[0]), int(made.last[-1]) + 1)
    exact = np.floor(np.sin(codes * np.float64(made.input_scale)) / float(made.output_scale) + 0.5)
    on_grid = torch.from_numpy(codes * np.float32(made.input_scale)).float()
    got = np.round(made(on_grid).double().numpy() / float(made.output_scale))
    assert np.abs(got - exact.clip(-32768, 32767)).max() == error > 1
