"""Writes the results of a run to ``.opinfo`` files."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path

import torch

from qtune.profiler.observe import Observation
from qtune.profiler.op_info import OpInfo
from qtune.report.files import write_with

_UNSAFE = re.compile(r"[^A-Za-z0-9_.()-]+")


def save_op_infos(folder: Path, run: Observation) -> None:
    """Write one file per operator, ``<index>_<name>.opinfo``, in order of execution."""
    shutil.rmtree(folder, ignore_errors=True)  # another run may have had other operators
    for index, record in enumerate(run.records.values()):
        inputs = [
            v for v in record.inputs if isinstance(v, torch.Tensor | int | float | bool | str)
        ]
        info = OpInfo(
            record.name, record.op_type, inputs, [record.value], record.scale, record.dtype
        )
        name = f"{index:04d}_{_UNSAFE.sub('_', record.name)}.opinfo"
        write_with(folder / name, partial(torch.save, info))
