"""``check_model``: whether everything in a model runs on the BPU (toolchain_facts 6.4)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import nn

from qtune.bpu.advice import CPU, is_border
from qtune.bpu.convert import advice_items, check_conversion
from qtune.bpu.walk import OUTSIDE
from qtune.errors import ArgumentError, QtuneError
from qtune.hbir.builder import META_RESULT, META_SCALE
from qtune.hbir.export import export
from qtune.hbir.module import HbirModule
from qtune.march import March, as_march, get_march, refuse_other_march
from qtune.nn.eager import as_graph
from qtune.nn.prepared import OUTSIDE_STUBS, PreparedModel
from qtune.nn.qat import iter_stubs
from qtune.report.files import write_text
from qtune.report.screen import show

INPUT_SOURCES = ("ddr", "resizer", "pyramid")
CAMERA_SCALE = 1 / 128
"""The scale of images that the camera's units deliver (toolchain_facts 1.2)."""


def check_model(
    module: nn.Module | HbirModule,
    example_inputs: Any = None,
    march: March | str | None = None,
    input_source: str | Sequence[str] = "ddr",
    advice: bool | float | str | Path | None = None,
    check_quanti_param: bool = True,
) -> int:
    """Return 0 if every operator runs on the BPU of ``march`` (default: the one set), else 1.

    ``module``: a calibrated model that ``prepare`` made (then ``example_inputs`` as for export), or
    an HBIR module, qat or quantized. What stands against it is shown, one line for each operator:
    its name, the reason, what to do; operators on the CPU count, those before the first quantize
    and behind the last dequantize do not. ``input_source``: where the inputs come from, one text
    or one for each; ``resizer`` and ``pyramid`` give camera images, quantized at the scale 1/128.
    ``advice``: a true value shows where each operator runs, a path also writes that as JSON.
    ``check_quanti_param``: whether a fake-quantize without a scale counts; without it such
    a model is checked at the scale 1, for its shapes and dtypes.

    The march's time per layer is no part of it: see the estimate of a compiled model.
    """
    target = get_march() if march is None else as_march(march)
    try:
        qat = _module(module, example_inputs, check_quanti_param)
        lines, items = _verdict(qat, target)
    except ArgumentError:
        raise
    except QtuneError as error:
        show(f"check_model: {error}")
        return 1
    sources = input_sources(input_source, len(qat[0].inputs), "check_model")
    lines += camera_lines(qat, sources)
    if advice:
        text = json.dumps(items, indent=1)
        show(f"check_model: where each operator runs\n{text}")
        if isinstance(advice, (str, Path)):
            write_text(advice, text)
    for line in lines:
        show(f"check_model: {line}")
    return 1 if lines else 0


def _module(module: Any, example_inputs: Any, need_scales: bool) -> HbirModule:
    if isinstance(module, HbirModule):
        return module
    if example_inputs is not None:
        module = as_graph(module, example_inputs)
    if not isinstance(module, PreparedModel):
        raise ArgumentError(
            "check_model: expected a model made by prepare or an HBIR module but got "
            f"{type(module).__name__}; prepare the model first"
        )
    if example_inputs is None:
        raise ArgumentError("check_model: a prepared model needs example_inputs, as export does")
    model = copy.deepcopy(module).eval()
    if not need_scales:
        for _, _, quantizer in iter_stubs(model):
            if not bool(quantizer.observed):
                quantizer.set_qparams(1.0)
    return export(model, example_inputs)


def _verdict(module: HbirModule, march: March) -> tuple[list[str], list[dict[str, Any]]]:
    if module.stage == "quantized":
        refuse_other_march(str(module.march), "the module", march)
        items = advice_items(module)
        return list(on_the_cpu(items)), items
    lines, items = check_conversion(module, march)
    return lines or list(on_the_cpu(items)), items


def on_the_cpu(items: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each operator that runs on the CPU without lying outside the quantized part."""
    for name, reason in cpu_operators(items).items():
        if not is_outside(reason):
            yield f"{name}: it runs on the CPU: {reason}"


def cpu_operators(items: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Operators on the CPU by the advice records of ``convert``, each with the reason.

    Not the borders between float and integers.
    """
    found: dict[str, str] = {}
    for item in items:
        on_cpu = item["backend"] == CPU and not is_border(item["op"])
        if on_cpu and is_outside(found.get(item["loc"], OUTSIDE)):
            found[item["loc"]] = item["choice_reason"]
    return found


def is_outside(reason: str) -> bool:
    """Whether an operator is on the CPU only because it lies outside of the quantized part."""
    return reason in (OUTSIDE, OUTSIDE_STUBS)


def input_sources(given: str | Sequence[str], count: int, where: str) -> list[str]:
    """Where each of ``count`` inputs comes from."""
    sources = [given] * count if isinstance(given, str) else list(given)
    wrong = [source for source in sources if source not in INPUT_SOURCES]
    if wrong or len(sources) != count:
        raise ArgumentError(
            f"{where}: input_source must be one of {', '.join(INPUT_SOURCES)}, or one for "
            f"each of the {count} inputs, but got {given!r}"
        )
    return sources


def camera_lines(module: HbirModule, sources: Sequence[str]) -> list[str]:
    """What images from a resizer or a pyramid ask for: 1 or 3 channels, the scale 1/128."""
    found = []
    for source, value in zip(sources, module.model.graph.inputs, strict=True):
        if source == "ddr":
            continue
        shape = () if value.shape is None else tuple(value.shape.numpy())
        if len(shape) != 4 or shape[1] not in (1, 3):
            found.append(f"{value.name}: a {source} gives [N, 1 or 3, H, W], the input is {shape}")
        scale = _first_scale(value)
        if scale != CAMERA_SCALE:
            found.append(
                f"{value.name}: images of a {source} are quantized at the scale 1/128, the model "
                f"has {scale}; use QuantStub(scale=1 / 128)"
            )
    return found


def _first_scale(value: ir.Value) -> float | None:
    for use in value.uses():
        node = use.node
        for result in node.outputs:
            if META_SCALE in result.metadata_props:
                return float(result.metadata_props[META_SCALE])
        if META_RESULT not in node.metadata_props:
            return _first_scale(node.outputs[0])
    return None
