"""cat and the last product of softmax: equal to the fake-quant model but beside ties.

numerics.md section 3: 0 steps unless the real value lies within ``abs(code) * 2**-15`` of a tie,
then 1. The operators are fed the same numbers on their inputs' grids in both stages.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu.convert import convert
from qtune.dtype import QuantDType, qint8, qint16
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    prepare,
    qconfig_setter,
    set_fake_quantize,
)
from qtune.quantization.hbdk4 import export


@pytest.fixture(autouse=True)
def _no_run_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QTUNE_RUN_DIR", "")
    with march("nash-e"):
        yield


def stages(
    model: nn.Module, data: tuple[Tensor, ...], dtype: QuantDType
) -> tuple[HbirModule, HbirModule]:
    template = qconfig_setter.ModuleNameTemplate({"": dtype}, freeze=True)
    p = prepare(model.eval(), data, QconfigSetter(get_qconfig(), [template])).eval()
    set_fake_quantize(p, FakeQuantState.CALIBRATION)
    with torch.no_grad():
        p(*data)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    qat = export(p, data)
    return qat, convert(qat)


def differences(
    modules: tuple[HbirModule, HbirModule], name: str, inputs: dict[str, Tensor], real: Tensor
) -> Tensor:
    """Codes by which the stages differ; a difference is one step and lies beside a tie.

    ``real``: the exact value in steps of the output, of the same inputs.
    """
    fake, integer = (m[0].extract_operator(name)(inputs) for m in modules)
    assert integer.codes is not None
    assert integer.scale is not None
    fake_codes = (fake.values.double() / integer.scale).round()
    apart = (integer.codes.double() - fake_codes).abs()
    assert float(apart.max()) <= 1
    to_tie = (real - torch.floor(real) - 0.5).abs()
    assert bool((to_tie[apart > 0] <= real.abs()[apart > 0] * 2.0**-15).all())
    return apart


class Join(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], 1)


@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
@pytest.mark.parametrize("ratio", [1.0, 0.3, 0.01, 0.997])
def test_cat_differs_only_beside_ties(dtype: QuantDType, ratio: float) -> None:
    wide = torch.linspace(-1.0, 1.0, 2001).reshape(1, -1)
    modules = stages(Join(), (wide, wide * ratio), dtype)
    producers = sorted(modules[1][0].extract_operator("_generated_cat_0").inputs)
    grids = [_scale_of(modules[1], name) for name in producers]
    codes = torch.arange(dtype.qmin, dtype.qmax + 1)[None, :: max(1, 2 ** (dtype.bits - 11))]
    codes = codes.repeat(1, -(-2001 // codes.shape[1]))[:, :2001].double()
    inputs = {n: (codes * s).float() for n, s in zip(producers, grids, strict=True)}
    out = _scale_of(modules[1], "_generated_cat_0")
    real = torch.cat([codes * (s / out) for s in grids], 1)
    differences(modules, "_generated_cat_0", inputs, real)


@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0])
def test_the_last_product_of_softmax_differs_only_beside_ties(spread: float) -> None:
    x = torch.randn(64, 40, generator=torch.Generator().manual_seed(0)) * spread
    modules = stages(nn.Sequential(nn.Softmax(1)), (x,), qint8)
    seen: dict[str, Tensor] = {}
    feed = {modules[1][0].inputs[0].name: x}
    modules[1][0].run(feed, observe=lambda name, result: seen.update({name: result.values}))
    inputs = {name: seen[name] for name in modules[1][0].extract_operator("0.mul").inputs}
    exp, inverse = (
        torch.floor(v.double() / _scale_of(modules[1], n) + 0.5) * _scale_of(modules[1], n)
        for n, v in inputs.items()
    )
    real = exp * inverse / _scale_of(modules[1], "0.mul")
    apart = differences(modules, "0.mul", inputs, real.clamp(-128, 127))
    assert float(apart.mean()) < 0.01


def _scale_of(module: HbirModule, name: str) -> float:
    for node in module.model.graph:
        value = node.outputs[0]
        if node.metadata_props.get("qtune.op") == name and "qtune.scale" in value.metadata_props:
            return float(value.metadata_props["qtune.scale"])
    raise AssertionError(f"{name} has no scale")
