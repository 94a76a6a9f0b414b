"""Normalizations through the whole pipeline: decomposed, int16 inside (numerics.md section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qtune.dtype import qint8, qint16
from qtune.quantization import QconfigSetter, get_qconfig, prepare
from qtune.quantization.hbdk4 import pre_export
from qtune.quantization.qconfig_setter import ModuleNameTemplate

from ...quantization.flow import calib, prep, run
from .line import Function, Line, Whole, sqnr_db

X = torch.randn(2, 6, 8, 16, generator=torch.Generator().manual_seed(5)) * 2 + 0.5
STANDARD = ["mean", "sub", "square", "var", "rsqrt", "mul"]
AFFINE = [*STANDARD, "weight_mul", "bias_add"]


def output_of(line: Line) -> Any:
    """The fake-quantize of the operator's result."""
    ops = [op for _, op in line.prepared.operators() if op.name.startswith("m.")]
    return [op.activation_post_process for op in ops if op.activation_post_process is not None][-1]


def filled(module: nn.Module) -> nn.Module:
    """Parameters and statistics as a trained model has them."""
    generator = torch.Generator().manual_seed(9)
    for name, parameter in module.named_parameters():
        low, high = (0.5, 1.5) if name == "weight" else (-0.5, 0.5)
        nn.init.uniform_(parameter, low, high, generator=generator)
    for name, buffer in module.named_buffers():
        if name.startswith("running"):
            buffer.uniform_(0.5, 2.0, generator=generator)
    return module


class Llama(nn.Module):
    """An RMS norm as language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 16))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class ChannelsFirst(nn.Module):
    """A layer norm over the channels, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 6))
        self.bias = nn.Parameter(torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


MODULES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "layer_norm": (lambda: filled(nn.LayerNorm(16)), X),
    "layer_norm_two_dims": (lambda: filled(nn.LayerNorm((8, 16))), X),
    "layer_norm_without_bias": (lambda: filled(nn.LayerNorm(16, bias=False)), X),
    "layer_norm_plain": (lambda: nn.LayerNorm(16, elementwise_affine=False, eps=0.1), X),
    "F.layer_norm": (lambda: Function(lambda x: F.layer_norm(x, (16,))), X),
    "rms_norm": (lambda: filled(nn.RMSNorm(16)), X),
    "rms_norm_eps": (lambda: filled(nn.RMSNorm((8, 16), eps=0.1)), X),
    "group_norm": (lambda: filled(nn.GroupNorm(3, 6)), X),
    "group_norm_of_rows": (lambda: filled(nn.GroupNorm(2, 6)), X[:, :, 0]),
    "instance_norm": (lambda: filled(nn.InstanceNorm2d(6, affine=True)), X),
    "instance_norm_1d": (lambda: nn.InstanceNorm1d(6), X[:, :, 0]),
    "instance_norm_unbatched": (lambda: filled(nn.InstanceNorm2d(6, affine=True)), X[0]),
    "instance_norm_3d": (lambda: nn.InstanceNorm3d(2), X.reshape(2, 2, 3, 8, 16)),
    "instance_norm_running": (
        lambda: filled(nn.InstanceNorm2d(6, affine=True, track_running_stats=True)),
        X,
    ),
    "batch_norm_rows": (lambda: filled(nn.BatchNorm1d(6)), X[:, :, 0]),
    "batch_norm_vectors": (lambda: filled(nn.BatchNorm1d(16)), X[0, 0]),
    "batch_norm_3d": (lambda: filled(nn.BatchNorm3d(2)), X.reshape(2, 2, 3, 8, 16)),
    "normalize": (lambda: Function(F.normalize), X),
    "normalize_1": (lambda: Function(lambda x: F.normalize(x, p=1, dim=-1)), X),
    "normalize_inf": (lambda: Function(lambda x: F.normalize(x, p=math.inf, dim=(2, 3))), X),
    "norm": (lambda: Function(lambda x: torch.norm(x, dim=-1)), X),
    "Tensor.norm": (lambda: Function(lambda x: x.norm(dim=(1, 2), keepdim=True)), X),
    "linalg.norm": (lambda: Function(lambda x: torch.linalg.norm(x, dim=1)), X),
    "vector_norm_1": (lambda: Function(lambda x: torch.linalg.vector_norm(x, 1, -1)), X),
    "vector_norm_inf": (lambda: Function(lambda x: torch.linalg.vector_norm(x, math.inf)), X),
    "vector_norm_all": (lambda: Function(torch.linalg.vector_norm), X),
    "var": (lambda: Function(lambda x: torch.var(x, -1)), X),
    "var_biased": (lambda: Function(lambda x: x.var((2, 3), unbiased=False, keepdim=True)), X),
    "std": (lambda: Function(lambda x: x.std(1)), X),
    "local_response_norm": (lambda: nn.LocalResponseNorm(3, alpha=0.5, k=2.0), X),
    "local_response_norm_even": (lambda: nn.LocalResponseNorm(4, alpha=0.5, beta=0.5), X),
    "local_response_norm_rows": (lambda: nn.LocalResponseNorm(5), X[:, :, 0]),
    "lp_pool2d": (lambda: nn.LPPool2d(2, 3, stride=2, ceil_mode=True), X),
    "lp_pool2d_1": (lambda: Function(lambda x: F.lp_pool2d(x, 1, (2, 3))), X),
    "lp_pool1d": (lambda: nn.LPPool1d(2, 3), X[:, :, 0]),
    "llama": (Llama, X),
    "channels_first": (ChannelsFirst, X),
}


