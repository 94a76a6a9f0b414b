"""LSTM layers, unrolled over the steps of the example."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.recurrent.cells import lstm_step
from qtune.ops.recurrent.layers import layer_spec
from qtune.ops.registry import register

register(
    layer_spec(
        "lstm",
        nn.LSTM,
        {torch.lstm: {}},
        lambda attrs: lstm_step,
        states=2,
        gates=4,
        doc="LSTM: linear, add, sigmoid and tanh tables, mul per step; int16 inside",
    )
)
