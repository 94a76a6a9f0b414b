"""Integer arithmetic: A02, A21, A22, A24."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import qtune
from qtune.arith.requantize import requantize, rescale
from qtune.arith.table import int8_table
from qtune.arith_fast.requantize import requantize_acc
from qtune.arith_fast.steps import rescale as fast_rescale
from qtune.nn.prepared import PreparedModel
from qtune.ops.quant.fake_quant import quantize_half_even
from qtune.quantization import FakeQuantState, QconfigSetter, QuantStub, set_fake_quantize

from .steps import (
    EVERYWHERE,
    INT8,
    STEP,
    calib,
    calibrated,
    distance,
    prep,
    quantized_module,
    run,
    s8,
    s16,
    scale_of,
    stubs,
    to_integer,
)

TINY = 1.275e-6
"""A weight whose scale is 1e-8; with an input scale of 0.1 the accumulator's step is 1e-9."""


def filled(layer: nn.Module, bias: float) -> nn.Module:
    layer.weight.data.fill_(TINY)
    layer.bias.data.fill_(bias)
    return layer


LAYERS = {
    "conv2d": (lambda: nn.Conv2d(1, 1, 1), (1, 1, 2, 2)),
    "groups": (lambda: nn.Conv2d(2, 2, 1, groups=2), (1, 2, 2, 2)),
    "transposed": (lambda: nn.ConvTranspose2d(1, 3, 2), (1, 1, 1, 1)),
    "conv1d": (lambda: nn.Conv1d(1, 1, 1), (1, 1, 4)),
    "linear": (lambda: nn.Linear(1, 3), (4, 1)),
}


@pytest.mark.parametrize("setter", [None, INT8], ids=["high precision", "int8"])
@pytest.mark.parametrize("bias", [3.0, -3.0, 300.0])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_bias_beyond_int32_is_neither_clipped_nor_wrapped(
    layer: str, bias: float, setter: QconfigSetter | None
) -> None:
    """A02 int32 bias overflow: 3.0 would need the code 3e9."""
    make, shape = LAYERS[layer]
    x = torch.full(shape, 12.75)
    p = calibrated(filled(make(), bias), x, setter)
    (y,) = to_integer(p, x)
    expected = bias + 12.75 * TINY
    assert float((y - expected).abs().max()) <= s8(abs(bias))
    assert distance(y, run(p, x)) <= s8(abs(bias))


def test_the_widened_channel_is_named_and_the_others_stay_exact() -> None:
    """A02 one tiny channel of four; the conversion report names the layer."""
    conv = nn.Conv2d(3, 4, 3)
    conv.weight.data[2].fill_(TINY)
    conv.bias.data[2] = 30.0
    x = torch.randn(2, 3, 8, 8) * 12
    p = calibrated(nn.Sequential(conv), x)
    before = scale_channels(p, "0")
    module = quantized_module(p, x)
    (y,) = to_integer(p, x)
    notes = [note for note in module.report if note.get("op", note.get("name")) == "0"]
    assert any("wide" in note["message"] for note in notes), module.report
    assert torch.equal(scale_channels(p, "0"), before)
    expected = run(p, x)
    for channel in range(4):
        bound = float(expected[:, channel].abs().max()) * 1e-4  # high precision: no output grid
        assert distance(y[:, channel], expected[:, channel]) <= bound


def scale_channels(p: PreparedModel, name: str) -> Tensor:
    return stubs(p)[name, "weight"].scale.clone()


