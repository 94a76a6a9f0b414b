"""What bad files get: .bc files that are cut, foreign, or malicious; writers that are killed."""

from __future__ import annotations

import contextlib
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from qtune.bpu import compiler
from qtune.errors import ArgumentError, HbirError
from qtune.hbir import serialize
from qtune.quantization.hbdk4 import export

from .steps import calibrated, quantized_module


@pytest.fixture(scope="module")
def content() -> bytes:
    from qtune import march

    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    with march.march("nash-e"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("QTUNE_RUN_DIR", "")
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
        return quantized_module(calibrated(model, x), x).to_bytes()


def refused(path: Path, *words: str) -> str:
    with pytest.raises(HbirError) as caught:
        compiler.load(path)
    text = str(caught.value)
    assert str(path) in text
    for word in words:
        assert word in text, text
    return text


def test_a_truncated_file_is_refused_wherever_it_ends(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.bc"
    chance = random.Random(0)
    sizes = {0, 1, 2, 10, len(content) // 2, len(content) - 1, len(content) - 2}
    for size in sorted(sizes | {chance.randrange(len(content)) for _ in range(200)}):
        path.write_bytes(content[:size])
        text = refused(path)
        assert "cut off" in text
        assert "again" in text
    path.write_bytes(content)
    assert compiler.load(path).stage == "quantized"


def test_a_damaged_file_is_refused_or_complete(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.bc"
    chance = random.Random(1)
    for _ in range(100):
        start = chance.randrange(len(content))
        damaged = content[:start] + content[start + chance.randrange(1, 40) :]
        path.write_bytes(damaged)
        with contextlib.suppress(HbirError):  # any other error fails the test
            compiler.load(path)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\x00" * 100, b"PK\x03\x04" + b"x" * 60, bytes(range(256))]
)
def test_a_file_that_is_no_onnx_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.bc"
    path.write_bytes(data)
    refused(path, "cut off")


def test_a_foreign_onnx_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bc"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) {y = Relu(x)}'
    )
    onnx.save(model, path)
    refused(path, "no qtune metadata", "another tool", "open it with onnx")


def test_a_missing_file_and_a_wrong_suffix_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "none.bc", "can't be read")
    refused_folder = tmp_path / "folder.bc"
    refused_folder.mkdir()
    refused(refused_folder, "can't be read")
    with pytest.raises(ArgumentError, match=r"model\.pt.*suffix \.bc"):
        compiler.load(tmp_path / "model.pt")


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.target,)


@pytest.mark.parametrize("way", ["pickle", "torch.save", "zip", "behind"])
def test_nothing_in_a_file_is_unpickled(way: str, content: bytes, tmp_path: Path) -> None:
    path, trace = tmp_path / "model.bc", tmp_path / "trace"
    data = pickle.dumps(Bomb(trace))
    if way in ("torch.save", "zip"):
        torch.save(Bomb(trace), path, _use_new_zipfile_serialization=way == "zip")
    else:
        path.write_bytes(data if way == "pickle" else content + data)
    refused(path)
    assert not trace.exists()
    pickle.loads(data)
    assert trace.exists(), "the trap works"


@pytest.mark.parametrize("key", ["qtune.inputs", "qtune.outputs", "qtune.report", "doc"])
def test_a_pickle_inside_the_metadata_is_only_text(
    key: str, content: bytes, tmp_path: Path
) -> None:
    path, trace = tmp_path / "model.bc", tmp_path / "trace"
    proto = onnx.load_model_from_string(content)
    text = pickle.dumps(Bomb(trace), protocol=0).decode("latin1")
    for entry in proto.metadata_props:
        if entry.key == key:
            entry.value = text
    if key == "doc":
        proto.doc_string = text
    for entry in proto.metadata_props:  # whoever plants a pickle can seal the file again
        if entry.key == serialize._META_CONTENT:
            entry.value = serialize._content(proto)
    path.write_bytes(proto.SerializeToString())
    module = compiler.load(path)
    if key == "doc":
        assert module[0](torch.randn(2, 3, 8, 8)).shape == (2, 2, 6, 6)
    else:
        with pytest.raises(HbirError, match=rf"{key} .*damaged.* again"):
            assert (module[0](torch.randn(2, 3, 8, 8)), module.report) is None
    assert not trace.exists()


def test_reading_a_file_imports_no_torch_and_no_pickle_of_it(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "model.bc"
    path.write_bytes(content)
    code = (
        "import sys, pickle\n"
        "pickle.loads = pickle.load = pickle.Unpickler = None\n"
        "from qtune.hbir.serialize import load\n"
        f"assert load({str(path)!r}).stage == 'quantized'\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


WRITER = """
import sys
from pathlib import Path
from qtune.bpu import compiler
from qtune.report.files import write_text

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
module = compiler.load(source)
ready = "ready"
while True:
    compiler.save(module, folder / "model.bc")
    write_text(folder / "report.txt", "begin " + "x" * 2_000_000 + " end")
    if ready:
        print(ready, flush=True)
        ready = ""
"""


def test_a_killed_run_leaves_only_whole_files(content: bytes, tmp_path: Path) -> None:
    source, folder = tmp_path / "source.bc", tmp_path / "out"
    source.write_bytes(content)
    folder.mkdir()
    command = [sys.executable, "-c", WRITER, str(source), str(folder)]
    for delay in (0.0, 0.003, 0.02):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(delay)
            writer.send_signal(signal.SIGKILL)
        assert {"model.bc", "report.txt"} <= {path.name for path in folder.iterdir()}
        for path in folder.iterdir():
            if path.name.startswith("."):  # an unfinished file has another name
                assert ".part" in path.name
            elif path.suffix == ".bc":
                assert path.read_bytes() == compiler.load(path).to_bytes() == content
            else:
                text = path.read_text()
                assert text.startswith("begin ")
                assert text.endswith(" end")


def test_a_writer_that_fails_leaves_the_old_file(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.bc"
    path.write_bytes(content)
    module = compiler.load(path)

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        compiler.save(module, path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_export_writes_nothing_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.randn(2, 3, 8, 8)
    export(calibrated(nn.Sequential(nn.Conv2d(3, 4, 3)), x), x)
    assert list(tmp_path.iterdir()) == []
