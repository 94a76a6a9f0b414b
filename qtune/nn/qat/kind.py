"""Whether a module is of a type that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from qtune.nn.qat.op import QATOp
from qtune.ops.op_types import is_one_of


def is_of(module: nn.Module, types: Sequence[Any]) -> bool:
    """Whether ``module`` is of one of ``types``, or the operator of such a layer or function."""
    if isinstance(module, tuple(wanted for wanted in types if isinstance(wanted, type))):
        return True
    return isinstance(module, QATOp) and is_one_of(types, module.op, module.float_type)
