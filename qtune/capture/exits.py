"""Results that are no tensors: what the model learns about a tensor, and may act upon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from qtune.capture.nodes import name_of
from qtune.capture.source import caller
from qtune.errors import CaptureError

if TYPE_CHECKING:
    from qtune.capture.calls import Call
    from qtune.capture.tape import Tape

_COUNTS = frozenset({"numel", "nelement"})
_NO_INFLUENCE = frozenset(
    {
        # what a tensor is to autograd and to the process; no forward computes numbers from it
        *("requires_grad", "is_leaf", "grad", "grad_fn", "output_nr", "retains_grad"),
        *("register_hook", "retain_grad", "register_post_accumulate_grad_hook"),
        *("_backward_hooks", "_post_accumulate_grad_hooks", "_version", "_base", "_is_view"),
        *("data_ptr", "untyped_storage", "storage", "_typed_storage", "is_shared", "is_pinned"),
        *("is_inference", "names", "has_names", "__repr__", "__hash__", "__dir__"),
    }
)
_FIXED = frozenset({"dim", "ndim", "ndimension", "stride", "is_contiguous", "storage_offset"})
"""Together with the sizes, what only the shape decides: fixed for parameters and constants."""

Written = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
"""A call as ``(op, target, args, kwargs)`` of fx."""


def leave(tape: Tape, call: Call, written: Written, sources: list[Any], value: Any) -> Any:
    """The result of a call that gave no tensor: a symbolic size, or a guarded value.

    ``sources``: the tensors and whatever else of the arguments holds recorded values.
    """
    name = call.name
    nodes = [tape.node_of(source) for source in sources if isinstance(source, Tensor)]
    varies = any(node in tape.varying for node in nodes) or len(nodes) < len(sources)
    if value is None:
        if sources:  # an effect, such as torch._assert_async
            tape.emit(*written)
        return None
    only_shape = name in _COUNTS or name in _FIXED
    matters = varies or (any(node in tape.changing for node in nodes) and not only_shape)
    if not matters or name in _NO_INFLUENCE:
        return value
    _refuse_arrays(call, value)
    if not _is_plain(value):
        return value
    text = _text(call, nodes)
    if name in _COUNTS:
        return tape.conditions.number(written, value, text)
    tape.conditions.guard_result(written, value, text)
    return value


def _text(call: Call, nodes: list[fx.Node]) -> str:
    values = [name_of(node) for node in nodes]
    if call.target is getattr and values:
        return f"{values[0]}.{call.name}"
    if call.name.startswith("__") and values:
        return f"{call.name.strip('_')}({values[0]})"
    if call.op == "call_method" and values:
        return f"{values[0]}.{call.name}({', '.join(values[1:])})"
    return f"{call.name}({', '.join(values)})"


def _refuse_arrays(call: Call, value: Any) -> None:
    if type(value).__module__ == "numpy" or type(value).__name__ == "PyCapsule":
        raise CaptureError(
            f"{caller()}: `{call.name}` hands a tensor that depends on the inputs or parameters to "
            "code outside of torch, which can't be recorded; compute with torch instead"
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    kinds = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
    return isinstance(value, kinds)
