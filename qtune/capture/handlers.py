"""What a recording does with modules and functions that no torch mode sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.calls import Call, Calls
from qtune.capture.leaf import hands_on
from qtune.capture.nodes import map_leaves, tensors_in
from qtune.capture.sizes import plain
from qtune.capture.source import caller
from qtune.capture.tape import Tape

HOOKED = "hooked"
"""Key of ``node.meta``: a forward hook of the leaf gave other arguments or another result."""


class ModelHandlers:
    """The handlers of :func:`~qtune.capture.patches.installed` for one model.

    ``names``: path of every module by identity; of a shared module the first one.
    """

    def __init__(
        self,
        model: nn.Module,
        tape: Tape,
        leaf: Callable[[nn.Module], bool],
        *,
        symbolic_flags: bool,
    ) -> None:
        self.model = model
        self.tape = tape
        self.calls = Calls(tape)
        self.names: dict[int, str] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self.names.setdefault(id(module), name)
        self._flags = {id(module): bool(vars(module).get("training")) for module in model.modules()}
        self._global_hooks = self._count_global_hooks()
        self._leaf = leaf
        self._symbolic_flags = symbolic_flags

    @property
    def recording(self) -> bool:
        """Whether the model's own code is running now."""
        return self.tape.recording

    def module(self, module: nn.Module, args: Any, kwargs: Any, original: Any) -> Any:
        """A leaf is recorded as one call, any other module is entered."""
        name = self.names.get(id(module))
        if name is None:  # made inside forward, or hidden in a list: recorded as what it calls
            return original(module, *args, **kwargs)
        is_call = self._leaf(module) and not hands_on(module, args)
        if name and is_call and not self._is_altered(module):
            return self._leaf_call(name, module, args, kwargs, original)
        with self.tape.scope(name):
            return original(module, *args, **kwargs)

    def _leaf_call(
        self, name: str, module: nn.Module, args: Any, kwargs: Any, original: Any
    ) -> Any:
        answers: list[Any] = []
        if self._count_global_hooks() != self._global_hooks:
            raise self.tape.conditions.refusal(
                "forward registers hooks for all modules (register_module_forward_hook), which "
                "can't be recorded; register them outside of forward"
            )

        def function(*args: Any, **kwargs: Any) -> Any:
            with _listening(module, answers):
                return original(module, *args, **kwargs)

        result = self.calls.run(
            Call("call_module", name, function, name, opaque=True), args, kwargs
        )
        if answers:
            calls = self.tape.graph.find_nodes(op="call_module", target=name)
            calls[-1].meta[HOOKED] = True
        return result

    def _is_altered(self, module: nn.Module) -> bool:
        """Whether forward has put other tensors in place of parameters or buffers
        (``torch.func.functional_call``) or has switched the training mode.

        Then the layer's functions are recorded, with what they see now.
        """
        present = (*module.parameters(), *module.buffers())
        return not all(map(self.tape.origins.is_owned, present)) or any(
            self._is_switched(part) for part in module.modules()
        )

    def _is_switched(self, module: nn.Module) -> bool:
        """Whether forward has changed the training flag of a module of the model."""
        flag = vars(module).get("training")
        return bool(flag) != self._flags.get(id(module), bool(flag))

    @staticmethod
    def _count_global_hooks() -> int:
        hooks = nn.modules.module
        return len(hooks._global_forward_hooks) + len(hooks._global_forward_pre_hooks)

    def thread(self) -> None:
        """What another thread computes is not recorded."""
        self.tape.origins.thread = caller()

    def training(self, module: nn.Module, value: bool) -> Any:
        """``module.training``: symbolic where that is possible, else guarded."""
        path = self.names.get(id(module))
        if path is None or self._is_switched(module):
            return bool(value)
        flag = self.tape.conditions.flag(module, path)
        return flag if self._symbolic_flags else bool(flag)

    def function(self, cls: type, args: Any, kwargs: Any, original: Any) -> Any:
        """A ``torch.autograd.Function`` is one opaque call, so that its backward stays."""
        if _is_checkpoint(cls):
            return args[0](*args[2:])  # (function, preserve_rng_state, *its arguments)
        if cls.__module__ == "torch.nn.modules._functions" and cls.__name__.startswith("Backward"):
            return self._identity(cls, args, original)

        def run(*args: Any, **kwargs: Any) -> Any:
            return original(cls, *args, **kwargs)

        target = MethodType(original, cls)  # cls.apply as it is without the recording
        call = Call("call_function", target, run, cls.__name__, opaque=True)
        return self.calls.run(call, args, kwargs)

    def scripted(self, function: Any, args: Any, kwargs: Any, original: Any) -> Any:
        """A scripted function is one opaque call."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return original(function, *args, **kwargs)

        call = Call("call_function", function, run, function.name, opaque=True)
        return self.calls.run(call, args, kwargs)

    def length(self, tensor: Tensor) -> Any:
        """``len(tensor)`` as a size."""
        with torch._C.DisableTorchFunction():
            return self.tape.conditions.size(tensor, 0)

    def seed(self) -> None:
        """Seeding is no call on tensors; replays would draw other numbers."""
        raise self.tape.conditions.refusal(
            "forward seeds torch's random generator, which can't be recorded; seed before the call"
        )

    def broadcast(self, shapes: Any, original: Any) -> Any:
        """``torch.broadcast_shapes`` of sizes."""
        value = original(*map_leaves(shapes, plain))
        return self.tape.conditions.broadcast(original, shapes, value)

    def _identity(self, cls: type, args: Any, original: Any) -> Any:
        """torch's carrier of full backward hooks: the same values in new tensors."""
        with self.tape.paused():
            result = original(cls, *args)
        with torch._C.DisableTorchFunction():
            for before, after in zip(tensors_in(args), tensors_in(result), strict=True):
                self.tape.bind(after, self.tape.node_of(before), [])
        return result


@contextmanager
def _listening(module: nn.Module, answers: list[Any]) -> Iterator[None]:
    """Collect what forward hooks give back in place of the arguments or the result."""

    def heard(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = hook(*args, **kwargs)
            if answer is not None:
                answers.append(answer)
            return answer

        return call

    hooks = (module._forward_pre_hooks, module._forward_hooks)
    before = [dict(group) for group in hooks]
    try:
        for group in hooks:
            group.update({key: heard(hook) for key, hook in group.items()})
        yield
    finally:
        for group, own in zip(hooks, before, strict=True):
            group.update({key: hook for key, hook in own.items() if key in group})


def _is_checkpoint(cls: type) -> bool:
    return cls.__module__ == "torch.utils.checkpoint" and cls.__name__ == "CheckpointFunction"