@pytest.mark.parametrize("name", MODULES)
def test_every_path_gives_the_same_bits_close_to_float(name: str) -> None:
    make, x = MODULES[name]
    line = Line.of(make(), x)
    # A rounded result of 16 bits lies some 84 dB above its noise; eight roundings cost 10 dB.
    assert sqnr_db(line.integers(), line.reference) > 74
    assert sqnr_db(line.looked_up(), line.reference) > 74
    got, expected = line.float_state(), line.reference
    # numerics.md section 5: decomposed operators within 1e-5 relative
    assert float((got - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm", "normalize", "norm"])
def test_an_int8_result_is_as_good_as_int8_can_be(name: str) -> None:
    make, x = MODULES[name]
    line = Line.of(make(), x, qint8)
    # A rounded result of 8 bits lies some 36 dB above its noise: the int16 parts cost nothing.
    assert sqnr_db(line.integers(), line.reference) > 34


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LayerNorm(16),
        lambda: nn.LayerNorm(16, bias=False),
        lambda: nn.RMSNorm(16),
        lambda: nn.GroupNorm(3, 6),
        lambda: nn.InstanceNorm2d(6, affine=True),
    ],
)
def test_weight_and_bias_are_int16_constants_inside(make: Callable[[], nn.Module]) -> None:
    """With an outlier among the weights, an int8 grid would leave the others four bits."""
    norm = filled(make())
    with torch.no_grad():
        next(norm.parameters())[0] = 10.0
    line = Line.of(norm, X, qint8)
    constants = [
        quantizer
        for _, op in line.prepared.operators()
        if op.name.startswith("m.")
        for quantizer in op.input_fake_quants.values()
    ]
    assert len(constants) == len(list(norm.parameters()))
    assert all(quantizer.dtype is qint16 for quantizer in constants)
    stub = next(op for _, op in line.prepared.operators())
    grid = stub.activation_post_process
    assert grid is not None
    exact = run(line.model, grid(X))
    last = output_of(line)
    best = (exact / last.scale).round().clamp(-128, 127) * last.scale
    # The one int8 rounding of the result is all: what the int16 parts add is 0.1 dB.
    assert sqnr_db(line.integers(), exact) > sqnr_db(best, exact) - 0.1


