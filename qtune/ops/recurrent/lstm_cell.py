"""LSTMCell: one step of an LSTM."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.recurrent.cells import lstm_step
from qtune.ops.recurrent.single import cell_spec
from qtune.ops.registry import register

register(
    cell_spec(
        "lstm_cell",
        nn.LSTMCell,
        lambda attrs: torch.lstm_cell,
        lambda attrs: lstm_step,
        functions={torch.lstm_cell: {}},
        states=2,
        gates=4,
        doc="one step of an LSTM; int16 inside",
    )
)
