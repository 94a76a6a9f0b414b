"""amin: the smallest value along dimensions; keeps the input's scale."""

from __future__ import annotations

import numpy as np
import torch

from qtune.ops.reduce.extremum import extremum
from qtune.ops.registry import register

register(extremum("amin", "ReduceMin", torch.amin, np.min, doc="smallest value along dimensions"))
