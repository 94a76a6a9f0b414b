"""Runs models of any stage on an assertion's inputs, in the batch size of the export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qtune.bpu.hbm import Program
from qtune.capture.inputs import Inputs, as_example_list, naming
from qtune.capture.structure import flatten, flatten_named, unflatten
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.prepare.rundir import run_files_in
from qtune.profiler.kept_state import apart
from qtune.profiler.observe import Model, Observation, float_twin, is_prepared, observe, run_model
from qtune.profiler.undisturbed import same_randomness
from qtune.report.progress import progress
from qtune.testing.onnx_inputs import data_set, examples, ports_of
from qtune.testing.onnx_model import OnnxModel
from qtune.testing.onnx_observe import observe_onnx
from qtune.testing.origin import origin_of

AnyModel = Model | OnnxModel
"""What is run: a model of any stage."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Inputs that every model can run; the first ``rows`` of ``size`` count, the others fill up."""

    inputs: Inputs
    rows: int | None = None
    size: int | None = None

    def trim(self, value: Tensor) -> Tensor:
        """``value`` without the rows that only fill up the batch."""
        if self.rows == self.size or value.dim() == 0 or value.shape[0] != self.size:
            return value
        return value[: self.rows]


def chunks(models: Sequence[AnyModel | Program], inputs: Any) -> list[Chunk]:
    """The inputs in batches that fit.

    HBIR modules, programs and ONNX models have a batch size of their own, but those whose batch is
    open. Where all tensors of an item share another one, it is split, and the last part filled up
    with copies of its last row. Models from ONNX take the inputs in all forms of
    :func:`qtune.testing.onnx_inputs.examples`.
    """
    sizes = {size for m in models if not isinstance(m, nn.Module) and (size := _batch_of(m))}
    if len(sizes) > 1:
        raise ArgumentError(f"the modules were exported for different batch sizes: {sorted(sizes)}")
    items = as_example_list(examples(models, inputs), "inputs", ArgumentError)
    if not sizes:
        return [Chunk(item) for item in items]
    (size,) = sizes
    return [chunk for item in items for chunk in _split(item, size)]


def debug_data(model: OnnxModel, inputs: Any) -> CalibrationDataSet:
    """The same inputs as the debugger reads them, item by item, in batches that fit.

    A part of a batch is filled up with copies of its last row, which count too.
    """
    return data_set(model, [part.inputs for part in chunks((model,), inputs)])


def _batch_of(module: HbirModule | Program | OnnxModel) -> int | None:
    if isinstance(module, OnnxModel):
        shapes = [port.shape for port in module.inputs]
    else:
        shapes = [] if module[0].open_batch else [item.shape for item in module[0].inputs]
    first = {shape[0] for shape in shapes if shape}
    return first.pop() if len(first) == 1 else None


def _split(item: Inputs, size: int) -> Iterator[Chunk]:
    leaves, spec = flatten((item.args, dict(item.kwargs)))
    lengths = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0}
    if len(lengths) != 1 or lengths == {size}:
        yield Chunk(item)
        return
    (length,) = lengths
    for start in range(0, length, size):
        rows = min(size, length - start)
        parts = [_part(leaf, start, rows, size) for leaf in leaves]
        args, kwargs = unflatten(parts, spec)
        yield Chunk(Inputs(*args, **kwargs), rows, size)


def _part(leaf: Any, start: int, rows: int, size: int) -> Any:
    if not isinstance(leaf, Tensor) or leaf.dim() == 0:
        return leaf
    part = leaf[start : start + rows]
    if rows == size:
        return part
    return torch.cat([part, part[-1:].expand(size - rows, *part.shape[1:])])


def outputs_of(model: AnyModel, parts: Sequence[Chunk]) -> dict[str, Tensor]:
    """Output tensors by name, the chunks joined along the first axis (scalars: stacked)."""
    found: dict[str, list[Tensor]] = {}
    for index, part in enumerate(progress(parts, "run", unit="batch")):
        with _evaluating(model), naming(f"batch {index} of inputs", part.inputs):
            collect(outputs_by_name(model, part.inputs), part, found)
    return joined(found)


def outputs_by_name(model: AnyModel | Program, inputs: Inputs) -> Any:
    """The outputs; those of a model from ONNX by their names."""
    if isinstance(model, OnnxModel):
        return model.run_inputs(inputs)
    if isinstance(model, nn.Module):
        return apart(model, run_model(model, inputs))
    outputs = model[0](*inputs.args, **inputs.kwargs)
    if ports_of(model):
        return dict(zip((item.name for item in model[0].outputs), outputs, strict=True))
    return outputs


def collect(outputs: Any, part: Chunk, into: dict[str, list[Tensor]]) -> None:
    """Add the output tensors of one chunk, by name."""
    for name, leaf in flatten_named(outputs):
        if isinstance(leaf, Tensor):
            into.setdefault(name, []).append(part.trim(leaf))


def joined(found: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """The chunks of each output as one tensor."""
    return {
        name: torch.cat(leaves) if leaves[0].dim() else torch.stack(leaves)
        for name, leaves in found.items()
    }


def observations(model: AnyModel, parts: Sequence[Chunk]) -> Iterator[Observation]:
    """One observation per chunk."""
    if isinstance(model, OnnxModel):
        yield from observe_onnx(model, [part.inputs for part in parts])
        return
    if isinstance(model, nn.Module) and not is_prepared(model):
        with _evaluating(model):
            model = float_twin(model, parts[0].inputs)
    for index, part in enumerate(progress(parts, "run", unit="batch")):
        with _evaluating(model), naming(f"batch {index} of inputs", part.inputs):
            found = observe(model, part.inputs)
        yield found


@contextmanager
def comparing(*models: AnyModel) -> Iterator[None]:
    """What holds while an assertion runs models.

    The march is the one that a model was made for, if any says so; whatever is prepared on the way
    (the twin of a float model) leaves no files.
    """
    named = [name for model in models if (name := _march_of(model))]
    with march(named[-1]) if named else nullcontext(), run_files_in(None):
        yield


def _march_of(model: AnyModel) -> str:
    """The march in the model itself, or that of the stages it comes from."""
    own = getattr(model, "march", "")  # a float model may have a layer of that name
    named = own if isinstance(own, str) else ""
    return str(named or origin_of(model).provenance.get("march", "") or "")


@contextmanager
def _evaluating(model: AnyModel) -> Iterator[None]:
    """Eval mode for a torch model; flags, buffers and random state restored after.

    So every batch starts from the same numbers, in whichever model it runs.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    flags = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        with same_randomness(*([] if isinstance(model, OnnxModel) else [model])):
            yield
    finally:
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag
