"""``OpInfo``: inputs and outputs of one operator in one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What ``torch.load`` gives for an ``.opinfo`` file.

    ``input``: list of operands (empty for HBIR operators). ``output``: list of result tensors.
    ``scale`` and ``dtype`` describe the result.
    """

    name: str
    op_type: str
    input: list[Any]
    output: list[torch.Tensor]
    scale: float | None
    dtype: str
