"""From a call to checked tensors by input name, and back to the model's own containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qtune.errors import ArgumentError, RunError
from qtune.hbir.argument import Argument
from qtune.hbir.structure import last_constants, match, rebuild

if TYPE_CHECKING:
    import torch

    from qtune.hbir.module import Function


def is_array(value: Any) -> bool:
    """Whether ``value`` is a torch tensor or a NumPy array (a NumPy scalar is none)."""
    if isinstance(value, np.ndarray):
        return True
    import torch

    return isinstance(value, torch.Tensor)


def bind_call(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Inputs by name from the arguments of a call.

    Constants of the export (strings, numbers, ``None``) may be left out at the end of the
    positional arguments and in dicts.
    """
    names = [item.name for item in function.inputs]
    if not kwargs and len(args) == 1 and _is_feed(args[0], names):
        return dict(args[0])
    if not function.support_pytree:
        flat = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        return _by_position(function, tuple(flat), kwargs)
    spec = function.input_structure
    value = {"args": (*args, *last_constants(spec, len(args))), "kwargs": kwargs}
    try:
        return dict(zip(names, match(spec, value, is_array, "inputs"), strict=True))
    except ArgumentError as error:
        leaves = _without_containers(args, kwargs)
        if leaves is not None and len(leaves) == len(names):
            return dict(zip(names, leaves, strict=True))
        raise RunError(
            f"function {function.name!r} takes {_signature(function)}: {error}. Call it as the "
            "exported model was called, or with one dict of arrays by input name"
        ) from None


def whole_call(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call as the model was exported: in its containers, with the constants left out here.

    ``RunError`` if the arguments are no call of ``function``.
    """
    if not function.support_pytree:
        return args, kwargs
    fed = bind_call(function, args, kwargs)
    call = rebuild(function.input_structure, [fed[item.name] for item in function.inputs])
    return call["args"], call["kwargs"]


def is_flat(function: Function, values: Sequence[Any]) -> bool:
    """Whether ``values`` are the arrays of all inputs (of which there are several)."""
    return len(values) == len(function.inputs) > 1 and all(map(is_array, values))


def positional(function: Function) -> list[str]:
    """Names of the positional arguments that a call has, as it was exported; else of all inputs."""
    if not function.support_pytree:
        return [item.name for item in function.inputs]
    arguments = dict(function.input_structure["dict"])["args"]
    return [str(place) for place, _ in enumerate(arguments["tuple"])]


def _is_feed(value: Any, names: list[str]) -> bool:
    return isinstance(value, Mapping) and set(value) == set(names)


def _without_containers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """Arrays of a call that only wraps or unwraps the positional list, else ``None``."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)) and not kwargs:
        args = tuple(args[0])
    leaves = [*args, *kwargs.values()]
    return leaves if all(is_array(leaf) for leaf in leaves) else None


def _by_position(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    if kwargs or len(args) != len(function.inputs):
        raise RunError(
            f"function {function.name!r} takes {_signature(function)} in this order (it was "
            f"exported without containers), got {len(args)} positional and {sorted(kwargs)}"
        )
    return dict(zip([item.name for item in function.inputs], args, strict=True))


def _signature(function: Function) -> str:
    return "(" + ", ".join(str(item) for item in function.inputs) + ")"


def check_feed(function: Function, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Torch tensors in the order of the inputs; ``RunError`` names the one that does not fit."""
    expected = {item.name: item for item in function.inputs}
    if not isinstance(inputs, Mapping) or set(inputs) != set(expected):
        got = sorted(inputs) if isinstance(inputs, Mapping) else type(inputs).__name__
        raise RunError(
            f"function {function.name!r} takes {_signature(function)} by name, got {got}"
        )
    tensors = [_check(item, inputs[name], function.open_batch) for name, item in expected.items()]
    batches = {tensor.shape[0] for tensor in tensors if function.open_batch}
    if len(batches) > 1:
        raise RunError(
            f"function {function.name!r}: the inputs have different batch sizes {sorted(batches)}; "
            "they must agree"
        )
    return tensors


def _check(expected: Argument, value: Any, open_batch: bool) -> torch.Tensor:
    import torch

    if not is_array(value):
        raise RunError(
            f"input {expected.name!r}: expected a tensor or array {expected}, got {value!r} "
            f"(type={type(value).__name__}); wrap it with torch.tensor"
        )
    got = getattr(value.dtype, "name", str(value.dtype).removeprefix("torch."))
    if got != expected.dtype:
        raise RunError(
            f"input {expected.name!r}: expected dtype {expected.dtype}, got {got}; convert it "
            "before the call, nothing is converted silently"
        )
    first = 1 if open_batch else 0
    if value.ndim != len(expected.shape) or tuple(value.shape)[first:] != expected.shape[first:]:
        raise RunError(
            f"input {expected.name!r}: expected shape {expected.shape}, got {tuple(value.shape)}; "
            "an exported module has the shapes of its example inputs"
            + (" (the batch size is free)" if open_batch else "")
        )
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    array = np.asarray(value, order="C")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def outputs_from(function: Function, leaves: list[torch.Tensor]) -> Any:
    """The results of a call in the containers of the float model."""
    if not function.support_pytree:
        return leaves
    return rebuild(function.output_structure, leaves)
