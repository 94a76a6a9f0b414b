"""The functions for converted models of older toolchains: check, compile, perf, show (facts 6.4).

Each takes a converted model or ``torch.jit.trace`` of one, and runs it on the example inputs once
to see the integer module in it.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qtune.bpu.compiler import compile as compile_module
from qtune.bpu.hbm import Hbm
from qtune.bpu.perf import hbm_perf
from qtune.bpu.visualize import visualize
from qtune.capture.inputs import Inputs, as_inputs
from qtune.capture.interface import signature_of
from qtune.check.march import INPUT_SOURCES, camera_lines, input_sources
from qtune.check.march import check_model as check_prepared
from qtune.errors import ArgumentError, ConvertError
from qtune.hbir.module import HbirModule
from qtune.march import March, as_march, refuse_other_march
from qtune.nn.quantized import PreservedOp, QuantizedOp
from qtune.nn.quantized.camera import DDR
from qtune.nn.quantized.op import NOT_FOR_FILES
from qtune.nn.quantized.recording import NHWC, Recording

__all__ = [
    "INPUT_SOURCES",
    "check_model",
    "compile_model",
    "export_hbir",
    "perf_model",
    "visualize_model",
]

_log = logging.getLogger(__name__)

_LEVELS = {"O0": 0, "O1": 1, "O2": 2, "O3": 2}
_GOALS = {"ddr": 0, "fast": 100}
"""Documented values of ``opt`` beside the levels: what the estimate balances for."""
_LAYOUTS = ("NCHW", NHWC)


def check_model(
    module: Any,
    example_inputs: Any = None,
    march: March | str | None = None,
    input_source: str | Sequence[str] = "ddr",
    advice: bool | float | str | Path | None = None,
    check_quanti_param: bool = True,
) -> int:
    """Return 0 if every operator runs on the BPU, else 1; what stands against it is shown.

    ``module``: a converted or traced model, or what ``qtune.check.march.check_model`` takes (a
    prepared model, an HBIR module); arguments as there. A converted model that holds modules in
    their QAT form, or torch operators between the converted ones, does not pass.
    """
    if is_converted(module):
        try:
            module = _module(module, example_inputs, "check_model", march)
        except ConvertError as error:
            from qtune.report.screen import show

            show(f"check_model: {error}")
            return 1
    return check_prepared(module, example_inputs, march, input_source, advice, check_quanti_param)


def compile_model(
    module: nn.Module,
    example_inputs: Any,
    hbm: str | Path,
    march: March | str | None = None,
    name: str | None = None,
    input_source: str | Sequence[str] = "ddr",
    input_layout: str | Sequence[str] | None = None,
    output_layout: str | Sequence[str] = "NCHW",
    opt: str | int = "O2",
    balance_factor: int = 2,
    progressbar: bool = True,
    jobs: int = 16,
    debug: bool = True,
    extra_args: str | Sequence[str] | None = None,
) -> int:
    """Compile a converted or traced model to the program file ``hbm`` and return 0.

    * ``march``: that of the model; another one is refused. ``name``: of the function in the file.
    * ``input_source``: ``ddr``, ``pyramid`` or ``resizer``, one for all inputs or one for each. The
      inputs of the last two are the planes of a camera image (``insert_image_convert`` and
      ``insert_roi_resize`` of an argument), which its ``QuantStub(scale=1 / 128)`` takes as codes.
    * ``input_layout``, ``output_layout``: ``NCHW`` or ``NHWC`` of 4-dimensional arguments, one for
      all or one for each; ``None``: as traced. ``BPU_RAW`` is refused.
    * ``opt``: ``O0`` to ``O3`` or 0 to 3, the memory plan (3 is 2); ``ddr`` and ``fast`` are O2
      estimated for least traffic and for fewest cycles, ``balance`` is O2 with ``balance_factor``
      (0 to 100) between them.
    * ``progressbar``, ``jobs``, ``debug``: as of ``qtune.bpu.compiler.compile``.
    * ``extra_args``: arguments of the vendor's compiler; any are refused.

    Raises ``QtuneError`` where the model can't be compiled.
    """
    balance, level = _goal(opt, balance_factor)
    _refuse_extra(extra_args, "compile_model")
    recording = recording_of(module, example_inputs, "compile_model")
    sources = _sources(recording, input_source, input_layout)
    integer = recording.module(
        name or "forward",
        _layouts("input_layout", input_layout or "NCHW", len(recording.inputs)),
        _layouts("output_layout", output_layout, len(recording.outputs)),
        sources,
    )
    _check_march(integer, march, "compile_model")
    target = as_march(str(integer.march))
    compile_module(
        integer,
        hbm,
        target,
        opt=level,
        jobs=jobs,
        debug=debug,
        progress_bar=progressbar,
        balance=balance,
    )
    return 0


def export_hbir(
    module: nn.Module, example_inputs: Any, hbir: str | Path, march: March | str | None = None
) -> tuple[list[str], list[str]]:
    """Write the integer module to ``hbir`` (suffix ``.bc``); return names of inputs and outputs."""
    integer = _module(module, example_inputs, "export_hbir", march)
    integer.save(hbir)
    function = integer[0]
    return [item.name for item in function.inputs], [item.name for item in function.outputs]


def perf_model(
    module: nn.Module,
    example_inputs: Any,
    march: March | str | None = None,
    out_dir: str | Path = ".",
    name: str | None = None,
    hbm: str | Path | None = None,
    input_source: str | Sequence[str] = "ddr",
    input_layout: str | Sequence[str] | None = None,
    output_layout: str | Sequence[str] = "NCHW",
    opt: str | int = "O3",
    balance_factor: int = 2,
    progressbar: bool = True,
    jobs: int = 16,
    layer_details: bool = False,
    extra_args: str | Sequence[str] | None = None,
) -> dict[str, Any]:
    """Compile the model and return the static estimate: times in microseconds, bytes, shares.

    Writes ``<name>.html`` and ``<name>.json`` into ``out_dir``. ``hbm``: where the program is
    kept; ``None`` keeps none. ``layer_details``: whether the result lists single operators. Other
    arguments as of :func:`compile_model`.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / f"{name or 'forward'}.hbm" if hbm is None else Path(hbm)
        compile_model(
            module,
            example_inputs,
            kept,
            march,
            name,
            input_source,
            input_layout,
            output_layout,
            opt,
            balance_factor,
            progressbar,
            jobs,
            True,
            extra_args,
        )
        data = hbm_perf(Hbm(kept), out_dir).data
    if not layer_details:
        for function in data["functions"]:
            function["estimate"].pop("operators", None)
    return data


