"""all: whether every element of a mask is true, along dimensions; a mask."""

from __future__ import annotations

import torch

from qtune.ops.reduce.truth import truth
from qtune.ops.registry import register

register(truth("all", "AllTrue", torch.all, doc="whether every element of a mask is true"))
