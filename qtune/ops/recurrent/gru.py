"""GRU layers, unrolled over the steps of the example."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.recurrent.cells import gru_step
from qtune.ops.recurrent.layers import layer_spec
from qtune.ops.registry import register

register(
    layer_spec(
        "gru",
        nn.GRU,
        {torch.gru: {}},
        lambda attrs: gru_step,
        states=1,
        gates=3,
        doc="GRU: linear, add, sigmoid and tanh tables, mul per step; int16 inside",
    )
)