def visualize_model(
    module: nn.Module,
    example_inputs: Any,
    march: March | str | None = None,
    save_path: str | Path | None = None,
    show: bool = True,
) -> Path:
    """Write the integer module as an ONNX file for viewers and return its path.

    ``save_path``: with the suffix ``.onnx``; default ``forward.onnx``. ``show``: serve it with the
    package netron, which must be installed.
    """
    integer = _module(module, example_inputs, "visualize_model", march)
    return visualize(integer, save_path, use_netron=show)


def is_converted(module: Any) -> bool:
    """Whether ``module`` is a traced model or holds operators that convert made."""
    if isinstance(module, torch.jit.ScriptModule):
        return True
    return isinstance(module, nn.Module) and any(
        isinstance(item, (QuantizedOp, PreservedOp)) for item in module.modules()
    )


def _module(module: Any, example_inputs: Any, where: str, march: March | str | None) -> HbirModule:
    """The integer module of a converted or traced model."""
    integer = recording_of(module, example_inputs, where).module()
    _check_march(integer, march, where)
    return integer


def recording_of(module: Any, example_inputs: Any, where: str) -> Recording:
    """A run of a converted or traced model on ``example_inputs``; other models are refused."""
    if not is_converted(module):
        raise ArgumentError(
            f"{where}: expected a model that convert made, or torch.jit.trace of one, got "
            f"{type(module).__name__}"
        )
    if any(getattr(item, "fast_mode", False) for item in module.modules()):
        raise ArgumentError(f"{where}: {NOT_FOR_FILES}")
    if example_inputs is None:
        raise ArgumentError(f"{where}: example_inputs are needed: the inputs it was traced with")
    call = _inputs(example_inputs, where)
    _check_call(module, call, where)
    return Recording(module, call)


