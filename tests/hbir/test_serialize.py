"""``.bc`` files: whole, checked, readable without torch, never unpickled."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest

from qtune.errors import ArgumentError, HbirError
from qtune.hbir.module import HbirModule
from qtune.hbir.serialize import from_bytes, load, save
from tests.hbir.graphs import relu_module

X = np.array([[-1.0, 0.0, 2.0], [3.0, -4.0, 5.0]], dtype=np.float32)


def test_file_gives_the_same_module(tmp_path):
    module = relu_module()
    save(module, tmp_path / "m.bc")

    again = load(tmp_path / "m.bc")

    assert again.to_bytes() == module.to_bytes()
    assert again.stage == "qat"
    assert np.array_equal(again[0](X), module[0](X))


def test_file_is_an_onnx_model(tmp_path):
    save(relu_module(), tmp_path / "m.bc")

    onnx.checker.check_model(onnx.load(tmp_path / "m.bc", format="protobuf"), full_check=True)


def test_every_cut_is_noticed(tmp_path):
    data = relu_module().to_bytes()
    for end in range(len(data)):
        with pytest.raises(HbirError, match=r"m\.bc"):
            from_bytes(data[:end], "m.bc")


def test_truncated_file_is_named_with_the_remedy(tmp_path):
    path = tmp_path / "m.bc"
    path.write_bytes(relu_module().to_bytes()[:-7])

    with pytest.raises(HbirError, match=r"m\.bc .*cut off.*Save"):
        load(path)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 a zip", pickle.dumps({"a": 1}), b"\x00" * 99]
)
def test_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "m.bc"
    path.write_bytes(content)

    with pytest.raises(HbirError, match=r"m\.bc"):
        load(path)


def test_onnx_file_of_another_tool_is_refused(tmp_path):
    proto = onnx.load_model_from_string(relu_module().to_bytes())
    del proto.metadata_props[:]
    (tmp_path / "m.bc").write_bytes(proto.SerializeToString())

    with pytest.raises(HbirError, match="ONNX file of another tool"):
        load(tmp_path / "m.bc")


def test_other_format_version_is_refused():
    proto = onnx.load_model_from_string(relu_module().to_bytes())
    for entry in proto.metadata_props:
        if entry.key == "qtune.schema":
            entry.value = "99"

    with pytest.raises(HbirError, match="format version 99"):
        from_bytes(proto.SerializeToString())


def test_missing_file_is_an_hbir_error(tmp_path):
    with pytest.raises(HbirError, match="No such file"):
        load(tmp_path / "no.bc")


@pytest.mark.parametrize("name", ["m.onnx", "m"])
def test_suffix_must_be_bc(tmp_path, name):
    with pytest.raises(ArgumentError, match=r"suffix \.bc"):
        save(relu_module(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_failing_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "m.bc"
    path.write_bytes(b"old")
    monkeypatch.setattr("pathlib.Path.write_bytes", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        save(relu_module(), path)

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_reading_needs_no_torch(tmp_path):
    save(relu_module(), tmp_path / "m.bc")
    script = (
        "import sys; from qtune.hbir.serialize import load; "
        f"m = load({str(tmp_path / 'm.bc')!r}); "
        "print(m.stage, m[0].inputs[0], m[0].operator_names()); "
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["qat", "_input_0:", "float32[2,", "3]", "['relu1',", "'relu2']"]


def test_module_pickles_and_deepcopies_as_its_file():
    module = relu_module()

    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert again.to_bytes() == module.to_bytes()


def test_every_flipped_bit_is_noticed():
    data = relu_module().to_bytes()
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(HbirError):
            from_bytes(bytes(damaged))


def test_text_of_a_module_parses_to_the_same_module():
    module = relu_module()
    text = module.get_asm(enable_debug_info=True)
    assert HbirModule.parse(text).to_bytes() == module.to_bytes()
    short = HbirModule.parse(module.get_asm())
    assert np.array_equal(short[0](X), module[0](X))


@pytest.mark.parametrize(
    ("text", "error"),
    [("module { }", "not one that get_asm gave"), ("", "no qtune metadata")],
)
def test_other_text_is_refused(text, error):
    with pytest.raises(HbirError, match=error):
        HbirModule.parse(text)
