"""``featuremap_similarity``: two stages of one model, operator by operator (plugin guide)."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from qtune.analysis.devices import inputs_on
from qtune.analysis.op_error import op_errors
from qtune.capture.inputs import Inputs, as_inputs
from qtune.capture.members import find_submodule
from qtune.errors import AnalysisError
from qtune.nn.eager import as_graph
from qtune.nn.prepared import PreparedModel
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.op import QuantizedOp
from qtune.nn.quantized.passing import FusedAway
from qtune.profiler.float_reference import observe_float
from qtune.profiler.metric import Metric
from qtune.profiler.observe import Model, is_converted, is_prepared, observe
from qtune.profiler.record import Observation, OpRecord
from qtune.profiler.similarity_function import Similarity, SimilarityFunction, similarity
from qtune.profiler.undisturbed import (
    checked_device,
    refuse_observing,
    same_randomness,
    undisturbed,
)
from qtune.quantizers.processes import unwrapped
from qtune.report.files import write_text
from qtune.report.page import Section, Table, render
from qtune.report.screen import show
from qtune.report.svg import curve
from qtune.report.table import shown_type, text_table

FILE, ORDERED_FILE, PAGE = "similarity.txt", "ordered_op_error_similarity.txt", "similarity.html"
COLUMNS = (
    "Index",
    "Module Name",
    "Module Type",
    "Similarity",
    "qscale",
    "Acc Error\n(float atol)",
    "Acc Error\n(N out_qscale)",
    "Op Error with Same\nInput (N out_qscale)",
)
_OP_ERROR = 7
_LINE = "-" * 63
NOTE = (
    f"{_LINE}\nNote:\n* Suffix '(I)' means this layer is Identity in one model\n"
    "* Suffix '(I vs I)' means this layer is Identity in both models\n"
    f"* Suffix '(i)'(i >= 1) means this op is shared i times\n{_LINE}\n"
)

Row = list[Any]
OwnSteps = Mapping[str, float | None]
Devices = torch.device | str | Sequence[torch.device | str] | None


def featuremap_similarity(
    model1: Model,
    model2: Model,
    inputs: Any,
    similarity_func: SimilarityFunction = "Cosine",
    threshold: float | None = None,
    devices: Devices = None,
    out_dir: str | os.PathLike[str] | None = None,
) -> list[Row]:
    """Compare the results of all operators of two stages of one model on ``inputs``.

    Stages: float, prepared (calibration or QAT), converted, HBIR; best in this order. Returns a
    row ``[index, module name, module type, similarity, scale, largest difference, the same in
    scales, error with the same input in scales]`` for each operator in order of execution; the
    last two are whole numbers, ``None`` without a scale. *Error with the same input*: the second
    model's operator is fed what the first model computed, so nothing has accumulated. A member of
    a fused group that computes nothing by itself in one model has no numbers.

    ``similarity_func``: ``Cosine``, ``MSE``, ``L1``, ``KL``, ``SQNR``, a metric, or a function of
    two tensors. Rows beyond ``threshold`` go to the screen. ``devices``: where the models run, one
    for both or a pair; ``None``: where they and the inputs are. Writes ``similarity.txt``,
    ``ordered_op_error_similarity.txt`` (largest error with the same input first) and
    ``similarity.html`` to ``out_dir`` (default: the current directory). The models run in eval
    mode and are left as they were.
    """
    distance = similarity(similarity_func, "featuremap_similarity")
    call = as_inputs(inputs, "featuremap_similarity", AnalysisError)
    pair = _prepared_pair(unwrapped(model1), unwrapped(model2), call)
    first, second, alone = _run(*pair, call, _two_devices(devices))
    rows = _rows(pair, first, second, alone, distance)
    _write(Path(out_dir or "."), rows, distance, threshold)
    bad = [row for row in rows if distance.is_bad(row[3], threshold)]
    if bad:
        show(text_table(bad, COLUMNS))
    return rows


def _prepared_pair(model1: Model, model2: Model, call: Inputs) -> tuple[Model, Model]:
    """The models, those of eager mode as graphs; refuses two that are one."""
    operators = [
        {id(m) for m in model.modules() if isinstance(m, (QATOp, QuantizedOp))}
        if isinstance(model, nn.Module)
        else set()
        for model in (model1, model2)
    ]
    if model1 is model2 or operators[0] & operators[1]:
        raise AnalysisError(
            "featuremap_similarity: both models hold the same operators, so one would be compared "
            "with itself; it was converted in place. Convert a copy (copy.deepcopy, or "
            "inplace=False)"
        )
    for model in (model1, model2):
        refuse_observing(model, "featuremap_similarity")
    return _as_graph(model1, call), _as_graph(model2, call)


def _as_graph(model: Model, call: Inputs) -> Model:
    is_graph = is_converted(model) or isinstance(model, PreparedModel)
    graph: Model = model if is_graph else as_graph(model, call)
    return graph


def _two_devices(devices: Devices) -> tuple[torch.device | None, torch.device | None]:
    if devices is None:
        return None, None
    if isinstance(devices, (str, torch.device)):
        devices = (devices, devices)
    if len(devices) != 2:
        raise AnalysisError(
            f"featuremap_similarity: devices takes one device or a pair, got {len(devices)}"
        )
    first, second = (checked_device(item, "featuremap_similarity") for item in devices)
    return first, second


def _run(
    model1: Model, model2: Model, call: Inputs, devices: tuple[torch.device | None, ...]
) -> tuple[Observation, Observation, OwnSteps]:
    """Both runs, and the errors of the second model's operators on the first one's values."""
    calls = [call if device is None else inputs_on(call, device) for device in devices]
    with ExitStack() as stack:
        for model, device in zip((model1, model2), devices, strict=True):
            stack.enter_context(undisturbed(model, device=device))
        with same_randomness(model1, model2):
            first = _observe(model1, model2, calls[0])
        with same_randomness(model1, model2):
            second = _observe(model2, model1, calls[1])
        with same_randomness(model1, model2):
            alone = _own_steps(model2, calls[1], first)
    return first, second, alone


def _own_steps(model: Model, call: Inputs, first: Observation) -> OwnSteps:
    """Operator -> its error with the same input in scales; empty for a float model."""
    if _is_float(model):
        return {}
    found = op_errors(first, model, call, [Metric.ATOL])
    return {name: error.steps for name, error in found.items()}


def _is_float(model: Model) -> TypeGuard[nn.Module]:
    return isinstance(model, nn.Module) and not (is_converted(model) or is_prepared(model))


def _observe(model: Model, other: Model, call: Inputs) -> Observation:
    """One run; a float model's under the operator names of the other one."""
    if _is_float(model) and isinstance(other, PreparedModel):
        return observe_float(model, other, call)
    return observe(model, call)


