"""The QAT mode and the consistency level: settings of this process, beside the march.

Both must be set before ``prepare``. Each has a context manager that restores the earlier value.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from qtune.errors import ArgumentError
from qtune.march import March, as_march

_log = logging.getLogger(__name__)


class QATMode(enum.StrEnum):
    """How batch norms behind a GEMM are treated (toolchain_facts.md section 6.1)."""

    FuseBN = "fuse_bn"
    """Folded into the GEMM by ``prepare``."""
    WithBN = "with_bn"
    """Kept in the fused group while training, folded at convert."""
    WithBNReverseFold = "with_bn_reverse_fold"
    """Kept, and the weight scale is computed on the folded weight."""


class FuseMode(enum.StrEnum):
    """Which patterns ``prepare`` fuses (toolchain_facts.md section 6.1)."""

    BNAddReLU = "bn_add_relu"
    """A GEMM with the batch norm, the add and the relu behind it."""
    NoFuse = "no_fuse"
    """None: every operator keeps a scale of its own."""


LEVELS = (0, 1, 2, 3, 4)
"""The documented consistency levels (numerics.md section 4)."""

POWER_OF_TWO_WEIGHTS = 2
"""From this level on the scales of weights are powers of two."""

POWER_OF_TWO_TABLES = 3
"""From this level on the segments of int16 tables are powers of two."""

CONSISTENCY_MARCHES = (March.NASH_E, March.NASH_M)
"""Marches that have consistency levels; on others a level has no effect."""

_qat_mode = QATMode.FuseBN
_consistency_level: int | None = None


def as_qat_mode(mode: QATMode | str) -> QATMode:
    """The mode for a member, its string (``"fuse_bn"``) or its name (``"FuseBN"``)."""
    for known in QATMode:
        if mode in {known.value, known.name}:
            return known
    listed = ", ".join(known.value for known in QATMode)
    raise ArgumentError(f"unknown QAT mode {mode!r}; choose one of: {listed}")


def set_qat_mode(mode: QATMode | str) -> None:
    """Set the QAT mode for everything prepared from now on in this process."""
    global _qat_mode
    _qat_mode = as_qat_mode(mode)


def get_qat_mode() -> QATMode:
    """The QAT mode in force; ``FuseBN`` where none was set."""
    return _qat_mode


@contextmanager
def qat_mode(mode: QATMode | str) -> Iterator[QATMode]:
    """Use a QAT mode inside a ``with`` block and restore the earlier one after it."""
    before = get_qat_mode()
    set_qat_mode(mode)
    try:
        yield get_qat_mode()
    finally:
        set_qat_mode(before)


class ConsistencyStrategy:
    """Holds the consistency level: how closely fake-quantize follows the integers.

    ``None``: unset, scales from statistics, 15-bit requantize. 0: 31-bit requantize apart from the
    GEMM, for models trained before. 1: scales of activations are powers of two, biases are
    quantized in the prepared model, 31-bit requantize. 2: scales of weights are powers of two as
    well. 3: tables of power-of-two segments, and the prepared model looks up in them. 4: resize and
    grid_sample on the integer model's coordinates in the prepared model. 1 to 4 need (re)training.
    """

    @staticmethod
    def set_consistency_level(level: int | None) -> None:
        """Set the level for every ``prepare`` from now on; ``None`` unsets it.

        The prepared model remembers its level: later stages don't ask here again. Marches other
        than nash-e and nash-m have no levels; ``prepare`` then warns.
        """
        global _consistency_level
        _check_level(level)
        _consistency_level = level


def get_consistency_level() -> int | None:
    """The consistency level in force, ``None`` where none was set."""
    return _consistency_level


def level_on(level: int | None, march: March | str, where: str) -> int | None:
    """``level``, or ``None`` with a warning in the log where ``march`` has no levels."""
    if level is None or as_march(march) in CONSISTENCY_MARCHES:
        return level
    known = " and ".join(known.value for known in CONSISTENCY_MARCHES)
    _log.warning(
        "%s: consistency level %d has no effect on %s, only on %s; the usual rules apply",
        where,
        level,
        as_march(march).value,
        known,
    )
    return None


@contextmanager
def consistency_level(level: int | None) -> Iterator[int | None]:
    """Use a consistency level inside a ``with`` block and restore the earlier one after it."""
    before = get_consistency_level()
    ConsistencyStrategy.set_consistency_level(level)
    try:
        yield level
    finally:
        ConsistencyStrategy.set_consistency_level(before)


def _check_level(level: int | None) -> None:
    known = isinstance(level, int) and not isinstance(level, bool) and level in LEVELS
    if level is not None and not known:
        raise ArgumentError(f"consistency level: expected 0 to 4 or None, got {level!r}")
