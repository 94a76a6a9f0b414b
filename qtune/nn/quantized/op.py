"""``QuantizedOp``: one operator, or one fused group, of a converted model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from qtune.errors import RunError
from qtune.nn.qat.op import QATOp
from qtune.nn.quantized.call import OpCall, call_of
from qtune.nn.quantized.frozen import FrozenOp, Grid, freeze, tabled
from qtune.nn.quantized.lower import fed_tensors, program_of_call
from qtune.nn.quantized.program import PackedProgram, ResultGrid, run_program
from qtune.nn.quantized.qtensor import QTensor, plain_shape, untraced
from qtune.nn.quantized.unquantized import is_float, is_plain, run_float, run_folded
from qtune.nn.quantized.wiring import Wiring
from qtune.nn.table import TableSource
from qtune.ops.spec import Rule

_PROGRAMS = 64
"""Most programs that one module keeps, one for each kind of input it met."""


NOT_FOR_FILES = (
    "the model was converted with fast_mode=True, which is for running it in Python: it can't be "
    "traced, checked or compiled. Convert it with fast_mode=False for that"
)


class QuantizedOp(nn.Module):
    """Runs its operators on integers, on the emulated BPU.

    A call takes the operands of the prepared operator (or those of the group from outside) and
    gives a :class:`QTensor`, a plain tensor where the result has no scale (high precision, masks,
    indices), or a tuple of these. ``members`` hold codes and scales; the integer program is made
    when an input of a new kind (shape, dtype, scale) comes, and kept.

    ``name``: path in the model; ``group``: name of the last layer of its fused group, in eager
    models, where the layers of a group are called one by one. ``march`` and ``consistency_level``:
    those of the model. ``constants``: places of operands that no input of the model decides.
    ``fast_mode``: that of ``convert``.
    """

    def __init__(
        self,
        ops: Sequence[QATOp],
        wiring: Wiring | None = None,
        *,
        march: str,
        consistency_level: int | None = None,
        constants: Iterable[int] = (),
        group: str = "",
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(freeze(op) for op in ops)
        self.name = ops[-1].name
        self.group = group
        self.march = march
        self.consistency_level = consistency_level
        self.wiring = wiring
        self.constants = frozenset(constants)
        self.fast_mode = False
        self._programs: dict[str, PackedProgram] = {}
        self.eval()

    @property
    def op(self) -> str:
        """The registry's name of the operator; of a group, that of its first member."""
        return self._frozen[0].op

    @property
    def grid(self) -> Grid | None:
        """Scale and dtype of the result, ``None`` where it keeps the input's or has none."""
        grid: Any = self._frozen[-1].activation_post_process
        return grid if isinstance(grid, Grid) else None

    @property
    def scale(self) -> torch.Tensor | None:
        """The scale of the result, float32 [1]."""
        return None if self.grid is None else self.grid.scale

    def weight(self) -> QTensor | None:
        """The quantized weight, one scale for each output channel; ``None`` if there is none."""
        found = (member.quantized_weight() for member in self._frozen)
        return next((weight for weight in found if weight is not None), None)

    def bias(self) -> torch.Tensor | None:
        """The float bias, ``None`` if there is none."""
        found = (m.param("bias") for m in self._frozen if "bias" in m.params)
        return next(found, None)

    @property
    def _frozen(self) -> list[FrozenOp]:
        return list(self.members)  # type: ignore[arg-type]

    def forward(self, *operands: Any, **dynamic: Any) -> Any:
        """Run on QTensors and plain tensors; the operands as those of the prepared operator."""
        call = self._bound(operands, dynamic)
        if call.group and call.group != self.name:
            return call
        if self.fast_mode:
            refuse_trace(self.name)
        tensors = {i for i, v in enumerate(call.operands) if isinstance(v, torch.Tensor)}
        if is_float(call) and not is_plain(call):
            return run_float(call)
        if tensors <= self.constants:
            return run_folded(call)
        _refuse_dtypes(self.name, call.operands)
        return self._run_call(call)

    def _bound(self, operands: tuple[Any, ...], dynamic: dict[str, Any]) -> OpCall:
        """What is to run: the members, how they are connected, and their operands."""
        if self.wiring is None:
            form = self._frozen[0].call_form
            if form is not None:
                operands, dynamic = form.operands(operands, dynamic)
            return call_of(self._frozen[0], operands, dynamic, self.group)
        values = (*operands, *dynamic.values())
        if len(values) != self.wiring.count:
            raise RunError(
                f"{self.name}: expected {self.wiring.count} operands, got {len(values)}: the "
                "results that its operators take from outside, in the order of their use"
            )
        return OpCall(tuple(self._frozen), self.wiring, values)

    def _run_call(self, call: OpCall) -> Any:
        source = _source(call.operands)
        key = str((call.wiring.calls, _kind(call.operands, self.constants), _told(source)))
        if key not in self._programs:
            while len(self._programs) >= _PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            with untraced(), torch.no_grad():
                self._programs[key] = self._program(call, source)
        packed = self._programs[key]
        tensors = list(fed_tensors(call.operands, self.constants))
        result = run_packed(packed, tensors, direct=self.fast_mode)
        _note_source(result, call.members[-1], source)
        return result

    def _program(self, call: OpCall, source: TableSource | None) -> PackedProgram:
        with_tables = tuple(tabled(member, source) for member in call.members)
        whole = replace(call, members=with_tables)
        return program_of_call(whole, self.constants, self.march, self.consistency_level)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Devices can be changed, dtypes can't: a program is integers."""
        for name, tensor in self.named_buffers():
            changed = fn(tensor[:0] if tensor.dim() else tensor).dtype
            if changed != tensor.dtype:
                raise RunError(
                    f"{self.name}: a converted model has fixed dtypes, but {name} would become "
                    f"{changed}. .half(), .double() and .to(dtype) need the float or the prepared "
                    "model; .to(device) works"
                )
        self._programs = {}  # a new one, by which plans of the whole model see the change
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._programs = {}  # a new one, by which plans of the whole model see the change
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_programs": {}}

    def extra_repr(self) -> str:
        """Name in the model."""
        return f"name={self.name}"


