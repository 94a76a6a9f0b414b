"""Plain recurrent layers (tanh or relu), unrolled over the steps of the example."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.recurrent.cells import rnn_step
from qtune.ops.recurrent.layers import layer_spec
from qtune.ops.registry import register

register(
    layer_spec(
        "rnn",
        nn.RNN,
        {torch.rnn_tanh: {"nonlinearity": "tanh"}, torch.rnn_relu: {"nonlinearity": "relu"}},
        lambda attrs: rnn_step(attrs["nonlinearity"]),
        states=1,
        gates=1,
        doc="plain recurrent layer: linear, add, tanh table or relu per step; int16 inside",
    )
)
