"""Puts everything back as it was: buffers, attributes, gradients and random state."""

from __future__ import annotations

import copy
import random
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.ledger import storage_key

_CONTAINERS = ("_parameters", "_buffers", "_modules")
_FILLED = (dict, OrderedDict, defaultdict, list, set)
"""Attributes whose contents forward may change."""
_TORCH_STATE = frozenset(vars(nn.Module()))


class Restorer:
    """The state of a model before it runs.

    Buffers and plain tensor attributes are copied beforehand (batch norm changes its buffers below
    what torch tells); parameters only when something is about to write to them (:meth:`save`).
    """

    def __init__(self, model: nn.Module) -> None:
        self._attributes = [_Attributes(module) for module in model.modules()]
        self._grads = [(p, p.grad) for p in model.parameters()]
        kept = [*model.buffers(), *plain_attributes(model).values()]
        self._saved = [(t, t.detach().clone()) for t in kept if has_values(t)]
        self._waiting: dict[int | None, list[Tensor]] = {}
        for parameter in model.parameters():
            if has_values(parameter):
                self._waiting.setdefault(storage_key(parameter), []).append(parameter)
        self._random = _RandomState()

    def save(self, tensor: Tensor) -> None:
        """``tensor`` is about to change: keep the parameter that it is, or is a view of."""
        for parameter in self._waiting.pop(storage_key(tensor), ()):
            self._saved.append((parameter, parameter.detach().clone()))

    def restore(self) -> None:
        """Undo all changes since construction."""
        for attributes in self._attributes:
            attributes.restore()
        with torch.no_grad():
            for tensor, value in self._saved:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        for parameter, grad in self._grads:
            if parameter.grad is not grad:
                parameter.grad = grad
        self._random.restore()

    def rebound_buffers(self) -> Iterator[tuple[Any, Any]]:
        """Buffers that forward replaced by another tensor: before, now."""
        for attributes in self._attributes:
            yield from attributes.rebound_buffers()

    def rebound_attributes(self) -> Iterator[tuple[nn.Module, str, Any]]:
        """Plain attributes that forward set: module, name, present value."""
        for attributes in self._attributes:
            yield from attributes.rebound_attributes()

    def random_notes(self) -> Iterator[str]:
        """What forward did with random state that a recorded graph can't repeat."""
        yield from self._random.notes()


class _Attributes:
    """The attributes of one module, one level deep."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._plain = dict(vars(module))
        inside = ((name, self._plain.get(name)) for name in _CONTAINERS)
        self._inside = {name: dict(d) for name, d in inside if isinstance(d, dict)}
        own = (v for name, v in self._plain.items() if name not in _TORCH_STATE)
        self._filled = [(v, copy.copy(v)) for v in own if type(v) in _FILLED]

    def restore(self) -> None:
        _reset(vars(self._module), self._plain)
        for name, inside in self._inside.items():
            _reset(vars(self._module)[name], inside)
        for container, before in self._filled:
            _refill(container, before)

    def rebound_buffers(self) -> Iterator[tuple[Any, Any]]:
        now = vars(self._module).get("_buffers", {})
        for name, before in self._inside.get("_buffers", {}).items():
            if now.get(name) is not before:
                yield before, now.get(name)

    def rebound_attributes(self) -> Iterator[tuple[nn.Module, str, Any]]:
        for name, value in vars(self._module).items():
            if name not in _CONTAINERS and self._plain.get(name, self) is not value:
                yield self._module, name, value


def _reset(state: dict[str, Any], before: dict[str, Any]) -> None:
    is_same = list(state) == list(before) and all(state[k] is v for k, v in before.items())
    if not is_same:
        state.clear()
        state.update(before)


def _refill(container: Any, before: Any) -> None:
    """Give a dict, list or set the items back that it held (a cache that forward filled)."""
    pairs = zip(_items(container), _items(before), strict=False)
    if len(container) == len(before) and all(now is old for now, old in pairs):
        return
    container.clear()
    if isinstance(container, list):
        container.extend(before)
    else:
        container.update(before)


def _items(container: Any) -> list[Any]:
    return [*container, *container.values()] if isinstance(container, dict) else [*container]


def to_the_end(restore: Callable[[], object]) -> None:
    """Call ``restore``, which may run twice; Ctrl-C in it goes on when all is restored."""
    try:
        restore()
    except KeyboardInterrupt:
        restore()
        raise


@contextmanager
def randomness_kept() -> Iterator[None]:
    """The random state of torch, Python and NumPy is as before when the block ends."""
    before = _RandomState()
    try:
        yield
    finally:
        to_the_end(before.restore)


class _RandomState:
    """Random state of torch, Python and NumPy."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if _uses_cuda() else None
        self._python = random.getstate()
        self._numpy = _numpy_random()
        self._numpy_state = self._numpy.get_state() if self._numpy is not None else None

    def notes(self) -> Iterator[str]:
        now = self._numpy.get_state() if self._numpy is not None else None
        is_same = _comparable(now) == _comparable(self._numpy_state)
        if random.getstate() != self._python or not is_same:
            yield (
                "forward draws random numbers from Python or NumPy; the recorded graph repeats "
                "those of the example"
            )

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.set_state(self._numpy_state)


def _comparable(state: Any) -> Any:
    """NumPy's state without arrays."""
    return None if state is None else (state[1].tobytes(), *state[2:])


def _uses_cuda() -> bool:
    initialized: Any = torch.cuda.is_initialized
    return bool(initialized())


def _numpy_random() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random


def has_values(tensor: Tensor) -> bool:
    """Not so for one on the device meta, and for what is not made before the first call."""
    return not (tensor.is_meta or torch.nn.parameter.is_lazy(tensor))


def plain_attributes(model: nn.Module) -> dict[str, Tensor]:
    """Tensors that modules hold as neither parameters nor buffers, by name."""
    found: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                found[f"{path}.{name}" if path else name] = value
    return found


@contextmanager
def restored(model: nn.Module) -> Iterator[Restorer]:
    """The model is as before when the block ends, however it ends."""
    restorer = Restorer(model)
    try:
        yield restorer
    finally:
        restorer.restore()
