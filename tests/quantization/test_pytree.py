"""Flat lists in place of containers: export with native_pytree=False."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.compiler import compile, convert
from qtune.capture.inputs import Inputs
from qtune.errors import ArgumentError
from qtune.quantization import hbdk4
from tests.quantization.flow import calib, prep


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, images: dict[str, Tensor], *, scale: Tensor) -> dict[str, object]:
        left, right = self.a(images["left"]), self.b(images["right"])
        return {"sum": left + right * scale, "parts": [left, None, right]}


X = {"left": torch.rand(1, 3, 4, 4), "right": torch.rand(1, 3, 4, 4)}
SCALE = torch.rand(1, 4, 4, 4)


@pytest.fixture
def model(quantization_ready):
    example = Inputs(X, scale=SCALE)
    p = prep(Two(), example)
    calib(p, [example])
    return p


@pytest.fixture
def quantization_ready(tmp_path, monkeypatch):
    from qtune import march

    monkeypatch.setenv("QTUNE_RUN_DIR", str(tmp_path / "run"))
    torch.manual_seed(0)
    with march.march("nash-e"):
        yield


def test_flat_call_gives_the_model_s_containers(model, tmp_path):
    flat = hbdk4.export(model, Inputs(X, scale=SCALE), native_pytree=False)
    native = hbdk4.export(model, Inputs(X, scale=SCALE))
    assert (flat[0].support_pytree, native[0].support_pytree) == (False, True)
    expected = native[0](X, scale=SCALE)
    quantized = convert(flat, "nash-e")
    hbm = compile(quantized, tmp_path / "m.hbm", "nash-e")

    for holder in (model, flat, flat[0], quantized, hbm):
        flatten = hbdk4.get_hbir_input_flattener(holder)
        unflatten = hbdk4.get_hbir_output_unflattener(holder)
        inputs = flatten(X, scale=SCALE)
        assert [t is u for t, u in zip(inputs, [*X.values(), SCALE], strict=True)] == [True] * 3
        result = unflatten(flat[0](*inputs))
        assert list(result) == ["sum", "parts"]
        assert result["parts"][1] is None
        assert torch.equal(result["sum"], expected["sum"])
        assert torch.equal(result["parts"][2], expected["parts"][2])


def test_other_structures_are_refused(model):
    flat = hbdk4.export(model, Inputs(X, scale=SCALE), native_pytree=False)
    with pytest.raises(ArgumentError, match="left"):
        hbdk4.get_hbir_input_flattener(flat)({"left": X["left"]}, scale=SCALE)
    with pytest.raises(ArgumentError, match="list of the 3 outputs, got 1"):
        hbdk4.get_hbir_output_unflattener(model)([SCALE])
    with pytest.raises(ArgumentError, match="prepared model or an exported module, got Two"):
        hbdk4.get_hbir_input_flattener(Two())