def run_packed(packed: PackedProgram, tensors: list[torch.Tensor], *, direct: bool = False) -> Any:
    """Run a program; codes come as QTensors, several results as a tuple.

    ``direct``: past torch's dispatcher, where no mode of it is active.
    """
    direct = direct and torch._C._len_torch_dispatch_stack() == 0
    run = run_program if direct else torch.ops.qtune.run_program
    results = run(tensors, packed.program, packed.signature)
    pairs = zip(results, packed.grids, strict=True)
    wrapped = tuple(_wrapped(tensor, grid) for tensor, grid in pairs)
    return wrapped[0] if len(wrapped) == 1 else wrapped


def refuse_trace(name: str) -> None:
    """Raise under ``torch.jit.trace``, which the fast mode can't be in."""
    if torch._C._get_tracing_state() is not None:
        raise RunError(f"{name}: {NOT_FOR_FILES}")


def _wrapped(tensor: torch.Tensor, grid: ResultGrid | None) -> Any:
    return tensor if grid is None else QTensor(tensor, grid.scale, grid.dtype)


def _kind(values: Sequence[Any], constants: frozenset[int]) -> list[Any]:
    """What of the operands decides the program."""
    kinds: list[Any] = []
    for place, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            kinds.append(value)
        elif place in constants:
            kinds.append(_content(value))
        elif isinstance(value, QTensor):
            kinds.append((tuple(value.shape), str(value.dtype), value.ch_axis, value.scales))
        else:
            kinds.append((plain_shape(value), value.dtype))
    return kinds


def _content(value: torch.Tensor) -> str:
    tensor = value.int_repr() if isinstance(value, QTensor) else value
    with untraced():
        data = tensor.detach().cpu().contiguous().numpy()
    scale = value.scales if isinstance(value, QTensor) else ""
    return f"{hashlib.sha256(data.tobytes()).hexdigest()}{data.shape}{data.dtype}{scale}"


def _refuse_dtypes(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if not isinstance(value, torch.Tensor) or isinstance(value, QTensor):
            continue
        if value.is_floating_point() and value.dtype != torch.float32:
            raise RunError(
                f"{name}: expected a float32 tensor, got {value.dtype}; convert it before the "
                "call, nothing is converted silently"
            )
        if value.device.type == "meta":
            raise RunError(f"{name}: a meta tensor has no values to quantize; pass a real one")


def _source(values: Sequence[Any]) -> TableSource | None:
    """Where the first codes among the operands come from."""
    first = next((value for value in values if isinstance(value, QTensor)), None)
    return None if first is None else first.table_source


def _told(source: TableSource | None) -> Any:
    """What of a source decides a table."""
    if source is None or source.quantizer.dtype.bits <= 8:
        return ""
    with untraced():
        return (source.codes(), source.as_observed, source.fills)


def _note_source(result: Any, last: FrozenOp, source: TableSource | None) -> None:
    """Tell the codes of a result what an int16 table behind them must cover."""
    own: Any = last.activation_post_process
    if isinstance(own, Grid):
        source = TableSource(own)  # type: ignore[arg-type]
    elif source is not None and last.spec.rule is Rule.INPUT_SCALE:
        fill = last.spec.fills(last.attrs) if last.spec.fills else None
        source = replace(
            source,
            as_observed=source.as_observed and last.spec.family == "movement",
            fills=source.fills if fill is None else (*source.fills, fill),
        )
    for item in result if isinstance(result, tuple) else (result,):
        if isinstance(item, QTensor):
            item.table_source = source
