"""Between a model's own containers and the flat lists of a module without native pytree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from qtune.bpu.hbm import Program
from qtune.capture.structure import unflatten
from qtune.errors import ArgumentError
from qtune.hbir.feeding import is_array
from qtune.hbir.module import Function, HbirModule
from qtune.hbir.structure import match, rebuild
from qtune.nn.prepared import PreparedModel

Model = PreparedModel | HbirModule | Program | Function


def get_hbir_input_flattener(model: Model) -> Callable[..., list[Any]]:
    """Return a function that turns a call's arguments into the flat list of HBIR inputs.

    ``model``: the prepared model, or the module exported from it (its first function). With
    ``export(..., native_pytree=False)`` a module takes that list:
    ``module[0](*flatten(image, mask=mask))``. Another structure than the example's raises.
    """
    if isinstance(model, PreparedModel):
        interface: Any = model.interface
        return lambda *args, **kwargs: list(interface.inputs(args, kwargs))
    function = _function(model, "get_hbir_input_flattener")
    structure = function.input_structure

    def flatten(*args: Any, **kwargs: Any) -> list[Any]:
        value = {"args": tuple(args), "kwargs": kwargs}
        return match(structure, value, is_array, "inputs")

    return flatten


def get_hbir_output_unflattener(model: Model) -> Callable[[Sequence[Any]], Any]:
    """Return a function that puts the flat list of HBIR outputs into the model's containers.

    ``model`` as for :func:`get_hbir_input_flattener`. A list of another length raises
    ``ArgumentError``.
    """
    if isinstance(model, PreparedModel):
        return _unflattener(model)
    function = _function(model, "get_hbir_output_unflattener")
    structure, count = function.output_structure, len(function.outputs)

    def put(leaves: Sequence[Any]) -> Any:
        _check_count(leaves, count)
        return rebuild(structure, list(leaves))

    return put


def _unflattener(model: PreparedModel) -> Callable[[Sequence[Any]], Any]:
    spec: Any = model.out_spec
    (output,) = model.graph.find_nodes(op="output")
    items = list(output.args[0])
    count = sum(_is_tensor(item) for item in items)

    def put(leaves: Sequence[Any]) -> Any:
        _check_count(leaves, count)
        given = iter(leaves)
        return unflatten([next(given) if _is_tensor(item) else item for item in items], spec)

    return put


def _is_tensor(item: Any) -> bool:
    if isinstance(item, fx.Node):
        return isinstance(item.meta.get("dtype"), torch.dtype) or "dtype" not in item.meta
    return isinstance(item, torch.Tensor)


def _check_count(leaves: Sequence[Any], count: int) -> None:
    if len(leaves) != count:
        raise ArgumentError(f"expected the list of the {count} outputs, got {len(leaves)} items")


def _function(model: Any, where: str) -> Function:
    if isinstance(model, Function):
        return model
    if isinstance(model, (HbirModule, Program)):
        return model[0]
    raise ArgumentError(
        f"{where}: expected a prepared model or an exported module, got {type(model).__name__}"
    )
