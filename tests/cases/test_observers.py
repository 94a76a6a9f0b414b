"""Every observer on the reported faults of observers: A01, A04, A05, A06, A19, A20, A36."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import qtune
from qtune.quantization import QconfigSetter, get_default_qconfig
from qtune.quantization.observer_v2 import FixedScaleObserver, MovingAverageMinMaxObserver
from qtune.quantization.qconfig_setter import ModuleNameTemplate
from qtune.quantizers.observers import OBSERVERS

from .steps import calib, calibrated, prep, ref_fq, run, s8, s16, scales, stubs

ARGUMENTS: dict[str, dict[str, Any]] = {"clip": {"clip_value": 1e6}}
KINDS = [name for name, kind in OBSERVERS.items() if kind is not FixedScaleObserver]
each = pytest.mark.parametrize("kind", KINDS)
SMALLEST = 2.0**-23
"""The documented scale of data that are all zero (numerics.md section 1)."""


def observer(kind: str, **options: Any) -> Any:
    return OBSERVERS[kind](**ARGUMENTS.get(kind, {}), **options)


def setter(kind: str, dtype: Any = qtune.qint8) -> QconfigSetter:
    options = {"dtype": dtype, **ARGUMENTS.get(kind, {})}
    qconfig = get_default_qconfig(activation_observer=kind, activation_qkwargs=options)
    return QconfigSetter(qconfig, [ModuleNameTemplate({"": dtype}, freeze=True)])


@pytest.mark.parametrize("kind", OBSERVERS)
def test_a_model_is_calibrated_with_each_name_for_activations_and_weights(kind: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    options = {"clip": {"clip_value": 4.0}, "fixed_scale": {"scale": 1 / 32}}.get(kind, {})
    qconfig = get_default_qconfig(
        activation_observer=kind,
        weight_observer="mse" if options else kind,
        activation_qkwargs=options,
    )
    x = torch.randn(2, 3, 6, 6)
    p = calibrated(net, x, QconfigSetter(qconfig, [ModuleNameTemplate({"": qtune.qint8})]))
    kinds = {name: type(q.activation_post_process) for name, q in stubs(p).items()}
    printed = MovingAverageMinMaxObserver  # as the guide prints get_default_qconfig()
    assert kinds["1", "output"] is (printed if kind == "min_max" else OBSERVERS[kind])
    assert scales(p)["0", "weight"].shape == (4,)
    assert scales(p)["3", "weight"].shape == (5,)
    # int8 steps of 4 / 128 in the input and the first result, tails of three deviations cut
    assert (run(p, x) - run(net, x)).abs().max() <= 0.15


@each
@pytest.mark.parametrize("zeros", [0.0, -0.0])
def test_zeros_first_and_data_later(kind: str, zeros: float) -> None:
    """A01: the zero bin width of a histogram observer."""
    o = observer(kind)
    for _ in range(3):
        o(torch.full((4, 8), zeros))
    assert o.calculate_scale().item() == SMALLEST
    assert torch.equal(ref_fq(torch.zeros(5), o.calculate_scale()), torch.zeros(5))
    o(torch.linspace(-2, 2, 4096))
    later = o.calculate_scale().item()
    assert 0 < later <= s8(2.0) * 1.01
    assert later > SMALLEST


@each
@pytest.mark.parametrize("value", [5.0, -5.0, 1e-20, 1e30])
def test_constant_data_first_and_others_later(kind: str, value: float) -> None:
    """A01: min == max."""
    o = observer(kind)
    for _ in range(3):
        o(torch.full((4, 8), value))
    first = o.calculate_scale().item()
    assert 0 < first <= max(s8(abs(value)), 2.0**-40)
    o(torch.linspace(-2, 2, 4096))
    later = o.calculate_scale().item()
    assert np.isfinite(later)
    assert later > 0


def test_percentile_follows_its_written_rule() -> None:
    """A04: a moving average of each batch's percentile; a later batch inside the range counts."""
    a, b, c = torch.linspace(-1, 1, 2000), torch.full((200000,), 0.01), torch.tensor([0.5])
    o = observer("percentile", percentile=99.0)
    expected = None
    for batch in (a, b, c):
        o(batch)
        exact = float(np.percentile(batch.abs().numpy(), 99.0))
        expected = exact if expected is None else expected + 0.01 * (exact - expected)
    assert float(o.absmax[1]) == pytest.approx(expected, abs=2e-3)  # a bin, and the data's step


