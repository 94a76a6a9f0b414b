"""``get_raw_features``: inputs, outputs and parameters of every operator, as a list of dicts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qtune.capture.inputs import as_inputs
from qtune.capture.nodes import map_leaves
from qtune.capture.restore import restored
from qtune.dtype import quant_dtype
from qtune.errors import ArgumentError
from qtune.nn.float_mode import not_observing
from qtune.ops.quant.codes import stored
from qtune.profiler.observe import own_inputs
from qtune.profiler.op_info import OpInfo, TensorInfo
from qtune.profiler.profiling import ModelProfiler
from qtune.profiler.running_info import tensors_of
from qtune.profiler.undisturbed import checked_device, undisturbed

IDENTITY = "identity"


class RawFeature(dict[str, Any]):
    """One tensor: ``module_name, attr, data, scale, ch_axis, ff_method``.

    ``index`` counts the calls of operators and ``module_type`` is what the table prints; they are
    attributes, so that the keys are those of the document.
    """

    index: int = 0
    module_type: str = ""


def get_raw_features(
    model: nn.Module,
    example_inputs: Any,
    prefixes: Sequence[str] = (),
    types: Sequence[Any] = (),
    device: torch.device | str | None = None,
    preserve_int: bool = False,
    use_class_name: bool = False,
    skip_identity: bool = False,
) -> list[dict[str, Any]]:
    """Run ``model`` once in eval mode and return every tensor that its operators take and give.

    Each is a dict: ``module_name``; ``attr`` (``input``, ``output``, ``weight``, ``bias``, with
    ``-<n>`` where there are several); ``data``, the real numbers; ``scale``, a float32 tensor or
    ``None`` for a float; ``ch_axis``, the axis of the scales, -1 for one scale; ``ff_method``, what
    a ``FloatFunctional`` was called for, else ``None``. In order of execution.

    ``prefixes``: beginnings of names; ``types``: classes or functions; both together mean both.
    ``device``: where it runs. ``preserve_int``: codes instead of real numbers where there is a
    scale. ``use_class_name``: tables name the class alone instead of its whole type.
    ``skip_identity``: without Identity operators. The model is left as it was.

    Source: the X3 plugin's user guide, "statistics". Unlike there, tensors in keyword arguments are
    seen too.
    """
    inputs = own_inputs(as_inputs(example_inputs, "get_raw_features", ArgumentError))
    on = None if device is None else checked_device(device, "get_raw_features")
    args, kwargs = map_leaves((inputs.args, dict(inputs.kwargs)), lambda v: _moved(v, on))
    with tempfile.TemporaryDirectory() as folder:
        profiler = ModelProfiler(model, folder)
        with restored(model), undisturbed(model, device=on), not_observing(model), profiler:
            model(*args, **kwargs)
        manager = profiler.get_info_manager
        return [
            feature
            for index, info in manager.chosen(prefixes or None, types or None)
            if not (skip_identity and info.op == IDENTITY)
            for feature in _features(index, info, preserve_int, use_class_name)
        ]


def _features(
    index: int, info: OpInfo, preserve_int: bool, use_class_name: bool
) -> Iterator[RawFeature]:
    for tensor, values in tensors_of(info):
        scale = None if tensor.scale is None else torch.tensor(tensor.scale)
        is_coded = preserve_int and tensor.scale is not None
        feature = RawFeature(
            module_name=info.owner,
            attr=tensor.attr,
            data=_codes(tensor, values) if is_coded else values.clone(),
            scale=scale,
            ch_axis=tensor.ch_axis if tensor.is_per_channel else -1,
            ff_method=info.method or None,
        )
        name = info.op_type
        feature.index = index
        feature.module_type = name.rpartition(".")[2] if use_class_name else f"<class '{name}'>"
        yield feature


def _codes(tensor: TensorInfo, values: Tensor) -> Tensor:
    """The codes of real numbers that are on the grid already."""
    scale = torch.tensor(tensor.scale)
    if tensor.is_per_channel:
        scale = scale.reshape(-1, *[1] * (values.dim() - tensor.ch_axis - 1))
    codes = (values / scale).round().cpu().numpy()
    return torch.from_numpy(stored(codes, quant_dtype(tensor.dtype)))


def _moved(value: Any, device: torch.device | None) -> Any:
    return value.to(device) if isinstance(value, Tensor) and device is not None else value
