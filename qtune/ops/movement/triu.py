"""triu: the upper triangle of each matrix, the rest 0; keeps the input's scale."""

from __future__ import annotations

import torch

from qtune.ops.movement.triangle import triangle
from qtune.ops.registry import register

register(triangle("triu", torch.triu, (), doc="upper triangle of each matrix, the rest 0"))
