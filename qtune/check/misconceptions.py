"""The documented misconceptions: what is legal, often not meant, and costs accuracy.

Plugin guide, "Common Usage Misconceptions". Each function returns texts to warn with, one for each
misconception, none for a clean model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx, nn

from qtune.nn.prepared import OUTSIDE_STUBS, PreparedModel
from qtune.nn.qat.op import QATOp
from qtune.ops.spec import FuseRole
from qtune.quantizers.fake_quantize import FakeQuantize

CENTRED = 1.0
"""Range of a centred YUV444 image: ``(pixel - 128) / 128``, so its scale is 1/128 as qint8."""
NOT_CENTRED = "image input not centred"
LARGE_WEIGHT = 16.0
"""Weights of trained networks stay well below; larger ones are a sign of overfitting."""
_CLOSE = 1e-3
_MOST_NAMED = 5


def at_prepare(float_model: nn.Module, model: PreparedModel) -> list[str]:
    """What can be told as soon as the model is prepared."""
    return [
        *_losses(float_model, model),
        *_pre_and_post_processing(float_model, model),
        *_low_outputs(model),
        *_images(model, calibrated=False),
        *_large_weights(float_model, model),
    ]


def at_calibration(model: PreparedModel) -> list[str]:
    """What can be told when the data are known."""
    return list(_images(model, calibrated=True))


def uncentred_images(model: PreparedModel, *, calibrated: bool = True) -> dict[str, str]:
    """QuantStubs of images that are not centred, and what tells: a given scale other than 1/128;
    once ``calibrated``, without a given scale, data that are never negative.
    """
    found = {}
    for node, op in model.operators():
        quantizer = op.activation_post_process
        if not (_is_image(node, op) and isinstance(quantizer, FakeQuantize)):
            continue
        text = _data(quantizer) if calibrated else _scale(quantizer)
        if text:
            found[op.name] = text
    return found


def _losses(float_model: nn.Module, model: PreparedModel) -> Iterator[str]:
    quantized = _quantized_places(model)
    found = [
        path
        for path, module in float_model.named_modules()
        if path
        and _is_loss(module)
        and (_has_qconfig(module) or any(_inside(path, place) for place in quantized))
    ]
    if found:
        yield (
            f"a loss is not to be quantized, and these have a qconfig: {_named(found)}. Set "
            "module.qconfig = None there, or keep losses behind the DeQuantStub"
        )


def _pre_and_post_processing(float_model: nn.Module, model: PreparedModel) -> Iterator[str]:
    quantized = _quantized_places(model)
    outside = [(op.name, op.scope) for op in model.float_ops if op.reason.startswith(OUTSIDE_STUBS)]
    found = [
        path
        for path, module in float_model.named_modules()
        if path
        and _has_qconfig(module)
        and not _is_loss(module)
        and any(_inside(path, place) for place in outside)
        and not any(_inside(path, place) for place in quantized)
    ]
    if found:
        yield (
            "pre- and post-processing is not quantized, and these modules outside of QuantStub and "
            f"DeQuantStub have a qconfig: {_named(found)}. Set a qconfig only for what is to be "
            "quantized, or move the stubs"
        )


def _low_outputs(model: PreparedModel) -> Iterator[str]:
    outputs = () if model.resolution is None else model.resolution.outputs
    found = [f"{output.name} ({output.reason})" for output in outputs if output.avoidable]
    if found:
        yield (
            f"output not in high precision: {_named(found)}. Give the output layer "
            "default_qat_out_8bit_fake_quant_qconfig (or calib_out), or torch.float32 in a template"
        )


def _images(model: PreparedModel, *, calibrated: bool) -> Iterator[str]:
    images = uncentred_images(model, calibrated=calibrated)
    if images:
        found = [f"{name} ({text})" for name, text in images.items()]
        yield (
            f"{NOT_CENTRED}: {_named(found)}. The device feeds centred YUV444, "
            "(pixel - 128) / 128: train with it, and write QuantStub(scale=1/128)"
        )


def _scale(quantizer: FakeQuantize) -> str:
    """A scale that was given and is not the centred one, on its grid or as a number."""
    if quantizer.scale.is_meta:
        return ""
    scale = float(quantizer.scale.detach().max())
    ranges = (scale * -quantizer.quant_min, scale * 128)
    given = quantizer.activation_post_process.is_fixed
    wrong = given and all(abs(covers - CENTRED) > _CLOSE for covers in ranges)
    return f"scale {scale:.6g}" if wrong else ""


def _data(quantizer: FakeQuantize) -> str:
    observer = quantizer.activation_post_process
    if observer.is_fixed or not bool(observer.observed) or float(observer.min_val.min()) < 0:
        return ""
    return f"data from {float(observer.min_val.min()):.4g} to {float(observer.max_val.max()):.4g}"


def _large_weights(float_model: nn.Module, model: PreparedModel) -> Iterator[str]:
    weights = dict(float_model.named_parameters())
    found = []
    for op in dict.fromkeys(op for _, op in model.operators()):
        if op.weight_fake_quant is None or op.spec.fuse is not FuseRole.GEMM:
            continue
        role = str(op.spec.weight_role)
        own = op.param(role) if role in op.params else None  # a function's weight is an operand
        weight = weights.get(f"{op.name}.{role}", own)
        largest = 0.0 if weight is None or weight.is_meta else float(weight.detach().abs().max())
        if largest > LARGE_WEIGHT:
            found.append(f"{op.name} (up to {largest:.4g})")
    if found:
        yield (
            f"large weights, a sign of an overfitted float model: {_named(found)}. Train it with "
            "weight decay before quantizing"
        )


def _is_image(node: fx.Node, op: QATOp) -> bool:
    """A QuantStub of a model input [N, 3, H, W]."""
    shape: Any = node.meta.get("shape") or ()
    source = next(iter(node.args), None)
    is_input = isinstance(source, fx.Node) and source.op == "placeholder"
    sizes = len(shape) == 4 and not isinstance(shape[0], (tuple, list)) and int(shape[1]) == 3
    return op.spec.family == "quant" and is_input and sizes


def _is_loss(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.loss._Loss) or type(module).__name__.endswith("Loss")


def _has_qconfig(module: nn.Module) -> bool:
    return vars(module).get("qconfig") is not None


def _quantized_places(model: PreparedModel) -> list[tuple[str, str]]:
    """Name and scope of every operator that computes on integers."""
    plans = {} if model.resolution is None else model.resolution.plans
    return [
        (op.name, str(node.meta.get("scope", "")))
        for node, op in model.operators()
        if op.name in plans and plans[op.name].float_reason is None
    ]


def _inside(path: str, place: tuple[str, str]) -> bool:
    return any(f"{name}.".startswith(f"{path}.") for name in place)


def _named(found: Sequence[str]) -> str:
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