@pytest.mark.parametrize("prefix", ["", "m"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GroupNorm(3, 6),
        lambda: nn.GroupNorm(3, 6, affine=False),
        lambda: nn.LayerNorm(16),
        lambda: nn.Softmax(-1),
        lambda: Function(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
        lambda: Function(F.normalize),
        lambda: nn.GLU(),
    ],
)
def test_parts_of_an_operator_are_no_surprises(make: Callable[[], nn.Module], prefix: str) -> None:
    setter = QconfigSetter(get_qconfig(), [ModuleNameTemplate({prefix: qint8})])
    prepared = prep(Whole(make()), X, qconfig_setter=setter)
    assert prepared.resolution is not None
    assert prepared.resolution.corrections == ()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: nn.LayerNorm(16), AFFINE),
        (lambda: nn.LayerNorm(16, bias=False), AFFINE[:-1]),
        (lambda: nn.LayerNorm(16, elementwise_affine=False), STANDARD),
        (lambda: nn.RMSNorm(16), [*STANDARD[2:], "weight_mul"]),
        (lambda: nn.InstanceNorm2d(6), STANDARD),
        (lambda: nn.InstanceNorm2d(6, track_running_stats=True), ["batch_norm"]),
        (lambda: nn.GroupNorm(2, 6, affine=False), ["group", *STANDARD, "ungroup"]),
    ],
)
def test_the_parts_are_the_documented_ones_in_int16(
    make: Callable[[], nn.Module], parts: list[str]
) -> None:
    line = Line.of(make(), X, qint8)
    assert line.parts() == parts
    quantizers = [
        op.activation_post_process
        for _, op in line.prepared.operators()
        if op.name.startswith("m.") and op.activation_post_process is not None
    ]
    assert quantizers[-1].dtype is qint8
    assert all(quantizer.dtype is qint16 for quantizer in quantizers[:-1])


