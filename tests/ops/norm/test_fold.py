"""Folding a batch norm into the GEMM before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qtune.errors import ArgumentError
from qtune.ops.norm.fold import fold_batch_norm


def random_norm(channels: int, affine: bool = True) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, affine=affine).eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 3.0)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def fold(
    gemm: nn.Conv2d | nn.ConvTranspose2d, norm: nn.BatchNorm2d
) -> tuple[torch.Tensor, torch.Tensor]:
    return fold_batch_norm(
        gemm.weight, gemm.bias, mean=norm.running_mean, variance=norm.running_var,
        gamma=norm.weight, beta=norm.bias, eps=norm.eps,
        transposed=isinstance(gemm, nn.ConvTranspose2d), groups=gemm.groups,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("inputs", "outputs", "groups"), [(4, 6, 1), (4, 6, 2), (6, 6, 6), (4, 4, 2)]
)
@pytest.mark.parametrize("cls", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("bias", [True, False])
def test_folded_gemm_equals_both_layers(
    cls: type[nn.Conv2d | nn.ConvTranspose2d], inputs: int, outputs: int, groups: int, bias: bool
) -> None:
    """A10: torch's own helper raises for a transposed convolution with groups."""
    torch.manual_seed(0)
    gemm, norm = cls(inputs, outputs, 3, groups=groups, bias=bias), random_norm(outputs)
    x = torch.randn(2, inputs, 6, 5)
    expected = norm(gemm(x))
    weight, shift = fold(gemm, norm)
    with torch.no_grad():
        gemm.weight.copy_(weight)
    gemm.bias = nn.Parameter(shift)
    # A10's own bar; the folding itself is float64, what is left is float32 summation.
    assert float((gemm(x) - expected).detach().abs().max()) < 1e-5


def test_norm_without_affine_parameters() -> None:
    torch.manual_seed(1)
    gemm, norm = nn.Conv2d(2, 3, 1), random_norm(3, affine=False)
    x = torch.randn(1, 2, 4, 4)
    expected = norm(gemm(x))
    weight, shift = fold(gemm, norm)
    result = torch.nn.functional.conv2d(x, weight, shift)
    # float32 summation, as above.
    assert torch.allclose(result, expected, atol=1e-5)


def test_results_keep_dtype_and_have_no_history() -> None:
    gemm, norm = nn.Conv2d(2, 3, 1).double(), random_norm(3).double()
    weight, shift = fold(gemm, norm)
    assert weight.dtype == shift.dtype == torch.float64
    assert not weight.requires_grad
    assert not shift.requires_grad


def test_zero_gamma_gives_the_bias_alone() -> None:
    gemm, norm = nn.Conv2d(2, 3, 1), random_norm(3)
    with torch.no_grad():
        norm.weight[1] = 0.0
    weight, shift = fold(gemm, norm)
    assert float(weight[1].abs().max()) == 0.0
    # the fold is computed in float64, the parameter is float32
    assert float(shift[1].detach()) == pytest.approx(float(norm.bias[1].detach()))


def test_other_number_of_channels_is_refused() -> None:
    with pytest.raises(ArgumentError, match="5 channels behind a weight with 3"):
        fold(nn.Conv2d(2, 3, 1), random_norm(5))


def test_norm_without_running_statistics_is_refused() -> None:
    norm = nn.BatchNorm2d(3, track_running_stats=False)
    with pytest.raises(ArgumentError, match="without running statistics"):
        fold(nn.Conv2d(2, 3, 1), norm)
