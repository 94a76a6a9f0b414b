"""``input_source`` of compile_model and perf_model: programs that take a camera's planes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.compiler import Hbm
from qtune.errors import ArgumentError, ConvertError
from qtune.quantization import (
    DeQuantStub,
    FloatFunctional,
    QuantStub,
    check_model,
    compile_model,
    convert,
    perf_model,
)

from .flow import calib, prep

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
"""torch announces the end of torch.jit, which the documents' flow uses."""

SIZE = 8


class Net(nn.Module):
    """A picture and a vector that is no picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.image, self.vector, self.out = QuantStub(scale=1 / 128), QuantStub(), DeQuantStub()
        self.conv, self.pool, self.add = (
            nn.Conv2d(channels, 4, 3),
            nn.MaxPool2d(2),
            FloatFunctional(),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.out(self.add.add(self.pool(self.conv(self.image(x))), self.vector(y)))


class TwoStubs(nn.Module):
    """One picture, quantized at two places; at ``second`` with another scale."""

    def __init__(self, second: float) -> None:
        super().__init__()
        self.one, self.two, self.out = QuantStub(scale=1 / 128), QuantStub(second), DeQuantStub()
        self.a, self.b, self.add = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.add.add(self.a(self.one(x)), self.b(self.two(x))))


def converted(model: nn.Module, *example: Tensor) -> Any:
    prepared = prep(model, example)
    calib(prepared, [example])
    return convert(prepared)


def picture(batch: int, channels: int) -> tuple[dict[str, np.ndarray[Any, Any]], Tensor]:
    """Planes, and the float picture ``(pixel - 128) / 128`` that they are."""
    rng = np.random.default_rng(channels)
    y = rng.integers(0, 256, (batch, SIZE, SIZE, 1), dtype=np.uint8)
    if channels == 1:
        planes, pixels = {"_input_0": y}, y
    else:
        uv = rng.integers(0, 256, (batch, SIZE // 2, SIZE // 2, 2), dtype=np.uint8)
        pixels = np.concatenate([y, uv.repeat(2, axis=1).repeat(2, axis=2)], axis=3)
        planes = {"_input_0_y": y, "_input_0_uv": uv}
    real = (pixels.astype(np.float32) - 128) / 128
    return planes, torch.from_numpy(real).permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(("batch", "channels"), [(1, 3), (2, 3), (1, 1)])
@pytest.mark.parametrize("source", ["pyramid", "resizer"])
def test_planes_give_the_bits_of_the_converted_model_on_the_picture(
    source: str, batch: int, channels: int, traced: bool, tmp_path: Path
) -> None:
    planes, real = picture(batch, channels)
    vector = torch.linspace(-1, 1, batch * 4).reshape(batch, 4, 1, 1)
    model = converted(Net(channels), real, vector)
    module = torch.jit.trace(model, (real, vector)) if traced else model
    sources = [source, "ddr"]
    assert check_model(module, (real, vector), input_source=sources) == 0
    file = tmp_path / "m.hbm"
    compile_model(module, (real, vector), file, input_source=sources, progressbar=False)
    function = Hbm(file)[0]
    feed: dict[str, Any] = {**planes, "_input_1": vector}
    if source == "resizer":
        feed["_input_0_roi"] = np.array([[0, 0, SIZE - 1, SIZE - 1]] * batch, dtype=np.int32)
    assert {item.name for item in function.inputs} == set(feed)
    assert {item.dtype for item in function.inputs} <= {"uint8", "int32", "float32"}
    got = torch.as_tensor(function.feed(feed)["_output_0"])
    assert torch.equal(got, model(real, vector))
    if source == "resizer":
        feed["_input_0_roi"][:] = [2, 2, 5, 5]
        part = torch.as_tensor(function.feed(feed)["_output_0"])
        assert not torch.equal(part, got)


def test_a_picture_may_go_to_two_stubs_of_that_scale(tmp_path: Path) -> None:
    planes, real = picture(1, 3)
    model = converted(TwoStubs(1 / 128), real)
    compile_model(model, real, tmp_path / "m.hbm", input_source="pyramid", progressbar=False)
    got = Hbm(tmp_path / "m.hbm")[0].feed(planes)["_output_0"]
    assert torch.equal(torch.as_tensor(got), model(real))
    other = converted(TwoStubs(1 / 64), real)
    with pytest.raises(ConvertError, match=r"_input_0 must go straight to .*but two takes it"):
        compile_model(other, real, tmp_path / "o.hbm", input_source="pyramid", progressbar=False)


def test_the_estimate_counts_bytes_of_planes(tmp_path: Path) -> None:
    _, real = picture(1, 3)
    vector = torch.ones(1, 4, 1, 1)
    model = converted(Net(3), real, vector)
    options: dict[str, Any] = {"out_dir": tmp_path, "progressbar": False}
    camera = perf_model(model, (real, vector), input_source=["pyramid", "ddr"], **options)
    names = [item["name"] for item in camera["functions"][0]["memory"]["ports"]]
    assert names[:3] == ["_input_0_y", "_input_0_uv", "_input_1"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"input_source": "pyramid"}, ConvertError, r"_input_1: .*1 or 3, H, W\], the input is"),
        (
            {"input_source": ["pyramid", "ddr"], "input_layout": "NCHW"},
            ArgumentError,
            "planes of a camera image are NHWC",
        ),
        ({"input_source": ["pyramid"]}, ArgumentError, "one for each of the 2 inputs"),
    ],
)
def test_inputs_that_are_no_pictures_are_refused(
    options: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    _, real = picture(1, 3)
    vector = torch.ones(1, 4, 1, 1)
    model = converted(Net(3), real, vector)
    with pytest.raises(error, match=text):
        compile_model(model, (real, vector), tmp_path / "m.hbm", progressbar=False, **options)
    assert not (tmp_path / "m.hbm").exists()
