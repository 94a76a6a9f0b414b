"""hbm_perf and visualize: files that others open."""

from __future__ import annotations

import json
import sys
import types

import onnx
import pytest
import torch

from qtune.bpu.compiler import compile, convert, hbm_perf, link, visualize
from qtune.errors import ArgumentError
from qtune.hbir.export import export
from tests.hbir.prepared import small_cnn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def bc():
    return convert(export(small_cnn(X), X), "nash-e")


def test_page_and_json_hold_the_estimate_and_the_plan(bc, tmp_path):
    hbm = compile(bc, tmp_path / "net.hbm", "nash-e", balance=40)

    report = hbm_perf(hbm.path, tmp_path / "perf")

    assert report.html == tmp_path / "perf" / "net.html"
    assert json.loads(report.json.read_text()) == report.data
    (function,) = report.data["functions"]
    assert function["estimate"] == hbm.estimate
    assert function["memory"] == hbm.memory
    page = report.html.read_text()
    for text in ("net.hbm on nash-e", "relu1", "qtune::QConv", "memory plan", "assumption"):
        assert text in page
    assert page.count("<rect") > len(hbm.memory["buffers"])
    assert "<script src" not in page


def test_page_of_several_functions_has_a_section_for_each(bc, tmp_path):
    other = convert(export(small_cnn(X), X, name="other"), "nash-e")
    objects = [
        compile(module, tmp_path / f"{index}.hbo", "nash-e")
        for index, module in enumerate((bc, other))
    ]

    report = hbm_perf(link(objects, tmp_path / "m.hbm"), tmp_path)

    page = report.html.read_text()
    assert "Function forward" in page
    assert "Function other" in page


def test_boards_are_refused_by_name(bc, tmp_path):
    hbm = compile(bc, tmp_path / "m.hbm", "nash-e")
    with pytest.raises(NotImplementedError, match="remote_ip, frame_count"):
        hbm_perf(hbm, remote_ip="10.0.0.1", frame_count=3)
    with pytest.raises(ArgumentError, match="program or its path, got HbirModule"):
        hbm_perf(bc)


def test_visualize_writes_a_standard_file_that_runs(bc, tmp_path):
    import onnxruntime

    path = visualize(bc, tmp_path / "net.onnx")

    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {"_input_0": X.numpy()})
    assert torch.equal(torch.from_numpy(result), bc[0](X))


def test_visualize_puts_weights_beside_the_file(bc, tmp_path):
    path = visualize(
        bc, tmp_path / "a" / "net.onnx", save_as_external_data=True, external_data_file="w.bin"
    )

    assert sorted(item.name for item in path.parent.iterdir()) == ["net.onnx", "w.bin"]
    loaded = onnx.load(path)
    kept = {init.name for init in loaded.graph.initializer}
    assert kept == set(bc.model.graph.initializers)
    assert (path.parent / "w.bin").stat().st_size > 0


def test_default_file_is_named_after_the_function(bc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hbm = compile(bc, "m.hbm", "nash-e")

    assert visualize(hbm).name == "forward.onnx"
    assert (tmp_path / "forward.onnx").is_file()


def test_netron_is_started_or_its_absence_said(bc, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "netron", None)
    with pytest.raises(ArgumentError, match="pip install netron"):
        visualize(bc, tmp_path / "m.onnx", use_netron=True)
    assert not (tmp_path / "m.onnx").exists()
    calls = []
    fake = types.ModuleType("netron")
    fake.start = lambda file, address=None: calls.append((file, address))
    monkeypatch.setitem(sys.modules, "netron", fake)

    visualize(bc, tmp_path / "m.onnx", use_netron=True, port=8081)

    assert calls == [(str(tmp_path / "m.onnx"), ("localhost", 8081))]


def test_options_without_effect_are_refused(bc, tmp_path):
    with pytest.raises(ArgumentError, match="without save_as_external_data"):
        visualize(bc, tmp_path / "m.onnx", external_data_file="w.bin")
    with pytest.raises(ArgumentError, match="without use_netron"):
        visualize(bc, tmp_path / "m.onnx", port=1)
    with pytest.raises(ArgumentError, match=r"suffix \.onnx"):
        visualize(bc, tmp_path / "m.bc")
    with pytest.raises(ArgumentError, match="name without folders"):
        visualize(bc, tmp_path / "m.onnx", save_as_external_data=True, external_data_file="a/w.bin")
