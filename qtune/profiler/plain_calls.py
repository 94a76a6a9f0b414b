"""What one forward of a module without a graph shows: a float model, or one of eager mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, fx, nn
from torch.overrides import resolve_name
from torch.utils.weak import WeakTensorKeyDictionary

from qtune.capture.calls import Call
from qtune.capture.leaf import is_leaf
from qtune.capture.nodes import map_leaves, tensors_in
from qtune.nn.qat import QATOp
from qtune.nn.quantized.call import OpCall as GroupCall
from qtune.ops.registry import find_function, find_method, find_module
from qtune.ops.spec import Rule
from qtune.profiler.call_writer import CallWriter, OpCall
from qtune.profiler.observe import is_operator, type_name
from qtune.profiler.op_facts import method_of, parameters_of, registry_name
from qtune.profiler.operator_names import OperatorName, operator_names
from qtune.profiler.tensor_info import Seen, leaves
from qtune.profiler.witness import Witness

CallContext = Callable[[], AbstractContextManager[CallWriter]]


@contextmanager
def plain_call(
    model: nn.Module, calls: CallContext, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """The forward of ``model`` on these arguments runs in the block, as one call of ``calls``."""
    with calls() as writer:
        seen = _PlainCalls(model, writer)
        witness = Witness(model, _is_call, seen)
        with witness.watching(args, kwargs):
            yield
        seen.settle(operator_names(model, witness.tape, seen.places))


def _is_call(module: nn.Module) -> bool:
    return is_operator(module) or is_leaf(module)


@dataclass(frozen=True, slots=True)
class _Written:
    """A call of a function whose name is settled at the end. ``guess``: its name without one."""

    paths: list[Path]
    guess: str


@dataclass(frozen=True, slots=True)
class _Looked:
    """The operands of a call as they were before it, and what quantized the first of them."""

    operands: dict[str, Any]
    port: Any


class _PlainCalls:
    """Writes every call of one forward; layers at once under their names."""

    def __init__(self, model: nn.Module, writer: CallWriter) -> None:
        self._model = model
        self._writer = writer
        self._ports: Any = WeakTensorKeyDictionary()  # what quantized a tensor in eager mode
        self._calls: list[_Written] = []
        self.places: dict[fx.Node, int] = {}

    def before(self, call: Call, args: Any, kwargs: Any) -> _Looked:
        """Copies of the operands: the call may change them in place."""
        given = {**{str(index): arg for index, arg in enumerate(args)}, **kwargs}
        opened = {key: _opened(value) for key, value in given.items()}
        operands = {key: map_leaves(value, self._copy) for key, value in opened.items()}
        ports = (self._ports.get(tensor) for tensor in tensors_in(opened))
        return _Looked(operands, next((port for port in ports if port is not None), None))

    def after(self, call: Call, looked: _Looked, value: Any, node: fx.Node | None) -> None:
        """Write the call."""
        module = self._model.get_submodule(call.target) if call.op == "call_module" else None
        self._note_port(module, looked.port, value)
        results = list(leaves(map_leaves(value, self._copy)))
        if not results:
            return
        if module is not None:
            self._layer(call, module, looked.operands, results, node)
        else:
            self._function(call, looked.operands, results, node)

    def settle(self, names: Mapping[int, OperatorName | None] | None) -> None:
        """Give functions their names. ``None`` for a call: it is no operator; ``None`` for all:
        they can't be told.
        """
        counts: Counter[str] = Counter()
        for place, written in enumerate(self._calls):
            if names is None:
                if written.guess:
                    number = counts[written.guess]
                    counts[written.guess] += 1
                    name = f"_generated_{written.guess}_{number}"
                    self._writer.rename(written.paths, name=name)
                continue
            found = names.get(place)
            if found is None:
                self._writer.drop(written.paths)
            elif written.guess:
                self._writer.rename(written.paths, **asdict(found))

    def _layer(self, call: Call, module: nn.Module, operands: Any, results: Any, node: Any) -> None:
        own_name = is_operator(module)
        found = None if own_name else find_module(type(module))
        name = str(module.name) if own_name else str(call.target)
        info = OpCall(
            name,
            type_name(module),
            operands,
            results,
            parameters_of(module),
            registry_name(module) if found is None else found[0].name,
            str(call.target),
            method_of(name, module),
            _source(node),
        )
        self._write(info, "", node)

    def _function(self, call: Call, operands: Any, results: Any, node: Any) -> None:
        is_method = call.op == "call_method"
        found = find_method(str(call.target)) if is_method else find_function(call.target)
        guess = call.name if found is None else found[0].name
        scope = str(node.meta.get("scope") or "") if node is not None else ""
        info = OpCall(
            f"<{len(self._calls)}>",  # till the end of the forward
            f"torch.Tensor.{call.target}" if is_method else _spelled(call),
            operands,
            results,
            {},
            "" if found is None else found[0].name,
            scope,
            "",
            _source(node),
        )
        self._write(info, guess, node)

    def _write(self, info: OpCall, guess: str, node: fx.Node | None) -> None:
        if node is not None:
            self.places[node] = len(self._calls)
        self._calls.append(_Written(self._writer.add(info), guess))

    def _note_port(self, module: nn.Module | None, given: Any, value: Any) -> None:
        """Remember what quantized the results of a prepared operator; ``given``: its input."""
        if not isinstance(module, QATOp):
            return
        port: Any = module.activation_post_process
        if port is None and module.spec.rule is Rule.INPUT_SCALE:
            port = given
        for tensor in tensors_in(value):
            self._ports[tensor] = port

    def _copy(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return Seen.of(value, self._ports.get(value))


def _opened(value: Any) -> Any:
    """The operands of a fused group, whose members pass on what is to be called."""
    return tuple(value.operands) if isinstance(value, GroupCall) else value


def _spelled(call: Call) -> str:
    known = resolve_name(call.target)
    module = getattr(call.target, "__module__", None)
    return known or f"{module}.{getattr(call.target, '__name__', call.name)}"


def _source(node: fx.Node | None) -> str:
    return "" if node is None else str(node.meta.get("source") or "")
