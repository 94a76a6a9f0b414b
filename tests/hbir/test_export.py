"""export: the module computes what the prepared model computes, bit for bit, under its names."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

from qtune.dtype import qint16
from qtune.errors import ArgumentError, ExportError, NotCalibratedError
from qtune.hbir.builder import META_GROUP, META_OP, META_RESULT, META_TYPE
from qtune.hbir.export import export
from qtune.quantizers.state import FakeQuantState
from tests.hbir.prepared import Prepared, small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@dataclass
class Detections:
    boxes: object
    aux: dict


def simple(*, out: object = None, shape: tuple[int, ...] = (2, 4)) -> Prepared:
    p = Prepared()
    q = p.quantized_input()
    y = p.function("add", q, q, name="add", alpha=1)
    p.outputs(p.dequantized(y, "dequant"), structure=out)
    return p.calibrated(torch.randn(shape))


def test_module_equals_the_prepared_model_bit_for_bit():
    p = small_cnn(X)
    module = export(p, X)
    other = torch.randn(2, 3, 8, 8)

    assert torch.equal(module[0](X), p(X)[0])
    assert torch.equal(module[0](other), p(other)[0])


def test_operators_keep_their_names_and_groups():
    module = export(small_cnn(X), X)

    assert module[0].operator_names() == [
        "x_quant", "conv1", "relu1", "conv2", "add1", "pool", "flat", "fc", "_output_0_dequant"
    ]  # fmt: skip
    assert module[0].groups()["conv1"] == "relu1"
    types = {
        n.metadata_props[META_OP]: n.metadata_props[META_TYPE]
        for n in module.model.graph
        if META_TYPE in n.metadata_props
    }
    assert types["conv1"] == "conv2d"
    assert types["fc"] == "linear"


def test_file_is_checked_by_onnx_with_full_shape_inference():
    onnx.checker.check_model(ir.to_proto(export(small_cnn(X), X).model), full_check=True)


def test_export_changes_nothing_in_the_model():
    p = small_cnn(X)
    p.state(FakeQuantState.QAT).train()
    before = {name: value.clone() for name, value in p.state_dict().items()}
    export(p, X)

    assert all(torch.equal(value, before[name]) for name, value in p.state_dict().items())
    assert all(module.training for module in p.modules())


def test_fake_quantizes_without_data_are_all_named():
    """Case A07."""
    p = simple()
    p.add.activation_post_process.observed.fill_(False)
    p.x_quant.activation_post_process.observed.fill_(False)

    with pytest.raises(NotCalibratedError, match=r"x_quant \(output\), add \(output\).*Calibrate"):
        export(p, torch.randn(2, 4))


def test_every_operator_without_lowering_is_named_at_once():
    p = Prepared()
    x = p.input()
    a = p.graph.call_function(torch.special.i0, (x,))
    b = p.graph.call_method("erfinv", (a,))
    a.meta["name"], b.meta["name"] = "first", "second"
    p.outputs(b)

    with pytest.raises(ExportError, match=r"2 operator\(s\)(?s:.*)first(?s:.*)second"):
        export(p, torch.rand(2, 3))


def test_model_without_graph_is_refused():
    with pytest.raises(ExportError, match="Linear without a graph; call prepare first"):
        export(nn.Linear(2, 2), torch.rand(2, 2))


def test_failure_on_the_example_names_operator_and_cause():
    with pytest.raises(ExportError, match="conv1 .*fails on the example"):
        export(small_cnn(X), torch.randn(2, 4, 8, 8))


def test_float_operators_outside_of_stubs_are_exported():
    p = Prepared()
    y = p.graph.call_function(torch.relu, (p.input(),))
    p.outputs(y)
    x = torch.randn(3)

    assert torch.equal(export(p, x)[0](x), torch.relu(x))


def test_what_depends_on_parameters_only_becomes_an_initializer():
    p = Prepared()
    q = p.quantized_input()
    p.register_buffer("row", torch.tensor([1.0, -2.0, 3.0, 0.5]))
    row = p.graph.get_attr("row")
    doubled = p.function("mul", row, 2.0, name="twice")
    y = p.function("add", q, doubled, name="add", alpha=1)
    x = torch.randn(2, 4)
    p.outputs(p.dequantized(y, "dequant")).calibrated(x)
    module = export(p, x)

    assert torch.equal(module[0](x), p(x)[0])
    assert not [n for n in module.model.graph if n.op_type == "Mul"]


def test_int16_grid_is_exported():
    p = Prepared()
    q = p.quantized_input()
    y = p.function("add", q, q, name="add", out=qint16, alpha=1)
    x = torch.randn(2, 4)
    p.outputs(p.dequantized(y, "dequant")).calibrated(x)

    assert torch.equal(export(p, x)[0](x), p(x)[0])


def test_shared_module_called_twice_has_a_result_for_each_call():
    """Case A08."""
    p = Prepared()
    q = p.quantized_input()
    a = p.function("add", q, q, name="add", alpha=1)
    b = p.graph.call_module("add", (a, a))
    b.meta.update(name="add", op="add", group="add")
    x = torch.randn(2, 4)
    p.outputs(p.dequantized(b, "dequant")).calibrated(x)
    module = export(p, x)

    assert module[0].operator_names() == ["x_quant", "add", "add_1", "dequant"]
    assert torch.equal(module[0](x), p(x)[0])


def test_output_class_comes_back():
    """Case A18."""
    structure = Detections(torch.zeros(1), {"k": (torch.zeros(1), None)})
    p = Prepared()
    q = p.quantized_input()
    y = p.dequantized(p.function("add", q, q, name="add", alpha=1), "d0")
    z = p.dequantized(q, "d1")
    x = torch.randn(2, 4)
    p.outputs(y, z, structure=structure).calibrated(x)
    result = export(p, x)[0](x)

    assert type(result) is Detections
    assert torch.equal(result.boxes, p(x)[0])
    assert torch.equal(result.aux["k"][0], p(x)[1])
    assert result.aux["k"][1] is None


def test_integer_input_passes_through_to_the_output():
    p = Prepared()
    q, ids = p.quantized_input(), p.input("ids")
    x, n = torch.randn(2, 4), torch.arange(2)
    p.outputs(p.dequantized(q, "d"), ids).calibrated(x, n)
    result = export(p, (x, n))[0](x, n)

    assert result[1].dtype == torch.int64
    assert torch.equal(result[1], n)


def test_names_and_descriptions_are_those_given():
    x = torch.randn(2, 4)
    module = export(
        simple(), x, name="det", input_names="img", output_names="y", input_descs="an image"
    )

    assert module["det"].inputs[0].name == "img"
    assert module["det"].inputs[0].desc == "an image"
    assert list(module[0].feed({"img": x})) == ["y"]


@pytest.mark.parametrize("names", [("a", "b"), 3, ()])
def test_names_that_do_not_fit_the_inputs_are_refused(names):
    with pytest.raises(ArgumentError, match="input_names must hold 1"):
        export(simple(), torch.randn(2, 4), input_names=names)


def test_input_and_output_must_not_share_a_name():
    with pytest.raises(ArgumentError, match="'x' is given to an input and an output"):
        export(simple(), torch.randn(2, 4), input_names="x", output_names="x")


def test_without_native_containers_calls_are_flat():
    x = torch.randn(2, 4)
    p = simple(out={"a": torch.zeros(1)})
    module = export(p, x, native_pytree=False)

    (result,) = module[0](x)
    assert torch.equal(result, p(x)[0])


def test_other_batch_sizes_run_where_nothing_depends_on_the_size():
    p = small_cnn(X)
    module = export(p, X)
    for count in (1, 5):
        x = torch.randn(count, 3, 8, 8)
        assert torch.equal(module[0](x), p(x)[0])


def reshaping(shape: object) -> Prepared:
    p = Prepared()
    q = p.quantized_input()
    if shape == "computed":
        shape = (p.graph.call_method("size", (q, 0)), -1)
    y = p.function("reshape", q, name="r", out=None, shape=shape)
    return p.outputs(p.dequantized(y, "dequant")).calibrated(torch.randn(2, 3, 4))


def test_size_computed_from_the_input_stays_open():
    p = reshaping("computed")
    module = export(p, torch.randn(2, 3, 4))
    x = torch.randn(7, 3, 4)

    assert torch.equal(module[0](x), p(x)[0])


def test_size_written_into_the_model_fixes_the_batch():
    module = export(reshaping((2, 12)), torch.randn(2, 3, 4))

    assert not module[0].open_batch


def test_mean_over_samples_fixes_the_batch():
    p = Prepared()
    q = p.quantized_input()
    y = p.function("mean", q, name="m", dim=(0,), keepdim=True)
    p.outputs(p.dequantized(y, "dequant")).calibrated(torch.randn(2, 4))

    assert not export(p, torch.randn(2, 4))[0].open_batch


def test_item_of_several_results_is_taken():
    p = Prepared()
    q = p.quantized_input()
    parts = p.function("chunk", q, name="c", out=None, chunks=2, dim=1)
    a = p.graph.call_function(operator.getitem, (parts, 0))
    b = p.graph.call_function(operator.getitem, (parts, 1))
    y = p.function("add", a, b, name="add", alpha=1)
    x = torch.randn(2, 4)
    p.outputs(p.dequantized(y, "d")).calibrated(x)

    assert torch.equal(export(p, x)[0](x), p(x)[0])


def test_each_operator_has_one_result_node():
    module = export(small_cnn(X), X)
    results = [
        n.metadata_props[META_OP] for n in module.model.graph if META_RESULT in n.metadata_props
    ]

    assert len(results) == len(set(results))
    assert all(META_GROUP in node.metadata_props for node in module.model.graph)
    assert json.loads(module.model.metadata_props["qtune.outputs"]) == {"leaf": 0}
