"""``compare_weights``: the weights of two stages of one model, layer by layer (plugin guide)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from qtune.capture.members import find_submodule
from qtune.errors import ArgumentError, kind_of
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.frozen import FrozenOp
from qtune.nn.quantized.op import QuantizedOp
from qtune.ops.gemm.channels import channel_unview
from qtune.ops.norm.fold import fold_batch_norm
from qtune.ops.registry import find_module
from qtune.ops.spec import FuseRole
from qtune.profiler.histograms import FOLDER as TENSORBOARD
from qtune.profiler.histograms import write_histograms
from qtune.profiler.metric import Metric
from qtune.profiler.op_info import TensorInfo
from qtune.profiler.similarity_function import SimilarityFunction, similarity
from qtune.quantizers.processes import unwrapped
from qtune.report.files import write_text
from qtune.report.screen import show
from qtune.report.table import text_table

FILE = "weight_comparison.txt"
COLUMNS = ("Weight Name", "Similarity", "Atol")

WeightPairs = dict[str, dict[str, Tensor]]


def compare_weights(
    float_model: nn.Module,
    qat_quantized_model: nn.Module,
    similarity_func: SimilarityFunction = "Cosine",
    with_tensorboard: bool = False,
    tensorboard_dir: str | os.PathLike[str] | None = None,
    out_dir: str | os.PathLike[str] | None = None,
) -> WeightPairs:
    """Compare the weights of a float (or prepared) model with those of a prepared or converted one.

    Returns ``layer.weight`` -> ``{"float": ..., "quantized": ...}``: copies, in real numbers. A
    batch norm that was folded into the second model's weight is folded into the first one's, too,
    so ``fuse_fx`` need not be called before. A prepared model's weight is the float one that it
    trains, a converted model's is ``codes * scale``.

    Shows the table and writes it to ``weight_comparison.txt`` in ``out_dir`` (default: the current
    directory). ``Atol``: largest absolute difference. ``with_tensorboard``: histograms of both
    sides in ``tensorboard_dir`` (default: ``tensorboard`` in ``out_dir``).
    """
    distance = similarity(similarity_func, "compare_weights")
    folder = Path(out_dir or ".")
    for model in (float_model, qat_quantized_model):
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"compare_weights: expected torch modules but got {kind_of(model)}")
    float_model, qat_quantized_model = unwrapped(float_model), unwrapped(qat_quantized_model)
    if float_model is qat_quantized_model:
        raise ArgumentError(
            "compare_weights: both models are the same object; convert a copy "
            "(copy.deepcopy, or inplace=False), so that the model before is still there"
        )
    pairs = _pairs(float_model, qat_quantized_model)
    rows = [
        (name, distance(p["float"], p["quantized"]), Metric.ATOL(p["float"], p["quantized"]))
        for name, p in pairs.items()
    ]
    table = text_table(rows, COLUMNS)
    write_text(folder / FILE, table + "\n")
    show(table)
    if with_tensorboard:
        _write_histograms(Path(tensorboard_dir or folder / TENSORBOARD), pairs)
    return pairs


def _pairs(float_model: nn.Module, model: nn.Module) -> WeightPairs:
    """The weights that both models have, in the order of the second one's layers."""
    groups = operator_groups(model)
    if not groups:
        raise ArgumentError(
            "compare_weights: expected a prepared or a converted model in the second place but got "
            f"{kind_of(model)} without operators of either"
        )
    before = {op.name: op for ops in operator_groups(float_model).values() for op in ops}
    pairs: WeightPairs = {}
    for ops in groups.values():
        for op in ops:
            own = weight_of(op)
            other = _weight_before(float_model, before, op, ops) if own is not None else None
            if own is not None and other is not None and own.shape == other.shape:
                pairs[f"{op.name}.weight"] = {"float": other, "quantized": own}
    return pairs


def operator_groups(model: nn.Module) -> dict[str, list[QATOp]]:
    """Fused group -> its operators, of a prepared or converted model; an operator alone is one."""
    groups: dict[str, dict[str, QATOp]] = {}
    for group, op in _operators(model):
        groups.setdefault(group, {})[op.name] = op
    return {group: list(ops.values()) for group, ops in groups.items()}


def _operators(model: nn.Module) -> Iterator[tuple[str, QATOp]]:
    if isinstance(model, PreparedModel):
        for node, op in model.operators():
            yield str(node.meta.get("group") or op.name), op
        return
    owners = {
        id(member): module.group or module.name
        for module in model.modules()
        if isinstance(module, QuantizedOp)
        for member in module.members
    }
    for module in model.modules():
        if isinstance(module, QATOp):
            yield owners.get(id(module)) or module.group or module.name, module


def weight_of(op: QATOp) -> Tensor | None:
    """A copy of the weight of an operator in real numbers, in torch's shape; ``None`` without."""
    role = op.spec.weight_role
    if role is None or role not in op.params:
        return None
    if not isinstance(op, FrozenOp):
        value: Any = op.param(role)
        return value.detach().clone() if isinstance(value, Tensor) else None
    quantized = op.quantized_weight()
    if quantized is None:
        return None
    return channel_unview(quantized.dequantize(), op.weight_groups(op.attrs)).clone()  # type: ignore[no-any-return]


def _weight_before(
    model: nn.Module, operators: dict[str, QATOp], op: QATOp, group: list[QATOp]
) -> Tensor | None:
    """The first model's weight of ``op``, with the batch norm of its group if that was folded."""
    if op.name in operators:
        return weight_of(operators[op.name])
    layer = find_submodule(model, op.name)
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor):
        return None
    norms = [item.name for item in group if _is_norm(find_submodule(model, item.name), item)]
    if not norms or op.spec.fuse is not FuseRole.GEMM:
        return weight.detach().clone()
    return _folded(weight.detach(), model.get_submodule(norms[0]), op)


def _is_norm(layer: nn.Module | None, op: QATOp) -> bool:
    """Whether the float ``layer`` is a batch norm for which ``op`` stands only as an Identity."""
    found = None if layer is None else find_module(type(layer))
    return found is not None and found[0].fuse is FuseRole.BN and op.spec.fuse is not FuseRole.BN


def _folded(weight: Tensor, norm: Any, op: QATOp) -> Tensor:
    axis = 0 if op.spec.weight_axis is None else op.spec.weight_axis(op.attrs)
    return fold_batch_norm(
        weight,
        None,
        mean=norm.running_mean,
        variance=norm.running_var,
        gamma=norm.weight,
        beta=norm.bias,
        eps=norm.eps,
        transposed=axis == 1,
        groups=op.weight_groups(op.attrs),
    )[0]


def _write_histograms(folder: Path, pairs: WeightPairs) -> None:
    tensors = (
        (name, TensorInfo(side, str(value.dtype), tuple(value.shape)), value)
        for name, pair in pairs.items()
        for side, value in pair.items()
    )
    write_histograms(folder, tensors)
