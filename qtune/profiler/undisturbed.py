"""Run the user's models for a moment and leave them, and everything around them, as they were."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from qtune.capture.restore import randomness_kept, to_the_end
from qtune.errors import AnalysisError, ArgumentError
from qtune.hbir.module import HbirModule
from qtune.profiler.kept_state import buffers_kept
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.state import FakeQuantState

Model = nn.Module | HbirModule

_log = logging.getLogger("qtune.analysis")


@contextmanager
def undisturbed(*models: Model, device: torch.device | None = None) -> Iterator[None]:
    """Eval mode, no gradients, on ``device``; flags, devices and random state restored after.

    A torch model that comes in training mode is named in the log: its results in training mode
    would differ. Restores whatever happens, ``KeyboardInterrupt`` included.
    """
    torch_models = [model for model in models if isinstance(model, nn.Module)]
    with ExitStack() as stack:
        stack.enter_context(randomness_kept())
        for model in torch_models:
            stack.enter_context(_evaluating(model))
            if device is not None:
                stack.enter_context(on_device(model, device))
        stack.enter_context(torch.no_grad())
        yield


@contextmanager
def same_randomness(*models: Model) -> Iterator[None]:
    """Give the random state back at the end, so that the next run draws the same numbers.

    ``models``: those whose next run also starts from the same buffers (a state that forward keeps).
    """
    with ExitStack() as stack:
        stack.enter_context(randomness_kept())
        for model in models:
            if isinstance(model, nn.Module):
                stack.enter_context(buffers_kept(model))
        yield


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    flags = {module: module.training for module in model.modules()}
    if model.training:
        _log.warning(
            "%s is in training mode; it runs in eval mode here and is set back afterwards. Call "
            "model.eval() before the analysis.",
            type(model).__name__,
        )

    def restore() -> None:
        for module, flag in flags.items():
            module.training = flag

    try:
        for module, flag in flags.items():
            if flag:
                module.training = False
        yield
    finally:
        to_the_end(restore)


def checked_device(device: torch.device | str, where: str, hint: str = "") -> torch.device:
    """``device``, if this machine has it; else ``ArgumentError``. ``hint``: what the CPU is for."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"{where}: expected a device such as 'cpu', got {device!r}") from error
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ArgumentError(
            f"{where}: this machine has no device {found}; pass torch.device('cpu'){hint}"
        )
    return found


@contextmanager
def on_device(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Within the block ``model`` lies on ``device``; one that is spread over devices stays so."""
    homes = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if homes <= {device} or len(homes) > 1:  # a model spread over devices knows where to run
        yield
        return
    (home,) = homes
    try:
        model.to(device)
        yield
    finally:
        model.to(home)


def refuse_observing(model: Model, where: str) -> None:
    """Raise ``AnalysisError`` for a model whose fake-quantizes would learn from an analysis."""
    if not isinstance(model, nn.Module):
        return
    quantizers = [m for m in model.modules() if isinstance(m, FakeQuantize)]
    observing = [q for q in quantizers if q.state is FakeQuantState.CALIBRATION]
    if observing:
        raise AnalysisError(
            f"{where}: {len(observing)} fake-quantizes of the model are in the state CALIBRATION "
            f"(first: {observing[0].name}), so it does not quantize yet; call "
            "set_fake_quantize(model.eval(), FakeQuantState.VALIDATION) first"
        )
