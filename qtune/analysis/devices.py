"""Where an analysis runs."""

from __future__ import annotations

import logging
from typing import TypeVar

import torch

from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, unflatten

T = TypeVar("T")
_log = logging.getLogger("qtune.analysis")


def device_of(device_ids: int | None) -> torch.device:
    """The GPU of that index; the CPU for ``None`` and where there is no GPU (said in the log)."""
    if device_ids is None or not torch.cuda.is_available():
        if device_ids is not None:
            _log.info("device_ids=%s: no GPU here, the CPU is used", device_ids)
        return torch.device("cpu")
    return torch.device("cuda", device_ids)


def inputs_on(inputs: Inputs, device: torch.device) -> Inputs:
    """The same call with its tensors on ``device``."""
    args, kwargs = tensors_on((inputs.args, dict(inputs.kwargs)), device)
    return Inputs(*args, **kwargs)


def tensors_on(value: T, device: torch.device) -> T:
    """The same containers with their tensors on ``device``."""
    leaves, spec = flatten(value)
    moved = [leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    made: T = unflatten(moved, spec)
    return made