def _check_call(module: Any, call: Inputs, where: str) -> None:
    """``ArgumentError`` for arguments that forward does not take (a list of examples)."""
    if isinstance(module, torch.jit.ScriptModule):
        forward: Any = module.forward
        names = [item.name for item in forward.schema.arguments[1:]]  # behind self
        problem = "too many positional arguments" if len(call.args) > len(names) else ""
        taken = f"({', '.join(names)})"
    else:
        signature = getattr(module, "signature", None) or signature_of(module)
        problem, taken = "", str(signature)
        try:
            signature.bind(*call.args, **call.kwargs)
        except TypeError as error:
            problem = str(error)
    if problem:
        raise ArgumentError(
            f"{where}: example_inputs are {call!r}, but forward takes {taken} ({problem}); they "
            "are the arguments of one call, in a list or tuple; of several examples pass one"
        )


def _check_march(integer: HbirModule, march: March | str | None, where: str) -> None:
    if march is not None:
        refuse_other_march(str(integer.march), f"{where}: the model", march)


def _sources(recording: Recording, given: str | Sequence[str], layout: Any) -> list[str]:
    """Where each input comes from; refused for inputs that can't come from a camera."""
    sources = input_sources(given, len(recording.inputs), "compile_model")
    if all(source == DDR for source in sources):
        return sources
    layouts = _layouts("input_layout", layout or NHWC, len(sources))
    if any(source != DDR and kind != NHWC for source, kind in zip(sources, layouts, strict=True)):
        raise ArgumentError(
            f"compile_model: input_layout {layout!r} with input_source {given!r}: the planes of a "
            "camera image are NHWC; leave input_layout out, or give NHWC for them"
        )
    lines = camera_lines(recording.module(), sources)
    if lines:
        raise ConvertError(f"compile_model: input_source {given!r}: {'; '.join(lines)}")
    return sources


def _inputs(example_inputs: Any, where: str) -> Inputs:
    """As the documents pass them: a tensor, or a list or tuple of the positional arguments."""
    plain = tuple(example_inputs) if isinstance(example_inputs, list) else example_inputs
    return as_inputs(plain, where, ArgumentError)


def _goal(opt: Any, balance_factor: Any) -> tuple[int, int]:
    """``balance`` and ``opt`` of the compiler."""
    level = f"O{opt}" if isinstance(opt, int) and not isinstance(opt, bool) else opt
    if level in _LEVELS:
        if level == "O3":
            _log.debug("opt O3: this emulator's best memory plan is that of O2")
        return 100, _LEVELS[level]
    if level in _GOALS:
        return _GOALS[level], 2
    if level == "balance":
        return balance_factor, 2
    known = ", ".join([*_LEVELS, *_GOALS, "balance"])
    raise ArgumentError(f"compile_model: opt must be one of {known} or 0 to 3, got {opt!r}")


def _refuse_extra(extra_args: Any, where: str) -> None:
    given = shlex.split(extra_args) if isinstance(extra_args, str) else list(extra_args or ())
    if given:
        raise ArgumentError(
            f"{where}: extra_args {given} are for the vendor's compiler, which is not run here; "
            "leave them out"
        )


def _layouts(what: str, given: str | Sequence[str], count: int) -> list[str]:
    layouts = [given] * count if isinstance(given, str) else list(given)
    if any(layout == "BPU_RAW" for layout in layouts):
        raise NotImplementedError(
            f"compile_model: {what} BPU_RAW is not done: the BPU's own layout is not published"
        )
    if len(layouts) != count or any(layout not in _LAYOUTS for layout in layouts):
        raise ArgumentError(
            f"compile_model: {what} must be {' or '.join(_LAYOUTS)}, or one for each of the "
            f"{count} arguments, got {given!r}"
        )
    return layouts