def test_a_large_fused_addend_does_not_overflow_either() -> None:
    """A02 the sum's operand counts like the bias."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = filled(nn.Conv2d(1, 1, 1), 1.0)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.relu(self.conv(x) + y)

    data = torch.full((1, 1, 2, 2), 12.75), torch.full((1, 1, 2, 2), 50.0)
    p = calibrated(Residual(), data, INT8)
    (y,) = to_integer(p, data)
    assert float((y - 51.0).abs().max()) <= s8(51.0) * STEP


TIES = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
UP = torch.tensor([1.0, 2.0, 3.0, 0.0, -1.0, -2.0])
EVEN = torch.tensor([0.0, 2.0, 2.0, 0.0, -2.0, -2.0])


class Stub(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant = QuantStub()

    def forward(self, x: Tensor) -> Tensor:
        return self.quant(x)


class Half(Stub):
    """Exact halves: codes of x are 2 * ties, the result keeps a step of 1."""

    def forward(self, x: Tensor) -> Tensor:
        return self.quant(x) * 0.5


class Means(Stub):
    def forward(self, x: Tensor) -> Tensor:
        return self.quant(x).mean(1)


class Sums(Stub):
    def forward(self, x: Tensor) -> Tensor:
        return self.quant(x) + 0.5


def with_scales(model: nn.Module, x: Tensor, value: float = 1.0) -> PreparedModel:
    p = prep(model, x, INT8)
    calib(p, [x])
    for (_, kind), quantizer in stubs(p).items():
        if kind != "weight":
            quantizer.set_qparams(value)
    set_fake_quantize(p, FakeQuantState.VALIDATION)
    return p


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Stub(), TIES),
        (Half(), 2 * TIES),
        (Means(), torch.stack([2 * TIES, torch.zeros(6)], 1)),
        (Sums(), TIES - 0.5),
    ],
    ids=["quantize", "requantize", "mean", "add"],
)
def test_ties_go_up_in_the_fake_quant_and_in_the_integer_model(model: nn.Module, x: Tensor) -> None:
    """A21 one rule for .5 everywhere."""
    p = with_scales(model, x)
    assert torch.equal(run(p, x), UP)
    (y,) = to_integer(p, x)
    assert torch.equal(y, UP)


def test_ties_of_table_entries_go_up() -> None:
    """A21 the entries of a look-up table."""
    table = int8_table(lambda v: v / 2, 1.0, 1.0)
    codes = (2 * TIES).long().numpy() + 128
    assert table[codes].tolist() == UP.long().tolist()
    x = 2 * TIES
    model = nn.Sequential(QuantStub(), nn.LeakyReLU(0.5))
    p = with_scales(model, x)
    expected = torch.tensor([1.0, 3.0, 5.0, 0.0, -1.0, -2.0])  # a table: leaky_relu(-1) = -0.5
    assert torch.equal(run(p, x), expected)
    (y,) = to_integer(p, x)
    assert torch.equal(y, expected)


def test_accumulators_on_ties_go_up() -> None:
    """A21 requantize of a GEMM, in NumPy and in torch."""
    acc = (2 * TIES).long()
    m, n = 1 << 14, 15  # M = 1/2
    assert requantize(acc.numpy(), m, n, qtune.qint8).tolist() == UP.long().tolist()
    held = requantize_acc(acc.int().reshape(1, 6), m, n, None, -128, 127, qtune.qint8)
    assert (held.long() - 128).flatten().tolist() == UP.long().tolist()


def test_only_imported_standard_nodes_round_half_to_even() -> None:
    """A21 ONNX QuantizeLinear; qtune's twin of it agrees with ONNX Runtime."""
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 21]>
        g (float[6] x) => (int8[6] q) <float s = {1.0}, int8 z = {0}>
        { q = QuantizeLinear(x, s, z) }
        """
    )
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    (q,) = session.run(None, {"x": TIES.numpy()})
    assert q.tolist() == EVEN.long().tolist()
    assert quantize_half_even(TIES.numpy(), 1.0, qtune.qint8).tolist() == q.tolist()


def test_requantize_rounds_once() -> None:
    """A22 double rounding: rounding the high multiply and the shift apart gives 75."""
    assert rescale(7860, 1302661570, 31 + 6).tolist() == 74
    assert int(fast_rescale(torch.tensor(7860), 1302661570, 31 + 6)) == 74


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(2**30, 2**31 - 1) | st.integers(2**14, 2**15 - 1),
    st.integers(-1, 46),
)
def test_requantize_equals_exact_arithmetic_rounded_half_up(x: int, m: int, n: int) -> None:
    """A22 against Python's fractions."""
    exact = Fraction(x * m, 1) / Fraction(2) ** n + Fraction(1, 2)
    expected = exact.numerator // exact.denominator
    expected = max(-(2**62), min(2**62, expected))
    assert int(rescale(x, m, n)) == expected
    assert int(fast_rescale(torch.tensor(x), m, n)) == expected
    assert int(requantize(x, m, n, qtune.qint8)) == max(-128, min(127, expected))


