"""Models of every kind by name, and a program that runs the files of them in a new process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qtune
from qtune import jit
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten
from qtune.modes import qat_mode
from qtune.quantization import (
    FakeQuantState,
    PrepareMethod,
    convert,
    get_default_qat_qconfig,
    get_default_qconfig,
    prepare,
    prepare_qat_fx,
    set_fake_quantize,
)

from .article import IMAGES, qat_detector

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))


class Net(nn.Module):
    """A residual group, a decomposed layer, a table, a constant, integers, another task."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last, self.layer = nn.Linear(8, 5), nn.LayerNorm(8)
        self.register_buffer("factor", torch.linspace(-1, 1, 8).reshape(1, 8, 1, 1))

    def forward(self, x: Tensor, task: str = "all") -> dict[str, Tensor]:
        y = F.silu(self.norm(self.conv(x)))
        if task != "all":
            y = y * self.factor
        y = y.mean((2, 3))
        return {"scores": self.last(self.layer(y)), "best": y.argmax(1)}


def _float_net(qconfig: Any = None) -> nn.Module:
    torch.manual_seed(0)
    model = Net().eval()
    nn.init.uniform_(model.norm.running_mean, -0.5, 0.5)
    model.qconfig = qconfig or get_default_qat_qconfig()
    return model


def _calibrated(prepared: nn.Module) -> nn.Module:
    set_fake_quantize(prepared.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        prepared(X)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def _in_mode(mode: str) -> nn.Module:
    with qat_mode(mode):
        return _calibrated(prepare(_float_net(), X))


def _branches() -> nn.Module:
    prepared = prepare(_float_net(), [Inputs(X), Inputs(X, "other")])
    set_fake_quantize(prepared.eval(), FakeQuantState.CALIBRATION)
    with torch.no_grad():
        prepared(X)
        prepared(X, "other")
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return prepared


def _hybrid() -> nn.Module:
    choice = {"module_name": ["last"]}
    return _calibrated(prepare_qat_fx(_float_net(), hybrid=True, hybrid_dict=choice))


def _lsq() -> nn.Module:
    return _calibrated(prepare(_float_net(get_default_qconfig("lsq", "lsq")), X))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "calibrated": lambda: _calibrated(prepare(_float_net(), X)),
    "with_bn": lambda: _in_mode("with_bn"),
    "reverse_fold": lambda: _in_mode("with_bn_reverse_fold"),
    "lsq": _lsq,
    "symbolic": lambda: _calibrated(prepare(_float_net(), method=PrepareMethod.SYMBOLIC)),
    "eager": qat_detector,
    "branches": _branches,
    "hybrid": _hybrid,
    "converted": lambda: convert(MODELS["calibrated"]()),
    "converted_fast": lambda: convert(MODELS["calibrated"](), fast_mode=True),
    "converted_branches": lambda: convert(_branches()),
    "converted_eager": lambda: convert(qat_detector()),
}


def result(name: str, model: Callable[..., Any]) -> list[Tensor]:
    """What a model of that name gives."""
    with torch.no_grad():
        return list(flatten(model(IMAGES if "eager" in name else X))[0])


def main(folder: Path) -> None:
    """Load and run the files that the test wrote."""
    qtune.set_march("nash-e")
    for name in MODELS:
        expected = torch.load(folder / f"{name}.results")
        model = torch.load(folder / f"{name}.pt", weights_only=False)
        assert all(map(torch.equal, result(name, model), expected)), name
        other = MODELS[name]()
        with torch.no_grad():
            for tensor in (*other.parameters(), *other.buffers()):
                if tensor.is_floating_point():
                    tensor.mul_(1.5)
        other.load_state_dict(torch.load(folder / f"{name}.state", weights_only=True))
        assert all(map(torch.equal, result(name, other), expected)), name
        file = folder / f"{name}.jit"
        if file.exists():
            traced = jit.to_device(jit.load(file), "cpu")
            assert all(map(torch.equal, result(name, traced), expected)), name


if __name__ == "__main__":
    main(Path(sys.argv[1]))
