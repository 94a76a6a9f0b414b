"""``profile_featuremap``: the tensors of ``get_raw_features`` in numbers and pictures."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qtune.errors import ArgumentError, kind_of
from qtune.profiler.histograms import FOLDER, write_histograms
from qtune.profiler.op_info import TensorInfo
from qtune.profiler.raw_features import RawFeature
from qtune.profiler.statistic import range_key, scale_cell, statistic_text
from qtune.profiler.tensor_info import Seen
from qtune.report import page, svg
from qtune.report.files import write_text

COLUMNS = (
    *("Module Index", "Module Name", "Module Type", "Input/Output/Attr"),
    *("Min", "Max", "Mean", "Var", "Scale"),
)
NAME = "statistic"
_KEYS = ("module_name", "attr", "data", "scale", "ch_axis", "ff_method")


@dataclass(frozen=True, slots=True)
class _Row:
    """One feature; ``name`` as the table prints it."""

    index: int
    name: str
    kind: str
    tensor: TensorInfo

    def cells(self, all_channels: bool) -> dict[str, Any]:
        tensor = self.tensor
        numbers = (tensor.min, tensor.max, tensor.mean, tensor.var)
        scale = scale_cell(tensor, all_channels=all_channels)
        values = (self.index, self.name, self.kind, tensor.attr, *numbers, scale)
        return {
            **dict(zip(COLUMNS, values, strict=True)),
            "NaN": tensor.nan,
            "Inf": tensor.inf,
        }


def profile_featuremap(
    featuremap: Sequence[Mapping[str, Any]],
    with_tensorboard: bool = False,
    tensorboard_dir: str | os.PathLike[str] | None = None,
    print_per_channel_scale: bool = False,
    show_per_channel: bool = False,
    out_dir: str | os.PathLike[str] | None = None,
    file_name: str | None = None,
) -> list[list[Any]]:
    """Write the numbers of every feature to ``statistic.txt`` and ``statistic.html``.

    ``featuremap``: what :func:`~qtune.profiler.raw_features.get_raw_features` gave. The text has
    them in order of the forward, then by range, and those with NaN or infinity; the page has a
    curve of the ranges and the table. ``with_tensorboard``: histograms too, in ``tensorboard_dir``
    (default ``<out_dir>/tensorboard``); ``show_per_channel``: one for each channel.
    ``print_per_channel_scale``: all scales instead of "per channel". ``out_dir``: default the
    current directory; ``file_name``: default ``statistic``, without a suffix.

    Returns ``[index, module name, module type, attr, min, max, mean, var, scale]`` for each.
    """
    folder = Path(out_dir or ".")
    stem = NAME if file_name is None else file_name
    rows = list(_rows(featuremap))
    by_range = sorted(rows, key=lambda row: range_key(row.tensor), reverse=True)
    odd = [row for row in rows if row.tensor.nan or row.tensor.inf]
    cells, sorted_cells, odd_cells = (
        [row.cells(print_per_channel_scale) for row in chosen] for chosen in (rows, by_range, odd)
    )
    text = statistic_text(cells, sorted_cells, odd_cells, COLUMNS)
    write_text(folder / f"{stem}.txt", f"{text}\n")
    write_text(folder / f"{stem}.html", _page(rows, cells, odd_cells))
    if with_tensorboard:
        pairs = zip(rows, featuremap, strict=True)
        tensors = ((row.name, row.tensor, feature["data"]) for row, feature in pairs)
        where = Path(tensorboard_dir or folder / FOLDER)
        write_histograms(where, tensors, force_per_channel=show_per_channel)
    return [[row[column] for column in COLUMNS] for row in cells]


def _rows(featuremap: Sequence[Mapping[str, Any]]) -> Iterator[_Row]:
    if not isinstance(featuremap, Sequence):
        raise ArgumentError(
            "profile_featuremap: expected the list that get_raw_features returns, got "
            f"{kind_of(featuremap)}"
        )
    calls: Counter[str] = Counter()
    index, name, last = -1, "", None
    for feature in featuremap:
        _check(feature)
        number = getattr(feature, "index", None)
        key = (feature["module_name"], number)
        if key != last:
            last = key
            index += 1
            name = _name(feature, calls[feature["module_name"]])
            calls[feature["module_name"]] += 1
        kind = feature.module_type if isinstance(feature, RawFeature) else ""
        yield _Row(index if number is None else number, name, kind, _numbers(feature))


def _check(feature: Any) -> None:
    missing = [key for key in _KEYS if not isinstance(feature, Mapping) or key not in feature]
    if missing or not isinstance(feature["data"], Tensor):
        missing = missing or ["a tensor as data"]
        raise ArgumentError(
            f"profile_featuremap: a feature lacks {', '.join(missing)}; pass the list that "
            "get_raw_features returns"
        )


def _name(feature: Mapping[str, Any], call: int) -> str:
    """``add(1)[add]``: with the number of a later call, and the method of a FloatFunctional."""
    name = str(feature["module_name"]) + (f"({call})" if call else "")
    return f"{name}[{feature['ff_method']}]" if feature["ff_method"] else name


def _numbers(feature: Mapping[str, Any]) -> TensorInfo:
    scale = feature["scale"]
    scales = None if scale is None else tuple(torch.as_tensor(scale).reshape(-1).tolist())
    data = feature["data"]
    return Seen(data, str(data.dtype), scales, int(feature["ch_axis"])).info(feature["attr"])


def _page(
    rows: Sequence[_Row], cells: Sequence[Mapping[str, Any]], odd: Sequence[Mapping[str, Any]]
) -> str:
    outputs = [row for row in rows if row.tensor.attr.startswith("output")]
    series = {
        "max": [row.tensor.max for row in outputs],
        "min": [row.tensor.min for row in outputs],
    }
    picture = svg.curve(series, [row.name for row in outputs], y_label="value")
    numeric = ("Module Index", "Min", "Max", "Mean", "Var", "Scale", "NaN", "Inf")
    table = page.Table(COLUMNS, cells, numeric=numeric)
    sections = [
        page.Section("Ranges of the outputs", pictures=[picture]),
        page.Section("All tensors", tables=[table]),
    ]
    if odd:
        table = page.Table((*COLUMNS, "NaN", "Inf"), odd, numeric=numeric)
        sections.insert(0, page.Section("With NaN or infinity", tables=[table]))
    return page.render("Statistics of every operator", sections, sortable=True)
