"""ONNX models as assertions take them: kinds, calls, inputs in all forms, paths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from qtune.bpu import compiler
from qtune.capture.inputs import Inputs
from qtune.errors import ArgumentError, OnnxImportError
from qtune.hbir.module import HbirModule
from qtune.onnx_debug.load import load_calibrated
from qtune.testing import OnnxModel
from qtune.testing.onnx_float import float_form
from qtune.testing.onnx_inputs import examples
from qtune.testing.onnx_model import as_model
from qtune.testing.running import chunks, observations, outputs_of

from ..onnx_debug import nets as debug_nets
from . import onnx_nets
from .failing import X


@pytest.fixture(scope="module")
def two() -> OnnxModel:
    return OnnxModel(onnx_nets.two_ports())


A = np.arange(8, dtype=np.float32).reshape(2, 4)
B = np.ones((2, 4), np.float32)
BOTH = {"sum": A / 2 + 1, "product": A / 2 + 1}


def test_kinds_are_told_by_calibration_nodes() -> None:
    assert OnnxModel(onnx_nets.chain()).kind == "calibrated"
    assert OnnxModel(onnx_nets.normed()).kind == "float"


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m(A, B),
        lambda m: m(A, b=B),
        lambda m: m(a=A, b=B),
        lambda m: m({"b": B, "a": A}),
    ],
)
def test_calls_take_inputs_in_order_or_by_name_and_give_arrays_by_name(
    two: OnnxModel, call: Any
) -> None:
    found = call(two)
    assert list(found) == ["sum", "product"]
    for name, array in BOTH.items():
        np.testing.assert_array_equal(found[name], array)  # sums of few powers of two


def test_tensors_give_tensors_and_one_output_comes_alone() -> None:
    model = OnnxModel(onnx_nets.chain())
    found = model(X)
    assert isinstance(found, torch.Tensor)
    assert tuple(found.shape) == onnx_nets.SHAPE
    assert isinstance(model(X.numpy()), np.ndarray)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: m(A), "takes the inputs a, b, got 1 by position"),
        (lambda m: m(A, B, A), "takes the inputs a, b, got 3 by position"),
        (lambda m: m(A, a=B), "takes the inputs a, b, got 1 by position, a by name"),
        (lambda m: m({"a": A, "c": B}), "takes the inputs a, b, got 0 by position, a, c by name"),
        (lambda m: m(A, B.astype(np.float64)), "input 'b' takes float32 of the shape"),
        (lambda m: m(A, B[:1]), "input 'b' takes float32 of the shape \\[2, 4\\], got float32 of"),
    ],
)
def test_wrong_calls_name_the_input(two: OnnxModel, call: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        call(two)


def folder_of(folder: Path, name: str, items: list[Any]) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    for index, item in enumerate(items):
        np.save(place / f"{index}.npy", item)
    return folder


@pytest.mark.parametrize(
    "given",
    [
        lambda folder: [(A, B), (B, A)],
        lambda folder: [{"a": A, "b": B}, {"b": A, "a": B}],
        lambda folder: [Inputs(A, b=B), Inputs(b=torch.tensor(A), a=torch.tensor(B))],
        lambda folder: {"a": [A, B], "b": [B, A]},
        lambda folder: folder_of(folder_of(folder, "a", [A, B]), "b", [B, A]),
        lambda folder: str(folder_of(folder_of(folder, "a", [A, B]), "b", [B, A])),
    ],
    ids=["tuples", "dicts", "Inputs", "dict of lists", "folder", "text"],
)
def test_several_items_come_in_every_form(two: OnnxModel, given: Any, tmp_path: Path) -> None:
    calls = examples((two,), given(tmp_path / "data"))
    found = [[value.numpy().tolist() for value in call.args] for call in calls]
    assert found == [[A.tolist(), B.tolist()], [B.tolist(), A.tolist()]]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "inputs: the list is empty"),
        ([(A, B), (A,)], "inputs, item 1: the model takes the inputs a, b, got 1 by position"),
        ((A, B.astype(np.float64)), "inputs: 'b' has the dtype float64 .* takes float32"),
        ((A, B[0]), "inputs: 'b' has the dtype float32 and the shape \\[4\\]"),
        ((A, 3), "inputs: 'b': expected an array or a tensor, got an int"),
        ({"a": [A], "b": [A, B]}, "the inputs have different numbers of items"),
        ("nowhere", "nowhere is no folder"),
    ],
)
def test_wrong_inputs_name_the_item(two: OnnxModel, given: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        examples((two,), given)


def test_other_batch_sizes_are_split_and_joined() -> None:
    model = OnnxModel(debug_nets.residual())  # exported with a batch of 1
    items = debug_nets.data()
    whole = outputs_of(model, chunks((model,), np.concatenate(items)))
    for index, item in enumerate(items):
        torch.testing.assert_close(whole["y"][index], torch.tensor(model(item)[0]), rtol=0, atol=0)


def test_results_of_nodes_have_the_names_grids_and_values_of_hbir() -> None:
    model = OnnxModel(debug_nets.residual())
    parts = chunks((model,), debug_nets.data()[0])
    (ours,), (theirs,) = list(observations(model, parts)), list(observations(model.hbir, parts))
    assert list(ours.records) == list(theirs.records)
    for name, record in ours.records.items():
        other = theirs.records[name]
        if name == "Add_3":  # convert quantizes it, for the Flatten behind it
            continue
        assert (record.scale, record.dtype) == (other.scale, other.dtype)
        # float32 sums of 256 products, in another order
        torch.testing.assert_close(record.value, other.value, rtol=0, atol=1e-5)


def test_operators_of_a_float_model_are_those_of_the_optimized_one() -> None:
    model = OnnxModel(onnx_nets.normed())
    (image, *_) = onnx_nets.images()
    (found,) = list(observations(model, chunks((model,), image)))
    assert list(found.records) == ["image_quant", "conv", "act", "head"]  # norm is in conv
    # two forms of a batch norm differ in rounding
    torch.testing.assert_close(
        found.records["head"].value, torch.tensor(model(image)), rtol=0, atol=1e-5
    )


def test_the_float_form_has_no_grid_and_the_same_structure() -> None:
    calibrated = load_calibrated(onnx_nets.chain())
    before = calibrated.proto.SerializeToString()
    model = OnnxModel(float_form(calibrated))
    assert model.kind == "float"
    expected = X.numpy() * np.float32(np.prod(onnx_nets.WEIGHTS))
    np.testing.assert_array_equal(model(X.numpy()), expected)  # no product rounds
    assert calibrated.proto.SerializeToString() == before


def test_paths_and_protos_are_opened_by_what_they_hold(tmp_path: Path) -> None:
    proto = onnx_nets.chain()
    onnx.save(proto, tmp_path / "net.onnx")
    model = as_model("check", "model", str(tmp_path / "net.onnx"))
    assert isinstance(model, OnnxModel)
    assert (model.name, model.path) == ("net", str(tmp_path / "net.onnx"))
    module = compiler.convert(model.hbir, "nash-e")
    module.save(tmp_path / "net.bc")
    compiler.compile(module, tmp_path / "net.hbm", "nash-e")
    assert as_model("check", "model", tmp_path / "net.bc").stage == "quantized"
    assert isinstance(as_model("check", "model", tmp_path / "net.hbm"), compiler.Hbm)
    held = onnx.load_model_from_string(module.to_bytes())
    assert isinstance(as_model("check", "model", held), HbirModule)
    assert as_model("check", "model", module) is module


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("net.txt", "check: model: a path must end with .onnx, .bc or .hbm, but got 'net.txt'"),
        ("net.onnx", "check: model: there is no file net.onnx"),
    ],
)
def test_other_paths_are_refused(path: str, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        as_model("check", "model", path)
    assert str(caught.value) == text


def test_what_is_no_model_is_an_import_error(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08\x07nothing")
    with pytest.raises(OnnxImportError, match="net.onnx is no"):
        as_model("check", "model", path)
