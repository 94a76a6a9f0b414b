"""The torch function mode: sees every torch call that the model's own Python makes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from qtune.capture.calls import Call, Calls
from qtune.capture.tape import Tape

_ACCESSOR = types.MethodWrapperType
_METHOD_TYPES = (types.MethodDescriptorType, types.WrapperDescriptorType)
_RENAMED = {"__rdiv__": "__rtruediv__", "__idiv__": "__itruediv__", "__div__": "__truediv__"}
_NOT_RECORDED = frozenset({"requires_grad_"})
"""Methods that return the tensor itself and matter to autograd only."""


class RecordingMode(TorchFunctionMode):
    """Writes the calls of one run of a model on ``tape``."""

    def __init__(self, tape: Tape, calls: Calls) -> None:
        super().__init__()
        self._tape = tape
        self._calls = calls
        self._special: dict[str, Callable[..., Any]] = {
            "size": self._size,
            "__len__": self._len,
            "__deepcopy__": self._deepcopy,
            "backward": self._gradient,
        }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run and record one call."""
        kwargs = kwargs or {}
        if not self._tape.recording:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if name == "__get__" and isinstance(func, _ACCESSOR):
            return self._attribute(func, args)
        if name == "__set__" and isinstance(func, _ACCESSOR):
            return self._assign(func, args)
        if name in _NOT_RECORDED:
            return func(*args, **kwargs)
        if func is torch.autograd.grad:
            return self._gradient(func)
        if _is_method(func, name):
            return self._method(func, name, args, kwargs)
        return self._calls.run(Call("call_function", func, func, name), args, kwargs)

    def _method(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        special = self._special.get(name)
        if special is not None:
            return special(func, *args, **kwargs)
        name = _RENAMED.get(name, name)
        return self._calls.run(Call("call_method", name, func, name), args, kwargs)

    def _attribute(self, func: Any, args: tuple[Any, ...]) -> Any:
        name = func.__self__.__name__
        if name == "shape":
            return self._tape.conditions.shape(args[0])

        def get(tensor: Tensor, name: str) -> Any:
            return func(tensor)

        return self._calls.run(Call("call_function", getattr, get, name), (args[0], name), {})

    def _assign(self, func: Any, args: tuple[Any, ...]) -> Any:
        name = func.__self__.__name__
        if name == "data":
            raise self._tape.conditions.refusal(
                "forward assigns to `.data` of a tensor, which can't be recorded; use copy_() for "
                "parameters and buffers, and new tensors elsewhere"
            )
        return func(*args)

    def _size(self, func: Any, tensor: Tensor, dim: Any = None) -> Any:
        if dim is None:
            return self._tape.conditions.shape(tensor)
        if not isinstance(dim, int):
            return func(tensor, dim)
        return self._tape.conditions.size(tensor, int(dim))

    def _len(self, func: Any, tensor: Tensor) -> Any:
        return self._tape.conditions.size(tensor, 0)

    def _gradient(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        raise self._tape.conditions.refusal(
            "forward computes gradients (torch.autograd.grad, backward), which can't be recorded; "
            "write the derivative out, or put the computation into a torch.autograd.Function"
        )

    def _deepcopy(self, func: Any, tensor: Tensor, memo: Any) -> Any:
        def copy(tensor: Tensor) -> Any:
            return func(tensor, memo)

        # the memo belongs to this one run; a copy is what is meant
        return self._calls.run(Call("call_method", "clone", copy, "clone"), (tensor,), {})


def _is_method(func: Any, name: str) -> bool:
    if isinstance(func, _METHOD_TYPES) or getattr(Tensor, name, None) is func:
        return True
    # wrapped methods whose name is not the one they are found under: Tensor.__pow__ is "pow"
    return str(getattr(func, "__qualname__", "")).startswith(("Tensor.", "TensorBase."))
