"""An exported module as a callable that takes any batch size, as the float model does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qtune.bpu.hbm import Program
from qtune.capture.inputs import Inputs
from qtune.capture.structure import flatten, leaf_names, unflatten
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.testing.onnx_inputs import ports_of
from qtune.testing.onnx_model import OnnxModel, as_given, feed_of
from qtune.testing.running import Chunk, chunks, outputs_by_name


class BatchedModule:
    """Calls an HBIR module or a compiled program in the batch size it was exported with.

    ``batched(x)`` splits tensors and arrays along their first axis, fills the last part up with
    copies of its last row, and joins the outputs without these rows. Everything else (``march``,
    ``batched[0]``) is that of ``module``.
    """

    def __init__(self, module: HbirModule | Program) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs, in the containers of the model."""
        parts = chunks((self.module,), _as_tensors(args, kwargs))
        function = self.module[0]
        outputs = [function(*part.inputs.args, **part.inputs.kwargs) for part in parts]
        if len(parts) == 1 and parts[0].rows == parts[0].size:
            return outputs[0]
        return _joined(outputs, parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __getitem__(self, key: int | str) -> Any:
        return self.module[key]


class BatchedOnnx:
    """Calls an ONNX model, or a module or program that was imported from one, in any batch size.

    As ``OnnxModel`` is called: inputs in their order, by keyword, or in one dict by name; the
    result is the output, or a dict by name where there are several, of arrays if arrays came.
    """

    def __init__(self, module: HbirModule | Program | OnnxModel) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs."""
        feed = feed_of(ports_of(self.module), args, kwargs)
        parts = chunks((self.module,), Inputs(*feed.values()))
        outputs = [outputs_by_name(self.module, part.inputs) for part in parts]
        if len(parts) == 1 and parts[0].rows == parts[0].size:
            return as_given(outputs[0], feed.values())
        return as_given(_joined(outputs, parts), feed.values())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def __getitem__(self, key: int | str) -> Any:
        return self.module[key]  # type: ignore[index]


def callable_of(module: HbirModule | Program | OnnxModel) -> BatchedModule | BatchedOnnx:
    """What a function that evaluates models gets in the place of ``module``."""
    if isinstance(module, OnnxModel) or ports_of(module):
        return BatchedOnnx(module)
    return BatchedModule(module)


def _as_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    leaves, spec = flatten((args, kwargs))
    tensors = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in leaves]
    args, kwargs = unflatten(tensors, spec)
    return Inputs(*args, **kwargs)


def _joined(outputs: Sequence[Any], parts: Sequence[Chunk]) -> Any:
    """One output structure for all parts; ``ArgumentError`` where an output has no batch axis."""
    flat = [flatten(output) for output in outputs]
    spec = flat[0][1]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    named = zip(leaf_names(spec), columns, strict=True)
    return unflatten([_column(name, column, parts) for name, column in named], spec)


def _column(name: str, column: Sequence[Any], parts: Sequence[Chunk]) -> Any:
    if not isinstance(column[0], Tensor):
        return column[0]
    for value, part in zip(column, parts, strict=True):
        if value.dim() == 0 or value.shape[0] != part.size:
            raise ArgumentError(
                f"output {name or '0'} has shape {tuple(value.shape)}: it has no row for each of "
                f"the {part.size} inputs of a batch, so other batch sizes can't be told apart; "
                f"call the module with batches of {part.size}"
            )
    return torch.cat([part.trim(value) for value, part in zip(column, parts, strict=True)])
