"""Histograms of tensors as tensorboard event files (the extra ``tensorboard``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qtune.errors import AnalysisError
from qtune.profiler.op_info import TensorInfo

FOLDER = "tensorboard"
_EVENTS = "events.out.tfevents.*"
_BINNED = 1e20
"""How far tensorboard's own bins reach; it drops values beyond, and fails if none is left."""
_BINS = 64
"""Equal bins from the smallest to the largest value, in their place."""


def write_histograms(
    folder: Path,
    tensors: Iterable[tuple[str, TensorInfo, Tensor]],
    *,
    force_per_channel: bool = False,
) -> Path:
    """Write a histogram for each ``(operator, numbers, values)``; return ``folder``.

    Its tag is ``<operator>/<attr>``. Where there is a scale for each channel, or if it is forced,
    there is one for each channel as well, ``<operator>/<attr>/channel_<n>``, along the axis of the
    scales; else along axis 0 of parameters and 1 of activations. NaN and infinity are left out, and
    tensors without any finite number. Event files of an earlier call in ``folder`` are removed.
    """
    with event_writer(folder) as writer:
        for operator, info, values in tensors:
            for tag, part in _parts(f"{operator}/{info.attr}", info, values, force_per_channel):
                add_histogram(writer, tag, part)
    return folder


@contextmanager
def event_writer(folder: Path) -> Iterator[Any]:
    """A ``SummaryWriter`` whose event files replace earlier ones in ``folder`` at the end.

    After an exception the earlier ones are there, and none of it.
    ``AnalysisError`` says what to install where tensorboard is missing.
    """
    writer_class = _writer_class()
    earlier = set(folder.glob(_EVENTS))
    writer = writer_class(str(folder))
    unwanted = earlier
    try:
        yield writer
    except BaseException:
        unwanted = set(folder.glob(_EVENTS)) - earlier
        raise
    finally:
        writer.close()
        for path in unwanted:
            path.unlink()


def add_histogram(writer: Any, tag: str, values: Tensor) -> None:
    """Write the finite numbers of ``values``; nothing where there is none."""
    finite = values[torch.isfinite(values)]
    if not finite.numel():
        return
    within = float(finite.abs().max()) < _BINNED
    writer.add_histogram(tag, finite.double(), bins="tensorflow" if within else _BINS)


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise AnalysisError(
            "histograms need the package tensorboard, which is not installed: "
            "pip install 'qtune[tensorboard]'"
        ) from error
    return SummaryWriter


def _parts(tag: str, info: TensorInfo, values: Tensor, force: bool) -> Iterable[tuple[str, Tensor]]:
    real = values.detach().cpu()
    if real.is_complex():
        return
    real = real if real.is_floating_point() else real.double()
    yield tag, real.float().flatten()
    if not (force or info.is_per_channel) or real.dim() == 0:
        return
    axis = _channel_axis(info, real.dim())
    for channel, part in enumerate(real.unbind(axis)):
        yield f"{tag}/channel_{channel}", part.float().flatten()


def _channel_axis(info: TensorInfo, dims: int) -> int:
    if 0 <= info.ch_axis < dims:
        return info.ch_axis
    is_activation = info.attr.startswith(("input", "output"))
    return 1 if is_activation and dims > 1 else 0