def test_kl_and_histogram_count_later_batches_inside_the_range() -> None:
    """A04, the kinds that keep one histogram: the union of all batches decides."""
    a, b, c = torch.linspace(-1, 1, 2000), torch.full((200000,), 0.01), torch.tensor([0.5])
    options = {"method": "percentile", "method_kwargs": {"percentile": 99.0}}
    o = observer("histogram", **options)
    for batch in (a, b, c):
        o(batch)
    exact = float(np.percentile(torch.cat([a, b, c]).abs().numpy(), 99.0))
    # one bin of 2048 over absmax 1
    assert float(o.absmax[1]) == pytest.approx(exact, abs=1 / 2048)
    kl = observer("kl")
    for batch in (a, b, c):
        kl(batch)
    assert kl.histogram.sum() == 202001


@each
def test_state_is_constant_and_small_and_holds_no_graph(kind: str) -> None:
    """A05: memory that grows with the data."""
    o, sizes = observer(kind), []
    for _ in range(20):
        o(torch.randn(64, 1024, requires_grad=True))
        held = [*o.buffers(), *(v for v in vars(o).values() if isinstance(v, Tensor))]
        sizes.append(sum(t.numel() * t.element_size() for t in held))
        assert not any(t.requires_grad for t in held)
    assert sizes[-1] == sizes[1] < 1 << 20


class Head(nn.Module):
    """A detection head that may get no boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(x))


@each
def test_empty_batches_change_no_scale_in_any_phase(kind: str) -> None:
    """A06."""
    torch.manual_seed(0)
    x, net = torch.randn(6, 3), Head()
    p, other = (prep(net, x, setter(kind)) for _ in range(2))
    calib(p, [x, x[:0], x])
    calib(other, [x, x])
    assert run(p, x[:0]).shape == (0, 4)
    before = scales(other)
    assert all(torch.equal(scale, before[key]) for key, scale in scales(p).items())
    qat = p.train()
    qtune.quantization.set_fake_quantize(qat, qtune.quantization.FakeQuantState.QAT)
    qat(x[:0])
    assert all(torch.equal(scale, before[key]) for key, scale in scales(p).items())
    observer(kind, ch_axis=0)(torch.empty(0, 3))


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda base: base.chunk(2, 1)[1],
    lambda base: base.transpose(1, 3),
    lambda base: base[:, ::2],
    lambda base: base[:1].expand(4, 8, 6, 6),
    lambda base: base.flip(0),
]


@each
@pytest.mark.parametrize("axis", [-1, 0, 1, 2, 3])
def test_non_contiguous_data_give_the_same_scale(kind: str, axis: int) -> None:
    """A19."""
    base = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    for view in VIEWS:
        first, second = observer(kind, ch_axis=axis), observer(kind, ch_axis=axis)
        first(view(base))
        second(view(base).contiguous())
        assert torch.equal(first.calculate_scale(), second.calculate_scale())


@each
def test_half_data_have_a_float32_scale_that_covers_them(kind: str) -> None:
    """A20: max - min overflows half. mse may cut below the largest of three values."""
    x = torch.tensor([59000.0, -59000.0, 1.0], dtype=torch.half)
    p = calibrated(nn.Sequential(qtune.quantization.QuantStub()).half(), x, setter(kind))
    (scale,) = scales(p).values()
    assert scale.dtype == torch.float32
    assert 0.99 * s8(59008.0) <= scale.item() <= s8(59008.0)
    y = run(p, x)
    assert y.dtype == torch.half
    assert torch.equal(y, ref_fq(x.float(), scale).half())


@each
def test_promotion_to_int16_equals_a_calibration_there(kind: str) -> None:
    """A36: and back to int8 restores the first scale."""
    x = torch.linspace(-3, 3, 1001) ** 3 / 9
    p, p2 = (
        calibrated(nn.Sequential(qtune.quantization.QuantStub()), x, setter(kind, dtype))
        for dtype in (qtune.qint8, qtune.qint16)
    )
    (quantizer,), (other,) = stubs(p).values(), stubs(p2).values()
    first = quantizer.scale.clone()
    quantizer.set_dtype("qint16")
    assert torch.equal(quantizer.scale, other.scale)
    if kind in ("min_max", "kl", "clip", "clip_std"):
        assert quantizer.scale.item() == s16(3.0)
        assert (run(p, x) - x).abs().max() <= 4.6e-05
    quantizer.set_dtype("qint8")
    assert torch.equal(quantizer.scale, first)