def _rows(
    models: tuple[Model, Model],
    first: Observation,
    second: Observation,
    alone: OwnSteps,
    distance: Similarity,
) -> list[Row]:
    rows: list[Row] = []
    for key, record in first.records.items():
        other = second.records.get(key)
        name = _shown_name(record) + _identity_suffix(models, record, other)
        numbers: Row = [None] * 5
        if other is not None and other.value.shape == record.value.shape:
            numbers = _numbers(record, other, alone.get(key), distance)
        elif other is not None or not _is_fused_away(models[1], record):
            continue
        is_class = isinstance(models[0], nn.Module)  # HBIR's operators are no classes
        kind = shown_type(record.op_type) if is_class else record.op_type
        rows.append([len(rows), name, kind, *numbers])
    if not rows:
        raise AnalysisError(
            "featuremap_similarity: the two models have no operator in common; compare two stages "
            "of one model"
        )
    return rows


def _numbers(
    record: OpRecord, other: OpRecord, alone: float | None, distance: Similarity
) -> list[Any]:
    a, b = record.value.cpu(), other.value.cpu()
    scale = other.scale if other.scale is not None else record.scale
    difference = Metric.ATOL(a, b) if a.is_floating_point() else None
    steps = None if difference is None or scale is None else difference / scale
    return [distance(a, b), scale, difference, _whole(steps), _whole(alone)]


def _whole(steps: float | None) -> float | None:
    return steps if steps is None or not math.isfinite(steps) else math.floor(steps + 0.5)


def _shown_name(record: OpRecord) -> str:
    """``fc``, ``fc(1)`` for a second call, ``fc:1`` for a second result."""
    owner = record.owner or record.name
    call, _, result = record.name.removeprefix(owner).partition(":")
    times = f"({call.removeprefix('_')})" if call else ""
    return owner + times + (f":{result}" if result else "")


def _identity_suffix(models: tuple[Model, Model], record: OpRecord, other: OpRecord | None) -> str:
    gone = other is None and _is_fused_away(models[1], record)
    idle = (_is_identity(record), gone or (other is not None and _is_identity(other)))
    return "(I vs I)" if all(idle) else "(I)" if any(idle) else ""


def _is_identity(record: OpRecord) -> bool:
    return record.op_type.rpartition(".")[2] == nn.Identity.__name__


def _is_fused_away(model: Model, record: OpRecord) -> bool:
    name = record.owner or record.name
    return isinstance(model, nn.Module) and isinstance(find_submodule(model, name), FusedAway)


def _write(folder: Path, rows: list[Row], distance: Similarity, threshold: float | None) -> None:
    write_text(folder / FILE, NOTE + text_table(rows, COLUMNS) + "\n")
    ordered = sorted(rows, key=lambda row: math.inf if row[_OP_ERROR] is None else -row[_OP_ERROR])
    write_text(folder / ORDERED_FILE, NOTE + text_table(ordered, COLUMNS) + "\n")
    write_text(folder / PAGE, page([similarity_section(rows, distance, threshold)]))


def page(sections: list[Section]) -> str:
    """``similarity.html``."""
    return render("Similarity of feature maps", sections, sortable=True)


def similarity_section(rows: list[Row], distance: Similarity, threshold: float | None) -> Section:
    """The curve of the similarity over the layers, and the table."""
    columns = tuple(column.replace("\n", " ") for column in COLUMNS)
    named = [
        dict(zip(columns, row, strict=True)) | {"bad": distance.is_bad(row[3], threshold)}
        for row in rows
    ]
    names = [row[1] for row in rows]
    picture = curve(
        {distance.name: [row[3] for row in rows]},
        names,
        title=f"{distance.name} of each operator, in order of execution",
        y_label=distance.name,
        bad=[row["Module Name"] for row in named if row["bad"]],
    )
    table = Table(columns, named, bad="bad", numeric=(columns[0], *columns[3:]))
    return Section("Similarity", tables=[table], pictures=[picture])
