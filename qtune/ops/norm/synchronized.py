"""Batch norm over the batches of all processes, as torch's ``SyncBatchNorm`` trains."""

from __future__ import annotations

from typing import Any

import torch

from qtune.quantizers.processes import reduce_over_processes


def synchronized_batch_norm(
    x: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    """Normalize by mean and variance of what all processes pass, on CPU as on GPU.

    Updates the running statistics by ``momentum``, the variance with ``n / (n - 1)``. float32
    arithmetic for half types; the result has the dtype of ``x``. Gradients are summed over the
    processes.
    """
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    dims = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    own = wide.new_tensor([x.numel() / max(x.shape[1], 1)])
    total = _AllSum.apply(torch.cat([wide.sum(dims), own]))  # type: ignore[no-untyped-call]
    count = total[-1].detach()
    mean = total[:-1] / count
    centred = wide - mean.view(shape)
    variance = _AllSum.apply(centred.square().sum(dims)) / count  # type: ignore[no-untyped-call]
    _update(running_mean, mean, momentum)
    _update(running_var, variance * (count / (count - 1)), momentum)
    result: torch.Tensor = centred * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(x.dtype)


@torch.no_grad()
def _update(running: torch.Tensor | None, new: torch.Tensor, momentum: float) -> None:
    if running is not None:
        running.lerp_(new.to(running.dtype), momentum)


class _AllSum(torch.autograd.Function):
    """The sum over all processes; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return reduce_over_processes(value.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return reduce_over_processes(gradients[0].contiguous().clone())
