"""``OpCall``: operators to run together, how they are connected, and their operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from qtune.errors import RunError
from qtune.nn.quantized.frozen import FrozenOp
from qtune.nn.quantized.wiring import External, Made, Wiring, mapped


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an operator or of a fused group.

    In eager models the layers of a ``group`` are called one by one: the first ones hand their call
    on from layer to layer, the last one runs it. Any other use of what they return raises.
    """

    members: tuple[FrozenOp, ...]
    wiring: Wiring
    operands: tuple[Any, ...]
    group: str = ""

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._text(name))

    def __add__(self, other: object) -> NoReturn:
        raise RunError(self._text("+"))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """No torch function takes it."""
        found: list[OpCall] = []
        mapped((args, kwargs or {}), lambda item: found.append(item) if _is_call(item) else item)
        raise RunError(found[0]._text(getattr(func, "__name__", func)))

    def _text(self, what: object) -> str:
        return (
            f"{self.members[-1].name} is fused with the layers up to {self.group} and has no "
            f"result of its own, but forward uses it ({what}) before {self.group}; leave it out of "
            "fuse_modules"
        )


def _is_call(item: Any) -> bool:
    return isinstance(item, OpCall)


def call_of(
    op: FrozenOp, args: tuple[Any, ...], kwargs: Mapping[str, Any], group: str = ""
) -> OpCall:
    """The call of ``op``, together with the calls of its group that are among the arguments."""
    before: list[OpCall] = []
    mapped((args, dict(kwargs)), lambda item: before.append(item) if _is_call(item) else item)
    if len(before) > 1 or any(item.group != group for item in before):
        names = ", ".join(item.members[-1].name for item in before)
        groups = ", ".join(dict.fromkeys(item.group for item in before))
        raise RunError(
            f"{op.name}: got the results of {names}, which are members of fused groups and have "
            f"none of their own: forward runs {op.name} before {groups} ends the group. Give "
            f"fuse_modules all layers of a group in the order of forward, {op.name} too, or leave "
            f"{names} out of it"
        )
    first = before[0] if before else None
    operands = [] if first is None else list(first.operands)

    def mark(item: Any) -> Any:
        if first is not None and item is first:
            return Made(len(first.members) - 1)
        if not isinstance(item, Tensor):
            return item
        operands.append(item)
        return External(len(operands) - 1)

    own = (mapped(args, mark), mapped(dict(kwargs), mark))
    calls = (own,) if first is None else (*first.wiring.calls, own)
    members = (op,) if first is None else (*first.members, op)
    return OpCall(members, Wiring(calls, len(operands)), tuple(operands), group)
