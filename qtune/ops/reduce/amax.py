"""amax: the largest value along dimensions; keeps the input's scale."""

from __future__ import annotations

import numpy as np
import torch

from qtune.ops.reduce.extremum import extremum
from qtune.ops.registry import register

register(extremum("amax", "ReduceMax", torch.amax, np.max, doc="largest value along dimensions"))
