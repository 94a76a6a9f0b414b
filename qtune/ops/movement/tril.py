"""tril: the lower triangle of each matrix, the rest 0; keeps the input's scale."""

from __future__ import annotations

import torch

from qtune.ops.movement.triangle import KERNELS, triangle
from qtune.ops.registry import register

register(triangle("tril", torch.tril, KERNELS, doc="lower triangle of each matrix, the rest 0"))
