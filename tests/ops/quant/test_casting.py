"""Casts of float32 to float32 pass their input on; real ones stay float with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, fx, nn

from qtune.bpu import compiler
from qtune.march import march
from qtune.ops.quant.casting import bind_to
from qtune.quantization import prepare
from qtune.quantization.calibrate import auto_calibrate
from qtune.quantization.hbdk4 import export

Cast = Callable[[Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def nash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with march("nash-e"):
        yield


class Casting(nn.Module):
    def __init__(self, cast: Cast) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 1)
        self.cast = cast

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.last(torch.relu(self.cast(y, x)))


X = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "cast",
    [
        lambda y, x: y.float(),
        lambda y, x: y.to(torch.float32),
        lambda y, x: y.to(dtype=torch.float32, copy=True),
        lambda y, x: y.to(x),
        lambda y, x: y.type_as(x),
        lambda y, x: y.to("cpu"),
        lambda y, x: y.to(device=x.device),
        lambda y, x: y.to(x.device, torch.float32),
    ],
)
def test_a_cast_that_changes_nothing_is_an_operator(cast: Cast) -> None:
    torch.manual_seed(0)
    model = Casting(cast).eval()
    calib = auto_calibrate(prepare(model, X), [X])
    assert calib.float_ops == ()
    qat = export(calib, X)
    integer = compiler.convert(qat)
    assert integer.report == ()
    assert torch.equal(qat[0](X), calib(X))


@pytest.mark.parametrize(
    ("cast", "reason"),
    [
        (lambda y, x: y.to(torch.float64).to(torch.float32), r"to\(\) makes torch.float64"),
        (lambda y, x: y.long().float(), r"long\(\) makes torch.int64 of torch.float32"),
        (lambda y, x: (y > 0).float(), r"it makes numbers of a mask"),
    ],
)
def test_a_real_change_stays_float_with_the_reason(cast: Cast, reason: str) -> None:
    model = prepare(Casting(cast).eval(), X)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError([item.reason for item in model.float_ops])


def test_a_move_to_another_device_is_refused() -> None:
    node = fx.Graph().placeholder("x")
    node.meta.update(dtype=torch.float32, device=torch.device("cuda", 1))
    assert bind_to(node, "cuda").attrs["kind"] == "float32"
    for device in ("cpu", "cuda:0", torch.device("cuda", 0), 1):
        with pytest.raises(NotImplementedError, match="moves data between devices"):
            bind_to(node, device)


def test_a_float_cast_outside_of_the_stubs_is_exported() -> None:
    class After(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x).float().type_as(x)

    calib = auto_calibrate(prepare(After().eval(), X), [X])
    assert torch.equal(export(calib, X)[0](X), calib(X))
