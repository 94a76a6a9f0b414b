"""argmax: index of the largest value, the lowest one in a tie; int64, no scale."""

from __future__ import annotations

import numpy as np
import torch

from qtune.ops.reduce.arg_extremum import arg_extremum
from qtune.ops.registry import register

register(
    arg_extremum(
        "argmax",
        "ArgMax",
        torch.argmax,
        np.argmax,
        doc="index of the largest value, the lowest in a tie",
    )
)
