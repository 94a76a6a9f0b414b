"""RNNCell: one step of a plain recurrent layer."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.recurrent.cells import rnn_step
from qtune.ops.recurrent.single import cell_spec
from qtune.ops.registry import register

register(
    cell_spec(
        "rnn_cell",
        nn.RNNCell,
        lambda attrs: (
            torch.rnn_relu_cell if attrs["nonlinearity"] == "relu" else torch.rnn_tanh_cell
        ),
        lambda attrs: rnn_step(attrs["nonlinearity"]),
        functions={
            torch.rnn_tanh_cell: {"nonlinearity": "tanh"},
            torch.rnn_relu_cell: {"nonlinearity": "relu"},
        },
        states=1,
        gates=1,
        doc="one step of a plain recurrent layer; int16 inside",
    )
)
