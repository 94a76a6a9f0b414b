"""GRUCell: one step of a GRU."""

from __future__ import annotations

import torch
from torch import nn

from qtune.ops.recurrent.cells import gru_step
from qtune.ops.recurrent.single import cell_spec
from qtune.ops.registry import register

register(
    cell_spec(
        "gru_cell",
        nn.GRUCell,
        lambda attrs: torch.gru_cell,
        lambda attrs: gru_step,
        functions={torch.gru_cell: {}},
        states=1,
        gates=3,
        doc="one step of a GRU; int16 inside",
    )
)
