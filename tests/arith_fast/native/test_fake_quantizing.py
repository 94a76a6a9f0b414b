"""The compiled fake-quantize equals torch's operators in every bit, and touches only its memory."""

import pytest
import torch

from qtune.arith_fast import fake_quantize_pass
from qtune.arith_fast.fake_quantize import fake_quantize
from qtune.arith_fast.native import engine, fake_quantizing
from tests.arith_fast.native.test_memory import EDGES, guarded

pytestmark = pytest.mark.skipif(not engine.available(), reason="compiled kernels are off")

GRID = -128, 127
SHAPES = [(1, (5000,)), (3, (3, 1700)), (7, (2, 7, 31, 17)), (64, (64, 3, 7, 7)), (2, (4099, 2))]


@pytest.fixture
def every_size(monkeypatch):
    """Tensors of any size, and rows of any length, go to the compiled kernel."""
    monkeypatch.setattr(fake_quantizing, "LEAST", 1)
    monkeypatch.setattr(fake_quantize_pass, "SHORTEST", 1)


def data(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * 3
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 3e38, 0.05, -0.05]
    x.view(-1)[: len(special)] = torch.tensor(special)[: x.numel()]
    return x


def scales(channels, seed=1):
    return torch.rand(channels, generator=torch.Generator().manual_seed(seed)) / 30 + 1e-3


def run(x, scale, axis, gradient, packed=True):
    leaf = x.detach().requires_grad_()
    y = fake_quantize(leaf, scale, *GRID, axis, packed=packed)
    y.backward(gradient)
    return y.detach(), leaf.grad, fake_quantize(x, scale, *GRID, axis)


def same(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def compare(monkeypatch, x, scale, axis, gradient):
    native = run(x, scale, axis, gradient)
    monkeypatch.setenv(engine.SWITCH, "off")
    for packed in (True, False):
        plain = run(x, scale, axis, gradient, packed)
        for got, want in zip(native, plain, strict=True):
            assert got.stride() == want.stride()
            got, want = (t.contiguous().nan_to_num(nan=123.0) for t in (got, want))
            assert same(got, want)


@pytest.mark.parametrize(("channels", "shape"), SHAPES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_values_and_gradients_equal_the_torch_form(
    every_size, monkeypatch, channels, shape, per_channel
):
    axis = shape.index(channels) if channels > 1 else -1
    scale = scales(channels if per_channel else 1)
    gradient = data(shape, seed=2)
    compare(monkeypatch, data(shape), scale, axis, gradient)


@pytest.mark.parametrize("count", [1, 7, 8, 15, 16, 17, 31, 33, 8191, 8192, 8193, 20000])
def test_every_length_of_a_row(every_size, monkeypatch, count):
    x = data((3, count))
    compare(monkeypatch, x, scales(3), 0, data((3, count), seed=3))


def test_channels_last_maps_keep_their_order(monkeypatch):
    x = data((2, 8, 30, 20)).to(memory_format=torch.channels_last)
    assert fake_quantize_pass.native_rows(x, scales(1), -1) is not None
    gradient = data(x.shape, 4).to(memory_format=torch.channels_last)
    compare(monkeypatch, x, scales(1), -1, gradient)


@pytest.mark.parametrize("gradient", ["expanded", "other order", "transposed"])
def test_gradients_of_another_order_are_masked_in_theirs(monkeypatch, gradient):
    x = data((2, 8, 30, 20))
    g = {
        "expanded": torch.tensor(2.0).expand(x.shape),
        "other order": data(x.shape, 5).to(memory_format=torch.channels_last),
        "transposed": data((20, 30, 8, 2), 6).permute(3, 2, 1, 0),
    }[gradient]
    native, plain = [], []
    for found, switch in ((native, ""), (plain, "off")):
        monkeypatch.setenv(engine.SWITCH, switch)
        found.append(run(x, scales(1), -1, g)[1])
    assert torch.equal(native[0].nan_to_num(9), plain[0].nan_to_num(9))


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("shape", [(3, 5), (1, 17), (4, 8193), (5, 4096)])
def test_no_byte_outside_is_read_or_written(edge, shape):
    """A byte too much ends the process."""
    rows = fake_quantizing.Rows(shape[0], shape[1], shape[0])
    x = guarded(shape, torch.float32, edge).copy_(torch.randn(shape))
    scale = guarded((shape[0],), torch.float32, edge).copy_(scales(shape[0]))
    result = guarded(shape, torch.float32, edge)
    bits = fake_quantizing.native_forward(x, scale, GRID, rows, result, with_mask=True)
    held = guarded(tuple(bits.shape), torch.uint8, edge).copy_(bits)
    gradient = guarded(shape, torch.float32, edge).copy_(torch.randn(shape))
    target = guarded(shape, torch.float32, edge)
    fake_quantizing.native_backward(gradient, held, rows, target)
    codes = torch.floor(x / scale[:, None] + 0.5)
    inside = (codes >= GRID[0]) & (codes <= GRID[1])
    assert torch.equal(result, codes.clamp(*GRID) * scale[:, None])
    assert torch.equal(target, gradient * inside)


def test_threads_share_the_work_with_equal_bits():
    x = data((8, 16, 100, 100))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(x, scales(16), 1, data(x.shape, 7)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert torch.equal(got.nan_to_num(5), want.nan_to_num(5))


def test_half_and_double_stay_on_the_torch_form():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert fake_quantize_pass.native_rows(torch.zeros(9999, dtype=dtype), scales(1), -1) is None


def test_a_gradient_that_is_differentiated_again_keeps_its_graph(monkeypatch):
    """A gradient penalty: the second derivative passes the mask too."""
    results = []
    for switch in ("", "off"):
        monkeypatch.setenv(engine.SWITCH, switch)
        x = data((5000,))[100:].clone().repeat(2).requires_grad_()
        y = fake_quantize(x * 2, scales(1), *GRID)
        (grad,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        grad.square().sum().backward()
        results.append(x.grad)
    assert results[0].abs().sum() > 0
    assert torch.equal(*results)