def test_a_conv_rounds_once_on_the_way_to_its_output() -> None:
    """A22 all accumulators of an int8 conv against fractions of its own integers."""
    x = torch.randn(4, 3, 8, 8)
    conv = nn.Conv2d(3, 8, 3)
    p = calibrated(nn.Sequential(conv), x, INT8)
    (y,) = to_integer(p, x)
    s_x, s_y = scale_of(p, "_input_0_quant"), scale_of(p, "0")
    s_w = stubs(p)["0", "weight"].scale.double()
    q_x = torch.clamp(torch.floor(x / s_x + 0.5), -128, 127).double()
    w = conv.weight.detach()
    q_w = torch.clamp(torch.floor(w / s_w.float()[:, None, None, None] + 0.5), -128, 127).double()
    bias = torch.floor(conv.bias.detach().double() / (s_x * s_w) + 0.5)
    acc = torch.nn.functional.conv2d(q_x, q_w, bias).long().numpy()
    got = np.rint(y.double().numpy() / s_y).astype(int)
    for channel in range(8):
        M = float(np.float64(s_x) * float(s_w[channel]) / np.float64(s_y))
        n = 15 - int(np.frexp(M)[1])
        m = int(np.floor(M * 2.0**n + 0.5))
        expected = [
            max(-128, min(127, (Fraction(int(a) * m, 2**n) + Fraction(1, 2)).__floor__()))
            for a in acc[:, channel].ravel()
        ]
        assert got[:, channel].ravel().tolist() == expected


class Join(nn.Module):
    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        self.kind, self.dim = kind, dim

    def forward(self, *parts: Tensor) -> Tensor:
        return getattr(torch, self.kind)(parts, dim=self.dim)


@pytest.mark.parametrize("dtype", [qtune.qint8, qtune.qint16], ids=str)
@pytest.mark.parametrize("order", [(1.0, 50.0), (50.0, 1.0), (1.0, 50.0, 0.1)])
@pytest.mark.parametrize(("kind", "dim"), [("cat", 0), ("cat", -1), ("stack", 0)])
def test_concat_has_a_scale_that_covers_every_input(
    kind: str, dim: int, order: tuple[float, ...], dtype: qtune.QuantDType
) -> None:
    """A24 the first input's scale would clip the second one by 49."""
    data = tuple(torch.linspace(-a, a, 101).reshape(1, 101) for a in order)
    model = Join(kind, dim)
    p = calibrated(model, data, EVERYWHERE[dtype])
    scale = s8 if dtype is qtune.qint8 else s16
    assert scale_of(p, f"_generated_{kind}_0") == scale(50.0)
    y, expected = run(p, data), run(model, data)
    own = max(scale(a) for a in order if a < 50.0) / 2  # the small inputs' own rounding
    assert distance(y, expected) <= scale(50.0) / 2 * STEP + own
    wide = expected.abs() > 2  # values of the wide input only
    assert distance(y[wide], expected[wide]) <= scale(50.0) / 2 * STEP  # 0.1961 for qint8
    (integer,) = to_integer(p, data)
    codes = (integer - y).abs() / scale(50.0)
    # equal but for values within abs(code) * 2**-15 of a tie (numerics.md section 3)
    assert float(codes.max()) <= STEP
    assert float((codes > 0.5).float().mean()) < 0.05 or dtype is qtune.qint16


def test_concat_rescales_the_codes_of_a_narrow_input() -> None:
    """A24 code 127 of [-1, 1] is code 3 of [-50, 50], never 127."""
    a, b = torch.linspace(-1, 1, 101), torch.linspace(-50, 50, 101)
    p = calibrated(Join("cat", 0), (a, b), INT8)
    (y,) = to_integer(p, (a, b))
    codes = (y / s8(50.0)).round()
    assert float(codes[:101].abs().max()) == 3.0
    assert float(codes[101:].max()) == 127.0
