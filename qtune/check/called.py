"""``get_module_called_count``: how often a model calls each of its layers (toolchain_facts 8.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from qtune.capture.inputs import as_inputs
from qtune.capture.leaf import is_leaf
from qtune.capture.restore import restored
from qtune.check.calls import call_counts
from qtune.errors import ArgumentError
from qtune.nn.eager import as_graph, eager_facts
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat.functional import is_functional
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized import PreservedOp, QuantizedOp
from qtune.nn.quantized.passing import FusedAway
from qtune.report.screen import show
from qtune.report.table import text_table

FUNCTIONAL_END = "activation_post_process"
COLUMNS = ("name", "called times")

IsLeaf = Callable[[nn.Module], bool]


def get_module_called_count(
    model: nn.Module,
    example_inputs: object,
    check_leaf_module: IsLeaf | None = None,
    print_tabulate: bool = True,
) -> dict[str, int]:
    """Calls of every layer of a float or prepared model in one forward on ``example_inputs``.

    1 is normal, 0 is unused, more is a shared layer, whose calls have one scale.
    ``check_leaf_module(module)``: what counts as a layer; default: torch's own layers, those of
    the registry and modules without children; of a prepared model its operators. Shows a table.
    The model runs once, without gradients, and is left as it was.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"get_module_called_count: expected an nn.Module but got {model!r}")
    inputs = as_inputs(example_inputs, "get_module_called_count", ArgumentError)
    converted = any(isinstance(module, QuantizedOp) for module in model.modules())
    if check_leaf_module is None and eager_facts(model) is not None and not converted:
        model = as_graph(model, inputs)
    if check_leaf_module is None and isinstance(model, PreparedModel):
        counts = call_counts(model, inputs)
    else:
        counts = _counted(model, inputs, check_leaf_module)
    if print_tabulate:
        show(text_table(list(counts.items()), COLUMNS, style="plain", numbers_right=True))
    return counts


def _counted(model: nn.Module, inputs: object, check: IsLeaf | None) -> dict[str, int]:
    found = dict(layers(model, check))
    counts = dict.fromkeys(found, 0)

    def count(name: str) -> None:
        counts[name] += 1

    call = as_inputs(inputs)
    handles = [
        layer.register_forward_hook(lambda module, args, result, n=name: count(n))
        for name, layer in found.items()
    ]
    try:
        with restored(model), torch.no_grad():
            model(*call.args, **call.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return counts


def layers(model: nn.Module, check: IsLeaf | None = None) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of every layer of ``model``, whatever its stage.

    ``check(module)``: what counts as a layer; default as of :func:`get_module_called_count`.
    """
    yield from _layers(model, check or _is_layer)


def _layers(module: nn.Module, check: IsLeaf, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if isinstance(child, FusedAway):  # nothing calls it
            continue
        if check is _is_layer and is_functional(child):  # its methods call a child at their end
            yield where, child._modules.get(FUNCTIONAL_END, child) or child
        elif check(child):
            yield where, child
        else:
            yield from _layers(child, check, where)


def _is_layer(module: nn.Module) -> bool:
    is_operator = isinstance(module, (QATOp, QuantizedOp, PreservedOp))
    return is_operator or is_leaf(module) or not module._modules
