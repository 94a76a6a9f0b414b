"""Whether all processes of an analysis have the same models; else its parts do not fit."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from qtune.analysis.cases import ANALYSIS, BASELINE
from qtune.analysis.session import Session
from qtune.errors import AnalysisError

_log = logging.getLogger("qtune.analysis")

Sums = dict[str, int]
"""Name of a tensor -> checksum."""


def check_same_models(session: Session, where: str) -> None:
    """Compare the models of all processes, in a step; each must call this.

    ``AnalysisError`` for other parameters. Other buffers are said in the log: after a training
    with ``DistributedDataParallel`` the statistics of batch norms differ a little.
    """
    ranks = session.ranks
    if not ranks.are_several:
        return
    models = {side: session.model_of(side) for side in (BASELINE, ANALYSIS)}
    torch_models = {side: m for side, m in models.items() if isinstance(m, nn.Module)}
    own = {
        side: (_sums(m.named_parameters()), _sums(m.named_buffers()))
        for side, m in torch_models.items()
    }
    first, *others = ranks.everywhere(where, own)
    for rank, other in enumerate(others, 1):
        for side in torch_models:
            parameter, buffer = (_first_other(a, b) for a, b in _pairs(first, other, side))
            if parameter is not None:
                raise AnalysisError(
                    f"{where}: the {side} models of processes 0 and {rank} are not the same, "
                    f"parameter {parameter!r} differs; load the same checkpoint in every process"
                )
            if buffer is not None and ranks.is_first:
                _log.warning(
                    "%s: buffer %r of the %s models differs in processes 0 and %d; load the same "
                    "checkpoint in every process",
                    where,
                    buffer,
                    side,
                    rank,
                )


def _pairs(
    first: dict[str, tuple[Sums, Sums]], other: dict[str, tuple[Sums, Sums]], side: str
) -> list[tuple[Sums, Sums]]:
    return list(zip(first.get(side, ({}, {})), other.get(side, ({}, {})), strict=True))


def _first_other(first: Sums, other: Sums) -> str | None:
    names = {**first, **other}
    return next((name for name in names if first.get(name) != other.get(name)), None)


def _sums(tensors: Iterable[tuple[str, Tensor]]) -> Sums:
    return {name: _sum(tensor) for name, tensor in tensors}


def _sum(tensor: Tensor) -> int:
    """CRC-32 of the bits, begun with the shape and dtype's."""
    begin = zlib.crc32(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data, begin)
