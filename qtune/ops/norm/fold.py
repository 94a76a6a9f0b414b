"""Folding a batch norm into the GEMM before it, in float64 (numerics.md section 7)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from qtune.errors import ArgumentError
from qtune.ops.gemm.channels import channel_unview, channel_view


class AffineForm(NamedTuple):
    """Batch norm in eval mode as ``x * factor[c] + shift[c]``, both float64."""

    factor: torch.Tensor
    shift: torch.Tensor


def affine_form(
    mean: torch.Tensor,
    variance: torch.Tensor,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    eps: float,
) -> AffineForm:
    """Return ``factor = gamma / sqrt(variance + eps)`` and ``shift = beta - mean * factor``.

    ``gamma`` and ``beta`` of ``None`` are 1 and 0 (``affine=False``).
    """
    factor = (1.0 if gamma is None else gamma.double()) / torch.sqrt(variance.double() + eps)
    shift = -mean.double() * factor
    return AffineForm(factor, shift if beta is None else beta.double() + shift)


@torch.no_grad()
def fold_batch_norm(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    eps: float,
    transposed: bool = False,
    groups: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of the GEMM that equals GEMM + batch norm in eval mode.

    ``weight``: [out, ...] of a convolution or linear; with ``transposed`` [in, out / groups, ...]
    of a transposed convolution. The results have the dtype of ``weight`` and no gradient history.
    """
    if mean is None or variance is None:
        raise ArgumentError(
            "a batch norm without running statistics (track_running_stats=False) can't be folded: "
            "it normalizes by each batch"
        )
    form = affine_form(mean, variance, gamma, beta, eps)
    return join_affine(weight, bias, form, transposed=transposed, groups=groups)


def join_affine(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    form: AffineForm,
    *,
    transposed: bool = False,
    groups: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``weight * factor[c]`` and ``bias * factor[c] + shift[c]``, in float64, rounded once.

    Gradients flow through. Shapes and dtypes as in :func:`fold_batch_norm`.
    """
    axis, view = (1, channel_view(weight, groups)) if transposed else (0, weight)
    if view.shape[axis] != form.factor.numel():
        raise ArgumentError(
            f"batch norm of {form.factor.numel()} channels behind a weight with "
            f"{view.shape[axis]} output channels: they don't belong together"
        )
    folded = scale_channels(view, form.factor, axis)
    if transposed:
        folded = channel_unview(folded, groups)
    shift = form.shift if bias is None else bias.double() * form.factor + form.shift
    return folded.contiguous(), shift.to(weight.dtype)


def scale_channels(view: torch.Tensor, factor: torch.Tensor, axis: int) -> torch.Tensor:
    """Return ``view * factor[c]`` along ``axis``, in float64, rounded once.

    ``factor``: float64 [C]. The result has the dtype of ``view``.
    """
    shape = [1] * view.dim()
    shape[axis] = -1
    return (view.double() * factor.view(shape)).to(view.dtype)
