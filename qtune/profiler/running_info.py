"""``OpRunningInfoManager``: what a profiler kept, by operator name and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from qtune.errors import AnalysisError
from qtune.ops.op_types import as_names, as_types, is_one_of, nearest, nothing_fits
from qtune.profiler.histograms import FOLDER, write_histograms
from qtune.profiler.op_files import stored_ops
from qtune.profiler.op_info import OpInfo, TensorInfo
from qtune.profiler.statistic import StatisticTable, TensorRow
from qtune.profiler.tensor_info import leaves


@dataclass(frozen=True, slots=True)
class OpRunningInfo:
    """One operator in one forward; tensors are read from its file."""

    info: OpInfo

    @property
    def name(self) -> str:
        """The operator's name, with the numbers of its call, result and forward."""
        return self.info.name

    @property
    def op_type(self) -> str:
        """Qualified name of the class or function."""
        return self.info.op_type

    @property
    def dtype(self) -> str:
        """``qint8``, ``torch.float32``, ... of the result."""
        return self.info.dtype

    @property
    def scale(self) -> float | None:
        """The scale of the result, ``None`` for a float."""
        return self.info.scale

    @property
    def output(self) -> Tensor:
        """The result: real numbers."""
        return self.info.output[0]

    @property
    def input(self) -> Tensor | None:
        """The first tensor that went in, ``None`` where there is none."""
        return next(leaves(self.info.input), None)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All tensors that went in, without containers."""
        return tuple(leaves(self.info.input))

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Weight, bias and others by name."""
        return self.info.parameters

    @property
    def source(self) -> str:
        """The calling line (``model.py:12``), ``""`` where it is not known."""
        return self.info.source

    @property
    def output_min(self) -> float | None:
        """Smallest number of the result."""
        return self._numbers("output").min

    @property
    def output_max(self) -> float | None:
        """Largest number of the result."""
        return self._numbers("output").max

    @property
    def output_mean(self) -> float | None:
        """Mean of the result."""
        return self._numbers("output").mean

    @property
    def output_var(self) -> float | None:
        """Unbiased variance of the result."""
        return self._numbers("output").var

    @property
    def input_min(self) -> float | None:
        """Smallest number of the first input."""
        return self._numbers("input").min

    @property
    def input_max(self) -> float | None:
        """Largest number of the first input."""
        return self._numbers("input").max

    def _numbers(self, attr: str) -> TensorInfo:
        found = (tensor for tensor in self.info.tensors if tensor.attr.startswith(attr))
        return next(found, TensorInfo(attr, "", ()))


class OpRunningInfoManager(Mapping[str, OpRunningInfo]):
    """The operators in ``out_dir`` by name, in order of execution, of all forwards.

    A second call of ``fc`` is ``fc_1``, a second result ``fc:1``, all of a second forward have
    ``@1`` behind the name.
    """

    def __init__(self, out_dir: str | Path, ops: Mapping[str, OpInfo] | None = None) -> None:
        """``ops``: default those that an earlier profiler left in ``out_dir``."""
        self.out_dir = Path(out_dir)
        self._ops = stored_ops(self.out_dir) if ops is None else ops

    def __call__(self) -> Self:
        """The manager: ``p.get_info_manager()`` and ``p.get_info_manager`` are the same."""
        return self

    def __getitem__(self, name: str) -> OpRunningInfo:
        if name not in self:
            near = ", ".join(key for key in nearest(str(name), list(self)) if key in self)
            hint = f"close: {near}" if near else f"list(manager) has all {len(self)}"
            raise KeyError(f"no operator {name!r} was seen; {hint}")
        return OpRunningInfo(self._ops[name])

    def __contains__(self, name: object) -> bool:
        return name in self._ops

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def table(
        self,
        out_dir: str | Path | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[Any] | None = None,
        with_stack: bool = False,
    ) -> StatisticTable:
        """Write ``statistic.txt`` (default: into the profiler's folder) and return its tables.

        One line for each input, parameter and output of each operator, in order of execution and
        then by range. ``prefixes``: beginnings of operator names; ``types``: classes or functions;
        both together mean both. ``with_stack``: a last column with the calling line.
        """
        rows = tuple(
            TensorRow(index, info.op_type, info.module, info.source, tensor)
            for index, info in self.chosen(prefixes, types)
            for tensor in info.tensors
        )
        table = StatisticTable(rows, with_stack)
        table.save(self._folder(out_dir))
        return table

    def tensorboard(
        self,
        out_dir: str | Path | None = None,
        prefixes: Sequence[str] | None = None,
        types: Sequence[Any] | None = None,
        force_per_channel: bool = False,
    ) -> Path:
        """Write a histogram of each tensor of each operator to ``<out_dir>/tensorboard``.

        One for each channel too, where there is a scale for each or ``force_per_channel`` asks for
        it. Look at them with ``tensorboard --logdir``. Returns the folder.
        """
        tensors = (
            (info.name.partition(":")[0], tensor, values)
            for _, info in self.chosen(prefixes, types)
            for tensor, values in tensors_of(info)
        )
        folder = self._folder(out_dir) / FOLDER
        return write_histograms(folder, tensors, force_per_channel=force_per_channel)

    def chosen(
        self, prefixes: Sequence[str] | None, types: Sequence[Any] | None
    ) -> list[tuple[int, OpInfo]]:
        """The operators that ``table`` means by these, each with its index among all.

        ``AnalysisError`` for a choice of nothing.
        """
        prefixes, types = as_names(prefixes), as_types(types)
        found, index = [], -1
        for info in self._ops.values():
            index += info.result == 0
            if prefixes is not None and not info.name.startswith(prefixes):
                continue
            if types is None or is_one_of(types, info.op, info.op_type):
                found.append((index, info))
        if not found and (prefixes is not None or types is not None):
            raise AnalysisError(nothing_fits("profiler", list(self._ops), prefixes, types))
        return found

    def _folder(self, out_dir: str | Path | None) -> Path:
        return self.out_dir if out_dir is None else Path(out_dir)


def tensors_of(info: OpInfo) -> Iterator[tuple[TensorInfo, Tensor]]:
    """The tensors of an operator, in numbers and as they are."""
    values = [*leaves(info.input), *info.parameters.values(), *info.output]
    return zip(info.tensors, values, strict=True)
