"""``show_cuda_memory_consumption``: what each layer adds to the memory of a training step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qtune.capture.inputs import Inputs, as_inputs
from qtune.capture.restore import restored
from qtune.capture.structure import flatten, unflatten
from qtune.check.called import IsLeaf, layers
from qtune.errors import ArgumentError, kind_of
from qtune.profiler.live_bytes import CudaCounter, MemoryCounter, StorageCounter
from qtune.profiler.undisturbed import checked_device, on_device
from qtune.report.files import write_text
from qtune.report.page import Section, Table, Tile, render
from qtune.report.svg import curve

if TYPE_CHECKING:
    import pandas as pd

NAME = "mem_info"
FORWARD, BACKWARD = "forward", "backward"
END = "(end)"
"""What the page calls the step behind the backward."""
COLUMNS = ("Index", "Module Name", "Module Type", "Phase", "Allocated (MiB)", "Peak (MiB)")
_KIB, _MIB = float(1 << 10), float(1 << 20)
_WHERE = "show_cuda_memory_consumption"

Backward = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """Memory at one moment, in bytes.

    ``phase`` ``forward``: behind the forward of the layer; ``backward``: when the gradient of its
    result arrives. ``peak``: most bytes since the step before.
    """

    name: str
    type: str
    phase: str
    allocated: int
    peak: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The steps of one forward and backward, and the bytes before and behind it.

    ``source``: where the numbers come from.
    """

    device: str
    source: str
    before: int
    after: int
    steps: tuple[MemoryStep, ...]

    @property
    def peak(self) -> int:
        """Most bytes at any moment."""
        return max([self.before, self.after, *(step.peak for step in self.steps)])

    def to_dict(self) -> dict[str, Any]:
        """Plain containers."""
        return asdict(self)

    def to_pandas(self) -> pd.DataFrame:
        """One row for each step."""
        import pandas as pd

        return pd.DataFrame([asdict(step) for step in self.steps])