@pytest.mark.parametrize(
    ("make", "shape", "parts"),
    [
        (lambda: nn.GroupNorm(8, 64), (1, 64, 112, 112), ["mean_0", "var_0"]),
        (lambda: nn.InstanceNorm2d(2), (1, 2, 256, 257), ["mean_0", "var_0"]),
        (lambda: nn.LayerNorm((4, 256, 257)), (1, 4, 256, 257), ["mean_0", "var_0"]),
        (lambda: Function(lambda x: x.var((1, 2, 3))), (1, 2, 256, 257), ["mean_0", "var_mean_0"]),
        (lambda: Function(torch.linalg.vector_norm), (2, 2, 128, 129), ["sum_0"]),
    ],
)
def test_large_maps_are_reduced_in_two_steps(
    make: Callable[[], nn.Module], shape: tuple[int, ...], parts: list[str]
) -> None:
    """nash reduces at most 65535 elements to one at once."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2)) + 0.5
    line = Line.of(make(), x)
    assert [name for name in line.parts() if name.endswith("_0")] == parts
    # As for small maps; a second rounding of the sums is far below the others.
    assert sqnr_db(line.integers(), line.reference) > 74


def test_parameters_keep_their_names_and_train() -> None:
    model = Whole(filled(nn.GroupNorm(3, 6)))
    prepared = prepare(model.train(), X)
    assert set(model.state_dict()) <= set(prepared.state_dict())
    prepared(X).square().sum().backward()
    weight, bias = (prepared.get_parameter(f"m.{name}") for name in ("weight", "bias"))
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0
    assert bias.grad is not None
    assert bias.grad.abs().sum() > 0


def test_another_batch_and_size_run_on_the_prepared_model() -> None:
    for make in (lambda: nn.GroupNorm(3, 6), lambda: nn.InstanceNorm2d(6)):
        line = Line.of(make(), X)
        other = torch.randn(5, 6, 3, 7)
        line.float_state()
        # 1e-5 relative: numerics.md section 5
        torch.testing.assert_close(
            run(line.prepared, other), run(line.model, other), rtol=1e-5, atol=1e-5
        )


def test_eps_is_inside_the_table() -> None:
    """Rows of one value: the variance is 0, and eps alone keeps the result finite."""
    x = torch.cat([torch.full((2, 16), 3.0), torch.randn(6, 16)])
    line = Line.of(nn.LayerNorm(16, eps=0.25, elementwise_affine=False), x)
    # The mean rounds by half a step of 3 / 32767, which 1 / sqrt(0.25) doubles; the parts after
    # it by as much again.
    assert line.integers()[:2].abs().max() <= 4 * 3 / 32767
    assert sqnr_db(line.integers(), line.reference) > 74  # as above


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: torch.linalg.vector_norm(x, 3), "orders 1, 2 and infinity only, got 3"),
        (lambda x: x.norm("nuc", dim=(-2, -1)), "got 'nuc'"),
        (lambda x: torch.linalg.norm(x, ord=2, dim=(-2, -1)), "norm of matrices"),
        (lambda x: F.normalize(x, p=4.0), "orders 1, 2 and infinity only, got 4"),
        (
            lambda x: F.instance_norm(x, torch.zeros(6), torch.ones(6), use_input_stats=True),
            "updates running statistics",
        ),
    ],
)
def test_what_has_no_integer_form_is_refused_by_name(
    call: Callable[[Tensor], Tensor], words: str
) -> None:
    prepared = prep(Function(call), X)
    (refused,) = prepared.float_ops
    assert words in refused.reason


def test_instance_norm_that_updates_its_statistics_stays_float() -> None:
    model = Whole(nn.InstanceNorm2d(6, track_running_stats=True)).train()
    (refused,) = prepare(model, X).float_ops
    assert "call model.eval() before prepare" in refused.reason


@pytest.mark.filterwarnings("ignore:var")
def test_variance_of_one_element_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="variance of 1 elements with correction=1"):
        prep(Function(lambda x: x.var(1)), torch.randn(3, 1))


def test_knobs_of_the_rsqrt_table_hold_before_and_after_prepare() -> None:
    """``layernorm.rsqrt_kwargs``: the documented example."""
    x = torch.randn(64, 16) * torch.logspace(-1, 1, 64)[:, None]
    evenly, curvature = ({"auto_divide_strategy": name} for name in ("evenly", "curvature"))

    def table(before: Any, after: Any) -> Any:
        model = Whole(nn.LayerNorm(16))
        if before is not None:
            model.m.rsqrt_kwargs = before
        prepared = prep(model, x, qconfig_setter=None)
        if after is not None:
            prepared.m.rsqrt_kwargs = after
        calib(prepared, [x])
        return pre_export(prepared).get_submodule("m.rsqrt").first

    assert torch.equal(table(evenly, None), table(None, evenly))
    assert torch.equal(table(curvature, None), table(evenly, curvature))
    assert not torch.equal(table(evenly, None), table(curvature, None))


def test_float_form_of_a_norm_outside_the_quantized_region() -> None:
    """What is not quantized is written as float nodes and gives what torch gives."""
    from qtune.quantization import DeQuantStub, QuantStub
    from qtune.quantization.hbdk4 import convert, export

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quant, self.dequant = QuantStub(), DeQuantStub()
            self.ln, self.gn = filled(nn.LayerNorm(16)), filled(nn.GroupNorm(3, 6))

        def forward(self, x: Tensor) -> Tensor:
            return F.glu(self.gn(self.ln(self.dequant(self.quant(x)))))

    model = Mixed().eval()
    prepared = prep(model, X)
    calib(prepared, [X])
    file = convert(export(prepared, (X,)), "nash-e")
    # The same float operations in another order: a few units in the last place of float32.
    torch.testing.assert_close(file[0](X), run(prepared, X), rtol=1e-5, atol=1e-5)
