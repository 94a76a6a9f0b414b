"""batch_norm on its own: torch's bits, training behaviour, integers."""

from __future__ import annotations

import copy
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qtune.arith.quantize import fake_quantize, quantize, scale_from_absmax
from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import ConvertError, ExportError
from qtune.ops import registry
from qtune.ops.kernel import FloatConst, FloatNode, FloatValue
from qtune.ops.norm.batch_norm import ROLES, BatchNormPending, fixed_point
from tests.ops.gemm.eager import EagerContext, Val, lower, quantized, run_lowered
from tests.ops.norm.test_fold import random_norm

ENTRY = registry.spec("batch_norm")


def operands(module: Any, x: torch.Tensor) -> list[torch.Tensor | None]:
    return [x, *(getattr(module, role) for role in ROLES[1:])]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.BatchNorm1d(3), (4, 3)),
        (nn.BatchNorm1d(3), (4, 3, 5)),
        (nn.BatchNorm2d(3, eps=1e-3), (2, 3, 4, 5)),
        (nn.BatchNorm2d(3, affine=False), (2, 3, 4, 5)),
        (nn.BatchNorm3d(3), (2, 3, 2, 4, 5)),
        (nn.SyncBatchNorm(3), (2, 3, 4, 5)),
    ],
)
def test_lowered_node_gives_the_modules_own_bits(module: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module.running_mean.normal_()
    module.running_var.uniform_(0.5, 2.0)
    if module.affine:
        nn.init.normal_(module.weight)
        nn.init.normal_(module.bias)
    x = torch.randn(shape)
    expected = module.eval()(x)
    found = registry.find_module(type(module))
    assert found is not None
    assert found[0] is ENTRY
    attrs = dict(found[1].bind(module, x).attrs)
    tensors = operands(module, x)
    assert torch.equal(ENTRY.float_kernel(*tensors, **attrs), expected)  # type: ignore[misc]
    node = lower(ENTRY, tensors, attrs)
    assert node.op_type == "BatchNormalization"
    assert torch.equal(run_lowered(node), expected)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_updates_the_statistics_as_the_module_does(momentum: float | None) -> None:
    torch.manual_seed(0)
    module = nn.BatchNorm2d(3, momentum=momentum)
    twin = copy.deepcopy(module)
    attrs = {"training": True, "momentum": momentum, "eps": module.eps}
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        result = ENTRY.float_kernel(*operands(twin, x), **attrs)  # type: ignore[misc]
        assert torch.equal(result, module(x))
    for key, value in module.state_dict().items():
        assert torch.equal(twin.state_dict()[key], value), key


def test_functional_spellings_bind_to_the_same_roles() -> None:
    names = ("x", "mean", "var", "w", "b")
    spellings: list[tuple[Any, Any]] = [
        (F.batch_norm, lambda f: f(input="x", running_mean="mean", running_var="var", weight="w",
                                   bias="b", eps=1e-3)),
        (torch.batch_norm, lambda f: f("x", "w", "b", "mean", "var", False, 0.1, 1e-3, True)),
    ]  # fmt: skip
    for function, call in spellings:
        found = registry.find_function(function)
        assert found is not None
        bound = call(found[1].bind)
        assert bound.tensors == (*names, None)
        assert bound.attrs == {"training": False, "momentum": 0.1, "eps": 1e-3}


def test_batch_statistics_have_no_hbir_form() -> None:
    x = torch.randn(4, 3, 2, 2)
    for module, training in ((nn.BatchNorm2d(3, track_running_stats=False), None),
                             (nn.BatchNorm2d(3), True)):  # fmt: skip
        attrs = {"training": training, "momentum": 0.1, "eps": 1e-5}
        with pytest.raises(ExportError, match="statistics of each batch"):
            lower(ENTRY, operands(module, x), attrs)


def converted(
    ctx: EagerContext, norm: nn.BatchNorm2d, x: np.ndarray[Any, Any], s_x: float, dtype: QuantDType
) -> BatchNormPending:
    constants = [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    data = [FloatConst(t.detach().numpy()) for t in constants if t is not None]
    kernel = registry.kernel("", "BatchNormalization")
    assert kernel is not None
    assert kernel.convert is not None
    node = FloatNode(
        "BatchNormalization", {"epsilon": norm.eps}, (quantized(x, s_x, dtype), *data), "bn",
        output_shape=x.shape,
    )  # fmt: skip
    pending = kernel.convert(ctx, node)
    assert isinstance(pending, BatchNormPending)
    return pending


@pytest.mark.parametrize("x_dtype", [qint8, qint16], ids=str)
@pytest.mark.parametrize("dtype", [qint8, qint16], ids=str)
def test_integer_batch_norm_is_one_step_from_fake_quant(
    x_dtype: QuantDType, dtype: QuantDType
) -> None:
    """numerics.md section 3, row "batch norm alone"; channel 1 has gamma 0, channel 2 below 0."""
    torch.manual_seed(1)
    norm = random_norm(4)
    with torch.no_grad():
        norm.weight[1], norm.weight[2] = 0.0, -1.5
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)
    s_x = float(scale_from_absmax(np.abs(x).max(), x_dtype))
    x_q = torch.from_numpy(fake_quantize(x, s_x, x_dtype)).double()
    real = copy.deepcopy(norm).double()(x_q).detach().numpy()
    scale = float(scale_from_absmax(np.abs(real).max(), dtype))
    ctx = EagerContext()
    result = converted(ctx, norm, x, s_x, x_dtype).emit(ctx, scale, dtype)
    ideal = quantize(real.astype(np.float32), scale, dtype)
    assert np.abs(result.value.codes - ideal).max() <= 1


def test_relu_behind_it_is_a_clamp_of_codes() -> None:
    norm = random_norm(3)
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    ctx = EagerContext()
    pending = converted(ctx, norm, x, 0.03, qint8).clamp(ctx, 0.0, None)
    result = pending.emit(ctx, 0.05, qint8)
    assert result.code_min == 0
    assert int(result.value.array.min()) == 0


def test_codes_follow_the_rule_exactly() -> None:
    """One rounding of ``x * m + bias`` over ``2**n``, in exact fractions."""
    factor, shift = np.array([0.7, -1.3, 1e-10, 0.0]), np.array([0.2, 5.0, -3.3, 1.0])
    ctx = EagerContext()
    m, n, bias = fixed_point(ctx, factor, shift, 0.02, 0.05)
    assert m[2:].tolist() == [0, 0]
    assert n[2:].tolist() == [0, 0]
    x = np.arange(-128, 128).astype(np.int8).reshape(1, 1, 16, 16).repeat(4, 1)
    s_x = float(np.float32(0.02))
    result = BatchNormPending("bn", quantized(x * s_x, s_x, qint8), factor, shift, 4).emit(
        ctx, 0.05, qint8
    )
    for channel in range(4):
        factor_q, bias_q, grid = int(m[channel]), int(bias[channel]), 2 ** int(n[channel])
        exact = [
            floor(Fraction(int(q) * factor_q + bias_q, grid) + Fraction(1, 2))
            for q in x[0, channel].ravel()
        ]
        np.testing.assert_array_equal(
            result.value.codes[0, channel].ravel(), np.clip(exact, -128, 127)
        )


def test_extreme_bias_saturates_on_every_path() -> None:
    factor, shift = np.array([1e-8, 5000.0, 1.0]), np.array([1e12, -1e12, 1e-12])
    x = np.array([-128, 0, 127], np.int8).reshape(1, 1, 3).repeat(3, 1) * np.float32(0.5)
    ctx = EagerContext()
    pending = BatchNormPending("bn", quantized(x, 0.5, qint8), factor, shift, 3)
    codes = pending.emit(ctx, 0.5, qint8).value.codes
    assert codes[0].tolist() == [[127] * 3, [-128] * 3, [-128, 0, 127]]


def test_missing_scale_or_constant_is_named() -> None:
    kernel = registry.kernel("", "BatchNormalization")
    assert kernel is not None
    assert kernel.convert is not None
    value, ones = FloatValue(Val(np.ones((1, 2)))), FloatConst(np.ones(2, np.float32))
    node = FloatNode("BatchNormalization", {}, (value, ones, ones, ones, ones), "bn")
    expected = "bn: the input of BatchNormalization must be quantized codes and is a float"
    with pytest.raises(ConvertError, match=expected):
        kernel.convert(EagerContext(), node)
    x = quantized(np.ones((1, 2)), 1.0, qint8)
    node = FloatNode("BatchNormalization", {}, (x, ones, value, ones, ones), "bn")
    with pytest.raises(ConvertError, match="bn: operand 2 .* must be a constant"):
        kernel.convert(EagerContext(), node)
