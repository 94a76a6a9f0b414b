"""A torch model that calls one operator of the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qtune.ops.spec import OpSpec
from qtune.testing.fuzzing.operands import Slot


class Operator(nn.Module):
    """Calls the float kernel; operands that modules own are its parameters and buffers."""

    def __init__(
        self,
        entry: OpSpec,
        slots: Sequence[Slot],
        operands: Sequence[Any],
        attrs: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.kernel, self.attrs, self.slots = entry.float_kernel, dict(attrs), list(slots)
        self.names = [_attribute(slot.role, index) for index, slot in enumerate(slots)]
        for name, slot, value in zip(self.names, slots, operands, strict=True):
            if slot.is_owned and slot.shape is not None:
                self._own(name, value)

    def _own(self, role: str, value: Tensor) -> None:
        if role.startswith("running"):
            self.register_buffer(role, value.clone())
        else:
            self.register_parameter(role, nn.Parameter(value.clone()))

    def forward(self, *tensors: Tensor) -> Any:
        """The operator's result; ``tensors`` are the operands that no module owns."""
        given = iter(tensors)
        operands = [
            next(given) if slot.is_input else getattr(self, name, slot.number)
            for name, slot in zip(self.names, self.slots, strict=True)
        ]
        return self.kernel(*operands, **self.attrs)  # type: ignore[misc]


def _attribute(role: str, index: int) -> str:
    """The name of a parameter; a role ``*name`` stands for several."""
    return f"{role[1:]}_{index}" if role.startswith("*") else role


class Model(nn.Module):
    """One operator under the name ``op``, so that rules for ``op`` reach it."""

    def __init__(self, op: Operator) -> None:
        super().__init__()
        self.op = op

    def forward(self, *tensors: Tensor) -> Any:
        """As :class:`Operator`."""
        return self.op(*tensors)


def flat(result: Any) -> list[Tensor]:
    """The results of a call, one after the other."""
    return list(result) if isinstance(result, tuple | list) else [result]


def is_finite(result: Any) -> bool:
    """Whether no result holds NaN or infinity."""
    return all(bool(torch.isfinite(item).all()) for item in flat(result))
