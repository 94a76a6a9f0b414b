"""The digits net with one planted fault each, and the float function (nearly) unchanged."""

from __future__ import annotations

import digits_model as digits
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SharedConv(digits.DigitsNet):
    """Runs one convolution twice, so that both results share one scale."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(x + self.bn(self.conv(x)))
        x = F.relu(self.conv(x) * 0.1 + x)
        return self.head(self.body(self.pool(x)).mean((2, 3)))


class UnfusedBatchNorm(digits.DigitsNet):
    """Uses the convolution's result beside the batch norm, so that the two can't be fused."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv(x)
        x = F.relu(self.bn(y) + 0.01 * y + x)
        return self.head(self.body(self.pool(x)).mean((2, 3)))


def with_huge_channel(model: digits.DigitsNet, factor: float = 60.0) -> digits.DigitsNet:
    """Scale up one channel of ``body`` and scale it back in ``head``: the float function stays.

    In int8 the other channels of ``body`` are left with a few codes.
    """
    norm = model.body[1]
    with torch.no_grad():
        norm.weight[0] *= factor
        norm.bias[0] *= factor
        model.head.weight[:, 0] /= factor
    return model


def copy_weights(source: nn.Module, target: nn.Module) -> nn.Module:
    """``target`` with the trained weights of ``source``, in eval mode."""
    target.load_state_dict(source.state_dict())
    return target.eval()
