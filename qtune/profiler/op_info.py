"""``OpInfo``: inputs and outputs of one operator in one run, as ``.opinfo`` files hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of an operator in numbers: a row of ``statistic.txt``.

    ``attr``: ``input``, ``output``, ``weight`` or ``bias``, with ``-<n>`` behind it where there are
    several. ``scale``: the scales, several for per-channel quantization, ``None`` for a float.
    ``ch_axis``: the axis of the channels where it is known, else -1. ``min`` to ``var`` (unbiased;
    0 for one element) are those of the real numbers, ``None`` for an empty tensor; NaN and
    infinity show in them as torch's own functions show them. ``nan``, ``inf``: how many there are.
    """

    attr: str
    dtype: str
    shape: tuple[int, ...]
    scale: tuple[float, ...] | None = None
    ch_axis: int = -1
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    var: float | None = None
    nan: int = 0
    inf: int = 0

    @property
    def range(self) -> float | None:
        """``max - min``."""
        return None if self.min is None or self.max is None else self.max - self.min

    @property
    def is_per_channel(self) -> bool:
        """Whether there is a scale for each channel."""
        return self.scale is not None and len(self.scale) > 1


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What ``torch.load`` gives for an ``.opinfo`` file.

    ``input``: list of operands (for HBIR operators those that other operators or inputs gave).
    ``output``: list of result tensors. ``scale`` and ``dtype`` describe the result. ``parameters``:
    the float weight and bias by name, of a converted operator the real numbers of its codes.
    ``op``: name in the registry, where known; ``owner``: the operator's name, also for a second
    call or result. ``module``: path of the layer, or of the module whose forward calls a function.
    ``method``: what a ``FloatFunctional`` was called for. ``source``: the calling line
    (``model.py:12``). ``result``: number of the result, where the operator has several; inputs and
    parameters are with the first. ``call``: number of the forward. ``tensors``: the numbers of all
    tensors.
    """

    name: str
    op_type: str
    input: list[Any]
    output: list[torch.Tensor]
    scale: float | None
    dtype: str
    op: str = ""
    owner: str = ""
    module: str = ""
    method: str = ""
    source: str = ""
    result: int = 0
    call: int = 0
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    tensors: tuple[TensorInfo, ...] = ()
