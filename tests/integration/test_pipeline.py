"""prepare, pre_export, export, convert, run: the stages of one network against each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from qtune.bpu import compiler
from qtune.nn.prepared import PreparedModel
from qtune.nn.propagate import value_quantizers
from qtune.nn.table import TableOp
from qtune.quantization import FakeQuantState, hbdk4, prepare, set_fake_quantize

from ..quantization.flow import calib, prep, run, s8
from .networks import INT16, NETWORKS, Network
from .test_networks import EVERY, calibrated, leaves


def output_steps(p: PreparedModel) -> list[float]:
    """The grid step of every output; of a high-precision one a step of int8 on its range."""
    known = value_quantizers(p)
    output = next(node for node in p.graph.nodes if node.op == "output")
    found = []
    for leaf in output.args[0]:
        quantizer = known[leaf.args[0]]
        found.append(0.0 if quantizer is None else float(quantizer.scale))
    return found


@EVERY
def test_int8_tables_change_nothing(network: Network) -> None:
    p, (x, *_) = calibrated(network), network.data()
    exported = hbdk4.pre_export(p)
    tables = [op for _, op in exported.operators() if isinstance(op, TableOp)]
    if all(table.in_dtype.bits <= 8 for table in tables):
        assert all(map(torch.equal, leaves(run(exported, x)), leaves(run(p, x))))
    assert all(table.error <= 5 for table in tables)  # reciprocal: 5 (numerics.md section 3)
    assert not [op for _, op in p.operators() if isinstance(op, TableOp)]


@EVERY
@pytest.mark.parametrize("int16", [False, True], ids=["int8", "int16"])
def test_export_is_bit_equal_and_convert_close(network: Network, int16: bool) -> None:
    p, (x, *_) = calibrated(network, int16), network.data()
    pre = hbdk4.pre_export(p)
    qat_bc = hbdk4.export(p, x)
    expected = leaves(run(pre, x))
    got = leaves(qat_bc[0](x))
    assert all(map(torch.equal, got, expected))
    integer = leaves(hbdk4.convert(qat_bc)[0](x))
    for y, base, step in zip(integer, got, output_steps(p), strict=True):
        # one step per requantized operator on the way, and what the next layers make of it
        bound = max(4.001 * step, 0.03 * float(base.abs().max()))
        assert float((y - base).abs().max()) <= bound


def test_the_stages_keep_the_structure_of_the_output(tmp_path: Path) -> None:
    network = NETWORKS["unet"]
    p, (x, *_) = calibrated(network), network.data()
    quantized = hbdk4.convert(hbdk4.export(p, x))
    path = tmp_path / "model.bc"
    compiler.save(quantized, str(path))
    again = compiler.load(str(path))
    y, expected = again[0](x), quantized[0](x)
    assert set(y) == {"mask", "aux"}
    assert y["aux"][1] is None
    assert all(map(torch.equal, leaves(y), leaves(expected)))


def test_a_tiny_weight_with_a_large_bias_is_neither_clipped_nor_wrapped() -> None:
    """A02"""
    conv = nn.Conv2d(1, 1, 1)
    conv.weight.data.fill_(1.275e-6)
    conv.bias.data.fill_(3.0)
    x = torch.full((1, 1, 2, 2), 12.75)
    p = prep(conv, x)
    calib(p, [x])
    y = hbdk4.convert(hbdk4.export(p, x))[0](x)
    assert (y - 3.0000163).abs().max() <= s8(3.0)


def test_cat_has_a_scale_of_its_own_in_every_stage() -> None:
    """A24"""

    class Cat(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.cat([a, b])

    a, b = torch.linspace(-1, 1, 101), torch.linspace(-50, 50, 101)
    for data in ((a, b), (b, a)):
        p = prep(Cat(), data)
        calib(p, [data])
        cat = p.get_submodule("_generated_cat_0").activation_post_process
        assert float(cat.scale) == s8(50.0)
        y = run(p, data)
        assert (y - torch.cat(data)).abs().max() <= s8(50.0) / 2 * 1.001 + s8(1.0)
        integer = hbdk4.convert(hbdk4.export(p, data))[0](*data)
        assert (integer - y).abs().max() <= 1.001 * s8(50.0)  # a step near a tie (section 3)


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 1, 3, bias=False), nn.Linear(6, 1, bias=False)])
def test_a_gemm_with_a_single_output_channel(layer: nn.Module) -> None:
    x = torch.randn(2, 3, 6, 6)
    p = prep(nn.Sequential(layer, nn.ReLU()), x)
    calib(p, [x])
    y = hbdk4.convert(hbdk4.export(p, x))[0](x)
    step = float(p.get_submodule("1").activation_post_process.scale)
    assert (y - run(p, x)).abs().max() <= 1.001 * step


def test_operators_that_take_int8_only_get_their_own_input_grid() -> None:
    class Flip(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flip(1)

    x = torch.randn(2, 3)
    p = prep(Flip(), x, qconfig_setter=INT16)
    calib(p, [x])
    y = hbdk4.convert(hbdk4.export(p, x))[0](x)
    step = float(p.get_submodule("_generated_flip_0").input_fake_quants["0"].scale)
    assert (y - run(p, x)).abs().max() <= 1.001 * step  # one requantize from int16


def test_a_part_outside_the_stubs_exports_as_float() -> None:
    from qtune.quantization import DeQuantStub, QuantStub

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.conv = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 1)
            self.quant, self.dequant = QuantStub(), DeQuantStub()

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.dequant(self.conv(self.quant(self.before(x)))), 1)

    x = torch.randn(2, 3, 6, 6)
    p = prep(Part(), x)
    calib(p, [x])
    qat_bc = hbdk4.export(p, x)
    assert torch.equal(qat_bc[0](x), run(p, x))
    difference = (hbdk4.convert(qat_bc)[0](x) - run(p, x)).abs().max()
    assert difference < 1e-4  # float32 against exact sums; one step off moves a probability by more


def test_float_islands_convert_between_their_stubs() -> None:
    part = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sigmoid())
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), part, nn.Conv2d(4, 2, 1))
    part.qconfig = None
    x = torch.randn(2, 3, 6, 6)
    p = prep(model, x)
    calib(p, [x])
    qat_bc = hbdk4.export(p, x)
    assert torch.equal(qat_bc[0](x), run(p, x))
    y = hbdk4.convert(qat_bc)[0](x)
    # a step of the relu before the island and one of the stub behind it, seen by the last conv
    assert (y - run(p, x)).abs().max() <= 0.03 * run(p, x).abs().max()


def test_training_moves_what_is_exported() -> None:
    network = NETWORKS["residual"]
    x = network.data()[0]
    p = prepare(network.model().train(), x)
    optimizer = torch.optim.SGD(p.parameters(), lr=0.05)
    first = None
    for _ in range(5):
        loss = (p.train()(x) - 1).pow(2).mean()
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < first
    p.eval()
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    qat_bc = hbdk4.export(p, x)
    assert torch.equal(qat_bc[0](x), run(p, x))
    y = hbdk4.convert(qat_bc)[0](x)
    assert (y - run(p, x)).abs().max() <= 0.03 * run(p, x).abs().max()


@pytest.mark.parametrize("view", ["transposed", "sliced", "expanded", "flipped"])
def test_any_strides_of_the_input_give_the_same_numbers(view: str) -> None:
    """A19"""
    network = NETWORKS["mobile"]
    p = calibrated(network)
    base = torch.randn(2, 6, 32, 32)
    x = {
        "transposed": base[:, :3].transpose(2, 3),
        "sliced": base[:, ::2],
        "expanded": base[:1, :3].expand(4, 3, 32, 32),
        "flipped": base[:, 3:].flip(0),
    }[view]
    assert torch.equal(run(p, x), run(p, x.contiguous()))
    qat_bc = hbdk4.export(p, x)
    quantized = hbdk4.convert(qat_bc)
    for module in (qat_bc, quantized):
        assert torch.equal(module[0](x), module[0](x.contiguous()))