def show_cuda_memory_consumption(
    model: nn.Module,
    example_inputs: Any,
    device: torch.device | str,
    check_leaf_module: IsLeaf | None = None,
    out_dir: str | os.PathLike[str] | None = None,
    file_name: str | None = None,
    custom_backward: Backward | None = None,
) -> MemoryReport:
    """Measure the memory of one forward and backward, layer by layer, and write ``mem_info.html``.

    On a CUDA device the numbers are those of torch's allocator. On another one (``cpu``) they are
    the bytes of the tensors that are alive, which is what the same model takes on a GPU beside
    workspaces and fragments; the page says which. The model runs in the mode that it is in.

    ``check_leaf_module(module)``: what counts as a layer, as of ``get_module_called_count``.
    ``custom_backward(outputs)`` runs the backward, without ``retain_graph``; without it the model
    must return one tensor, whose elements are added up. ``file_name``: default ``mem_info``.
    Parameters, buffers, gradients, random state and the model's device are as before afterwards.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"{_WHERE}: expected an nn.Module but got {type(model).__name__}")
    call = as_inputs(example_inputs, _WHERE, ArgumentError)
    target = checked_device(device, _WHERE, " to count the bytes of the tensors instead")
    with ExitStack() as stack:
        stack.enter_context(restored(model))
        stack.enter_context(on_device(model, target))
        report = _measured(model, call, target, check_leaf_module, custom_backward)
    write_text(Path(out_dir or ".") / f"{file_name or NAME}.html", _page(report))
    return report


def _measured(
    model: nn.Module,
    call: Inputs,
    device: torch.device,
    check: IsLeaf | None,
    backward: Backward | None,
) -> MemoryReport:
    for parameter in model.parameters():
        parameter.grad = None  # `restored` puts the user's back
    inputs = _fresh(call, device)
    leaves = [leaf for leaf in flatten((inputs.args, dict(inputs.kwargs)))[0] if _is_tensor(leaf)]
    counter = _counter(device, [*model.parameters(), *model.buffers(), *leaves])
    steps: list[MemoryStep] = []
    with counter, torch.enable_grad():
        counter.peak()
        before = counter.now()
        with _noting(model, check, counter, steps):
            outputs = model(*inputs.args, **inputs.kwargs)
            (backward or _sum_backward)(outputs)
        del outputs, leaves, inputs
        steps.append(MemoryStep("", "", BACKWARD, counter.now(), counter.peak()))
        for parameter in model.parameters():
            parameter.grad = None
        after = counter.now()
    return MemoryReport(str(device), counter.source, before, after, tuple(steps))


def _fresh(call: Inputs, device: torch.device) -> Inputs:
    """The call with tensors of its own, on the device."""
    leaves, spec = flatten((call.args, dict(call.kwargs)))
    copies = [leaf.detach().clone().to(device) if _is_tensor(leaf) else leaf for leaf in leaves]
    args, kwargs = unflatten(copies, spec)
    return Inputs(*args, **kwargs)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _counter(device: torch.device, known: list[Tensor]) -> MemoryCounter:
    return CudaCounter(device) if device.type == "cuda" else StorageCounter(known)


@contextmanager
def _noting(
    model: nn.Module, check: IsLeaf | None, counter: MemoryCounter, steps: list[MemoryStep]
) -> Iterator[None]:
    """Within the block every layer notes the memory behind its forward and before its backward."""

    def note(name: str, layer: nn.Module, phase: str) -> None:
        steps.append(MemoryStep(name, str(type(layer)), phase, counter.now(), counter.peak()))

    def behind(layer: nn.Module, name: str, result: Any) -> None:
        note(name, layer, FORWARD)
        for leaf in flatten(result)[0]:
            if _is_tensor(leaf) and leaf.grad_fn is not None:
                leaf.grad_fn.register_prehook(lambda grads: note(name, layer, BACKWARD))
                break  # the gradients of several results arrive one by one; the first counts

    handles = [
        layer.register_forward_hook(lambda m, a, result, n=name: behind(m, n, result))
        for name, layer in layers(model, check)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _sum_backward(outputs: Any) -> None:
    if not isinstance(outputs, Tensor):
        raise ArgumentError(
            f"{_WHERE}: the model returns {kind_of(outputs)}; pass custom_backward, a "
            "function of the outputs that runs the backward"
        )
    if outputs.grad_fn is None:
        raise ArgumentError(
            f"{_WHERE}: the model's result has no gradient; give it parameters that require one"
        )
    outputs.sum().backward()  # type: ignore[no-untyped-call]


def _page(report: MemoryReport) -> str:
    rows: list[dict[str, Any]] = [
        {
            "Index": index,
            "Module Name": step.name or END,
            "Module Type": step.type,
            "Phase": step.phase,
            "Allocated (MiB)": step.allocated / _MIB,
            "Peak (MiB)": step.peak / _MIB,
        }
        for index, step in enumerate(report.steps)
    ]
    labels = [f"{step.name or END} {step.phase}" for step in report.steps]
    picture = curve(
        {column: [row[column] for row in rows] for column in COLUMNS[4:]},
        labels,
        title="Memory during one forward and backward",
        y_label="MiB",
    )
    section = Section(
        "Steps", pictures=[picture], tables=[Table(COLUMNS, rows, numeric=("Index", *COLUMNS[4:]))]
    )
    tiles = [
        Tile(_size(value), label)
        for value, label in ((report.before, "before"), (report.peak, "peak"))
    ]
    subtitle = f"on {report.device}: {report.source}"
    return render("Memory consumption", [section], subtitle=subtitle, sortable=True, tiles=tiles)


def _size(count: int) -> str:
    """Bytes in KiB or MiB."""
    return f"{count / _KIB:.1f} KiB" if count < _MIB else f"{count / _MIB:.1f} MiB"
