"""The torch dispatch mode: what happens below the functions that the recording sees."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qtune.capture.calls import Calls
from qtune.capture.nodes import tensors_in
from qtune.capture.restore import Restorer
from qtune.capture.tape import Tape

_FRESH = "aten.lift_fresh.default"
"""The last step of making a tensor from NumPy or Python data: a constant."""


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Marks tensors made by calls that no one recorded, notes random numbers, saves parameters
    before they change.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked when this class is made; torch's default imports torch._dynamo (seconds) later."""
        return False

    def __init__(self, tape: Tape, calls: Calls, restorer: Restorer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._calls = calls
        self._restorer = restorer

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run one operator of ATen."""
        kwargs = kwargs or {}
        for place in _written(func):
            value = args[place[0]] if place[0] < len(args) else kwargs.get(place[1])
            for tensor in tensors_in(value):
                self._restorer.save(tensor)
        if not self._tape.recording:
            self._calls.is_random |= _is_random(func)
            return func(*args, **kwargs)
        with self._tape.paused(), torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
            self._mark(func, args, kwargs, result)
        return result

    def _mark(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        sources = list(tensors_in((args, kwargs)))
        origins = self._tape.origins
        if str(func) == _FRESH and not any(map(origins.is_unseen, sources)):
            return
        for tensor in tensors_in(result):
            if self._tape.ledger.find(tensor) is None or func._schema.is_mutable:
                origins.mark_unseen(tensor, str(func))


@cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Position and name of the arguments that the operator writes to."""
    if not func._schema.is_mutable:
        return ()
    return tuple(
        (index, argument.name)
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def _is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags
