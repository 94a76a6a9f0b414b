"""Capture by running: the model's own Python runs on the example, and its torch calls are recorded.

architecture.md decision 2. What comes out is a :class:`~qtune.capture.graph.GraphModel` over the
modules of the model itself (not copies); the model is left as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.blocks import recording_by
from qtune.capture.finish import build, notes_on_state, write_buffers, write_output
from qtune.capture.graph import GraphModel
from qtune.capture.growth import Growth
from qtune.capture.handlers import ModelHandlers
from qtune.capture.inputs import Inputs, as_example_list, spelled_call
from qtune.capture.interface import bind, call_as_given, refuse_opaque, signature_of
from qtune.capture.leaf import is_leaf
from qtune.capture.mode import RecordingMode
from qtune.capture.origins import owned_tensors
from qtune.capture.patches import installed
from qtune.capture.restore import Restorer, restored
from qtune.capture.source import place_of
from qtune.capture.state import write_state
from qtune.capture.structure import flatten, leaf_names
from qtune.capture.tape import Tape
from qtune.capture.union import join
from qtune.capture.unseen import DispatchMode
from qtune.errors import ArgumentError, CaptureError, QtuneError

Leaf = Callable[[nn.Module], bool]

_FLAG = re.compile(r"\bFlag\b")
"""How torch's messages name ``module.training`` where only a real bool will do."""


def capture(
    model: nn.Module,
    example_inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    leaf: Leaf | None = None,
    *,
    fixed: bool = False,
) -> GraphModel:
    """Record ``model`` while it runs once on ``example_inputs`` (see ``as_inputs``).

    A list of examples is run one by one and gives a graph with a branch for each path that they
    took. ``kwargs`` are added to each.

    It runs in its present training mode, or that of ``Inputs.in_mode``, and the present grad mode.
    ``leaf(module)`` decides which
    modules are one call in the graph, default :func:`~qtune.capture.leaf.is_leaf`. The result
    shares modules, parameters and buffers with ``model``; copy it to keep them apart.
    Raises ``CaptureError`` for what can't be recorded and ``PrepareError`` for bad examples.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"capture: a torch.nn.Module was expected, got {type(model).__name__}")
    examples = as_example_list(example_inputs)
    _refuse_unrecordable(model)
    chosen = leaf or is_leaf
    recordings = [_recorded(model, e.with_kwargs(kwargs or {}), chosen) for e in examples]
    recorded = join(model, recordings)
    if not fixed:
        record = partial(_recorded, model, leaf=chosen)
        recorded._growth = Growth(model, recordings, record)
    return recorded


def _recorded(model: nn.Module, inputs: Inputs, leaf: Leaf) -> GraphModel:
    """The recording of one example."""
    grad = torch.is_grad_enabled()
    # out of inference mode, which keeps no record of changes in place
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        recorded = _record(model, inputs, leaf, symbolic_flags=True)
        if recorded is None:
            recorded = _record(model, inputs, leaf, symbolic_flags=False)
    if recorded is None:
        raise CaptureError("capture: module.training is used in a way that can't be recorded")
    return recorded


def _record(
    model: nn.Module, inputs: Inputs, leaf: Leaf, *, symbolic_flags: bool
) -> GraphModel | None:
    """One recording; ``None`` if ``module.training`` went where only a real bool will do."""
    signature = signature_of(model)
    leaves, in_spec = flatten(bind(signature, inputs.args, inputs.kwargs))
    leaves = [_isolated(leaf) for leaf in leaves]
    tape = Tape(model)
    constants = _write_inputs(tape, leaf_names(in_spec), leaves)
    call = {"in_spec": in_spec, "signature": signature, "constants": constants}
    with restored(model) as restorer:
        if inputs.training is not None:
            model.train(inputs.training)
        handlers = ModelHandlers(model, tape, leaf, symbolic_flags=symbolic_flags)
        args, kwargs = call_as_given(signature, leaves, in_spec, inputs.args, inputs.kwargs)
        try:
            output = _run_model(handlers, restorer, args, kwargs)
        except _NeedsBool:
            return None
        if any(not flag.used for flag in tape.conditions.flags):
            return None
        with torch._C.DisableTorchFunction():
            write_state(tape, model)
            write_buffers(tape, restorer)
            out_spec = write_output(tape, output)
            notes = notes_on_state(tape, restorer, handlers.names)
    recorded = build(tape, model, call, out_spec, notes)
    tape.release()
    return recorded


class _NeedsBool(Exception):  # noqa: N818 - no error: the recording starts again
    """``module.training`` was passed where torch takes only a real bool."""


def _run_model(
    handlers: ModelHandlers, restorer: Restorer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the model with everything in place that records it."""
    calls, tape = handlers.calls, handlers.tape
    dispatch = DispatchMode(tape, calls, restorer)
    try:
        with recording_by(handlers), installed(handlers), dispatch, RecordingMode(tape, calls):
            output = handlers.model(*args, **kwargs)
    except QtuneError:
        raise
    except Exception as error:
        if handlers.tape.problem is not None:
            raise handlers.tape.problem from error
        if isinstance(error, TypeError) and _FLAG.search(str(error)):
            raise _NeedsBool from None
        name = type(handlers.model).__name__
        place, call = place_of(error), spelled_call(args, kwargs)
        raise CaptureError(
            f"{name} raised {type(error).__name__} while it ran on the example inputs"
            f"{f' ({place})' if place else ''}: {error}. Check that the float model runs on them: "
            f"model({call}){_dict_hint(args)}"
        ) from error
    finally:
        handlers.tape.close()
    if handlers.tape.problem is not None:
        raise handlers.tape.problem
    return output


def _dict_hint(args: tuple[Any, ...]) -> str:
    """What a dict in the place of the arguments may have been meant for."""
    if len(args) != 1 or not isinstance(args[0], dict):
        return ""
    return ". A dict is one argument; for keyword arguments write qtune.Inputs(**example)"


def _write_inputs(tape: Tape, names: list[str], leaves: list[Any]) -> dict[int, Any]:
    """Placeholders for the tensors; the other leaves are returned by place."""
    constants: dict[int, Any] = {}
    for place, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        if isinstance(leaf, Tensor):
            tape.placeholder(name, leaf)
        else:
            refuse_opaque(f"input {name!r}", leaf)
            constants[place] = leaf
    return constants


def _isolated(leaf: Any) -> Any:
    """A copy of an example tensor: the model may change it in place, or be given it twice."""
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _refuse_unrecordable(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            f"capture: the model is TorchScript ({type(model).__name__}), whose inside can't be "
            "recorded; pass the Python model it was made from"
        )
    for name, tensor in owned_tensors(model):
        if torch.nn.parameter.is_lazy(tensor):
            raise CaptureError(
                f"capture: `{name}` has no shape yet (a lazy module); run the model once first"
            )
