"""argmin: index of the smallest value, the lowest one in a tie; int64, no scale."""

from __future__ import annotations

import numpy as np
import torch

from qtune.ops.reduce.arg_extremum import arg_extremum
from qtune.ops.registry import register

register(
    arg_extremum(
        "argmin",
        "ArgMin",
        torch.argmin,
        np.argmin,
        doc="index of the smallest value, the lowest in a tie",
    )
)
