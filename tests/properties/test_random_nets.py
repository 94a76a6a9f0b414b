"""Random nets through the whole line: each stage against the one before it."""

from __future__ import annotations

from itertools import chain, repeat

import pytest
import torch
from torch import Tensor, nn

from qtune.dtype import qint16
from qtune.nn.prepared import PreparedModel
from qtune.quantization import (
    FakeQuantState,
    QconfigSetter,
    get_qconfig,
    hbdk4,
    prepare,
    set_fake_quantize,
)
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from .harness import flat, run_everywhere
from .random_nets import draw_net

NETS = range(25)


def results(model: nn.Module, *data: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return flat(model(*data))


def calibrated(seed: int) -> tuple[nn.Module, PreparedModel, Tensor]:
    net, x = draw_net(seed)
    # Half of the nets with some int16 layers.
    names = [f"layers.{i}" for i in range(seed % 2, 9, 2)] if seed % 2 else []
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate(dict(zip(names, repeat(qint16))))])
    prepared = prepare(net, x, setter).eval()
    set_fake_quantize(prepared, FakeQuantState.CALIBRATION)
    results(prepared, x)
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    return net, prepared, x


@pytest.mark.parametrize("seed", NETS)
def test_every_stage_of_a_random_net_gives_the_numbers_of_the_one_before(seed: int) -> None:
    net, prepared, x = calibrated(seed)
    set_fake_quantize(prepared, FakeQuantState._FLOAT)
    for left, right in zip(results(prepared, x), results(net, x), strict=True):
        # 1e-5 relative: folded batch norms and decomposed softmaxes (numerics.md section 5)
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))
    set_fake_quantize(prepared, FakeQuantState.VALIDATION)
    fake = results(prepared, x)
    assert all(bool(torch.isfinite(value).all()) for value in fake)

    qat_bc = hbdk4.export(prepared, x)
    exported = results(hbdk4.pre_export(prepared), x)
    assert all(map(torch.equal, flat(qat_bc[0](x)), exported)), f"qat.bc:\n{net}"

    quantized = hbdk4.convert(qat_bc)
    for data in (x, x.flip(0) * 5):
        run_everywhere(quantized, [data])


def test_the_nets_differ_and_have_the_layers_that_matter() -> None:
    texts = [repr(draw_net(seed)[0]) for seed in NETS]
    assert len(set(texts)) == len(texts)
    drawn = "".join(chain.from_iterable(texts))
    for name in ("Conv2d", "ConvTranspose2d", "BatchNorm2d", "max_pool2d", "interpolate", "cat"):
        assert name in drawn
