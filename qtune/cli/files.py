"""Files that the user names: never unpickled unsafely."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qtune.cli.outcome import InputError
from qtune.errors import kind_of

_WRAPPERS = ("state_dict", "model")
_MOST_KEYS = 3
_PARALLEL = "module."


def safe_load(path: Path, option: str) -> Any:
    """What a ``.pt`` file holds, by torch's safe default."""
    if not path.is_file():
        raise InputError(f"{option}: there is no file {path}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{option}: {path} holds objects that torch's safe default does not load; save "
            "tensors in lists and dicts only, of a model its state_dict()"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{option}: {path} is no file of torch.save") from error


def load_state(path: Path, option: str) -> dict[str, Tensor]:
    """A state dict, also where it lies under ``state_dict`` or ``model``."""
    found = safe_load(path, option)
    for name in _WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping):
        raise InputError(f"{option}: {path} holds {kind_of(found)}, no state dict")
    return dict(found)


def check_keys(model: nn.Module, state: Mapping[str, Any], path: Path, option: str) -> None:
    """``InputError`` naming the keys and shapes in which ``state`` does not fit ``model``."""
    own = model.state_dict()
    missing, unknown = [k for k in own if k not in state], [k for k in state if k not in own]
    shapes = [
        f"{key} is {tuple(value.shape)} and must be {tuple(own[key].shape)}"
        for key, value in state.items()
        if key in own and isinstance(value, Tensor) and isinstance(own[key], Tensor)
        if value.shape != own[key].shape
    ]
    named = {"missing": missing, "unknown": unknown, "of another shape": shapes}
    texts = [f"{len(keys)} {what} ({_some(keys)})" for what, keys in named.items() if keys]
    if texts:
        hint = _hint(own, state)
        raise InputError(f"{option}: {path} does not fit the model: {', '.join(texts)}{hint}")


def _hint(own: Mapping[str, Any], state: Mapping[str, Any]) -> str:
    """What the file probably is instead."""
    if state and all(key.startswith(_PARALLEL) for key in state):
        return f". Its names begin with {_PARALLEL!r}: save model.module.state_dict()"
    parts = {key: value for key, value in state.items() if isinstance(value, Mapping)}
    inner = [key for key, value in parts.items() if set(own) & set(value)]
    return f". Its entry {inner[0]!r} is a state dict: save that alone" if inner else ""


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_MOST_KEYS]) + (", ..." if len(keys) > _MOST_KEYS else "")
