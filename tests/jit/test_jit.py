"""``qtune.jit``: files with a version, and devices inside a graph."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qtune
from qtune import jit
from qtune.errors import ArgumentError, RunError
from qtune.quantization import convert
from qtune.quantization import jit as files

from ..cases.steps import calibrated

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""torch announces the end of torch.jit, which the documents' flow uses."""

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Makes(nn.Module):
    """The example of the plugin guide, with a constant tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.ones(x.shape, device=x.device)
        return y + torch.zeros_like(x)


@pytest.fixture
def traced() -> Any:
    prepared = calibrated(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), X)
    model = convert(prepared)
    return torch.jit.trace(model, X), model(X)


def test_a_saved_model_gives_the_same_bits(traced: Any, tmp_path: Path) -> None:
    model, expected = traced
    jit.save(model, tmp_path / "m.pt")
    buffer = io.BytesIO()
    jit.save(model, buffer)
    buffer.seek(0)
    for file in (tmp_path / "m.pt", str(tmp_path / "m.pt"), buffer):
        assert torch.equal(jit.load(file, map_location="cpu")(X), expected)
    assert qtune.jit is jit


def test_a_file_without_a_version_is_refused(traced: Any, tmp_path: Path) -> None:
    torch.jit.save(traced[0], tmp_path / "m.pt")
    with pytest.raises(RunError, match=r"holds no version of qtune: torch.jit.save wrote it"):
        jit.load(tmp_path / "m.pt")


def write(model: Any, file: Path, **facts: str) -> None:
    known = {"format": files.FORMAT, "program": "1", "version": qtune.__version__}
    torch.jit.save(model, str(file), _extra_files={"qtune.json": json.dumps(known | facts)})


def test_a_file_of_another_format_is_refused(traced: Any, tmp_path: Path) -> None:
    write(traced[0], tmp_path / "m.pt", format="0", version="9.9")
    with pytest.raises(RunError, match=r"written by qtune 9.9 in another format \(\{'format': '0'"):
        jit.load(tmp_path / "m.pt")


def test_a_file_of_another_version_is_loaded_with_a_line_in_the_log(
    traced: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(traced[0], tmp_path / "m.pt", version="9.9")
    with caplog.at_level(logging.WARNING, "qtune"):
        assert torch.equal(jit.load(tmp_path / "m.pt")(X), traced[1])
    assert "was written by qtune 9.9, this is" in caplog.text


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"can't be read as a TorchScript file"):
        jit.load(tmp_path / "m.pt")
    with pytest.raises(ArgumentError, match=r"expected what torch.jit.trace or torch.jit.script"):
        jit.save(nn.ReLU(), tmp_path / "m.pt")


def test_to_device_replaces_devices_in_the_graph() -> None:
    model = torch.jit.trace(Makes(), torch.rand(2, 3))
    moved = jit.to_device(model, torch.device("meta"))
    assert moved(torch.rand(2, 3, device="meta")).device.type == "meta"
    assert 'value="meta"' in str(moved.graph)
    assert 'value="cpu"' not in str(moved.graph)
    assert model(torch.rand(2, 3)).device.type == "cpu"
    assert 'value="cpu"' in str(model.graph)


def test_a_device_that_the_machine_lacks_is_named() -> None:
    model = torch.jit.trace(Makes(), torch.rand(2, 3))
    lacking = "cuda:99" if torch.cuda.is_available() else "cuda"
    with pytest.raises(ArgumentError, match=f"this machine has no device {lacking} "):
        jit.to_device(model, lacking)


def test_to_device_moves_constants_inside_submodules_and_blocks() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor, often: int) -> Tensor:
            for _ in range(often):
                x = x + torch.full([2], 1.0, device=torch.device("cpu"))
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, 2)

    moved = jit.to_device(torch.jit.script(Outer()), "meta")
    assert moved(torch.rand(2, device="meta")).device.type == "meta"


def test_to_device_keeps_the_programs_of_a_converted_model(traced: Any) -> None:
    model, expected = traced
    assert torch.equal(jit.to_device(model, "cpu")(X), expected)
