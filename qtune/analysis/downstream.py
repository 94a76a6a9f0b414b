"""Run a model once, and again and again only what a change of one operator reaches.

The values of one run, the baseline, are kept. A changed run computes the operators whose operands
differ from the baseline's, and stops where results are the baseline's again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from qtune.analysis.plan import Plan
from qtune.capture.program import Compute, Registers, Step
from qtune.profiler.undisturbed import same_randomness

MAX_CACHE_BYTES = 1 << 30
"""How much of a baseline is kept unless the caller says otherwise: 1 GiB."""

Change = Callable[[Registers, Compute], Any]
"""``change(registers, compute)``: the changed result of a call; ``compute(registers)`` gives its
unchanged one."""


class Baseline:
    """The values of a run of ``plan`` on ``inputs``, one per placeholder.

    ``max_cache_bytes``: if all values together are larger, only those that are still needed at one
    place of the run are kept at a time. :meth:`visit` then runs the plan once more, and a changed
    run computes everything behind the place. The numbers are the same.

    ``resumable``: whether parts may run again on kept values: no node changed one in place.
    ``outputs``: the leaves of the result. ``cached_bytes``: what is kept, 0 beyond the limit.
    """

    def __init__(self, plan: Plan, inputs: Sequence[Any], max_cache_bytes: int) -> None:
        self.plan = plan
        self._inputs = inputs
        self._random: dict[fx.Node, list[Tensor]] = {}
        self.is_cached = True
        self.resumable = True
        self.cached_bytes = 0
        self._start()
        with same_randomness():
            self._run_first(max_cache_bytes)
        self.outputs = plan.result(self.registers)

    def visit(self, nodes: Sequence[fx.Node], call: Callable[[fx.Node], None]) -> None:
        """``call(node)`` for each of ``nodes``, the first of its operator's calls.

        Until it returns, :meth:`value` knows the node and what it needs, and :meth:`changed` may
        change it and later ones.
        """
        if self.is_cached:
            for node in nodes:
                call(node)
            return
        wanted = set(nodes)
        self._start()
        for step in self.plan.steps:
            self._store(step, self._computed(step, step.compute, self.registers))
            if step.node in wanted:
                call(step.node)
            self._forget(step)

    def value(self, node: fx.Node) -> Any:
        """The baseline's result of ``node``."""
        return self.registers[self.plan.register(node)]

    def changed(self, changes: Mapping[fx.Node, Change]) -> Sequence[Any] | None:
        """The leaves of the result with the calls at ``changes`` changed; ``None``: the baseline's.

        Random operators draw the numbers that they drew in the baseline.
        """
        registers: Registers = list(self.registers)
        dirty: set[int] = set()
        first = min(self.plan.place[node] for node in changes)
        for step, sources in zip(self.plan.steps[first:], self.plan.sources[first:], strict=True):
            reached = not dirty.isdisjoint(sources)
            change = changes.get(step.node)
            known = self._known[step.register]
            if change is None and known and not reached:
                continue
            compute = step.compute
            if change is not None:
                compute = self._changed_call(change, step, reached)
            value = self._computed(step, compute, registers)
            if known and same_bits(value, self.registers[step.register]):
                value = self.registers[step.register]
            elif change is not None or reached:
                dirty.add(step.register)
            registers[step.register] = value
            for index in step.dead:
                registers[index] = None
        return None if dirty.isdisjoint(self.plan.results) else self.plan.result(registers)

    def _changed_call(self, change: Change, step: Step, reached: bool) -> Compute:
        """The changed call; its unchanged result is the kept one where its operands are."""
        if reached or not self._known[step.register]:
            return lambda registers: change(registers, step.compute)
        kept = self.registers[step.register]
        return lambda registers: change(registers, lambda _: kept)

    def _run_first(self, limit: int) -> None:
        versions: dict[int, int] = {}
        storages: dict[int, int] = {}
        self._note(versions, range(self.plan.size))
        for step, sources in zip(self.plan.steps, self.plan.sources, strict=True):
            before = _random_states()
            self._store(step, self._computed(step, step.compute, self.registers))
            if not all(map(torch.equal, before, _random_states())):
                self._random[step.node] = before
            self.resumable = self.resumable and self._unchanged(versions, sources)
            self._note(versions, (step.register,))
            if self.is_cached and step.node.op != "get_attr":
                storages.update(_storages(self.registers[step.register]))
                self.is_cached = sum(storages.values()) <= limit
                if not self.is_cached:
                    self._forget_all_before(step)
            if not self.is_cached:
                self._forget(step)
        self.cached_bytes = sum(storages.values()) if self.is_cached else 0

    def _note(self, versions: dict[int, int], registers: Sequence[int]) -> None:
        for index in registers:
            value = self.registers[index]
            if isinstance(value, Tensor):
                versions[index] = _version(value)

    def _unchanged(self, versions: Mapping[int, int], registers: Sequence[int]) -> bool:
        values = ((index, self.registers[index]) for index in registers)
        return all(_version(v) == versions[i] for i, v in values if isinstance(v, Tensor))

    def _start(self) -> None:
        self.registers: Registers = self.plan.start(self._inputs)
        self._known = [False] * self.plan.size
        for node in self.plan.inputs:
            self._known[self.plan.register(node)] = True

    def _computed(self, step: Step, compute: Compute, registers: Registers) -> Any:
        try:
            if step.node not in self._random:
                return compute(registers)
            with same_randomness():
                _set_random_states(self._random[step.node])
                return compute(registers)
        except Exception as error:
            self.plan.name_operator(error, step.node, registers)
            raise

    def _store(self, step: Step, value: Any) -> None:
        self.registers[step.register], self._known[step.register] = value, True

    def _forget(self, step: Step) -> None:
        for index in step.dead:
            self.registers[index], self._known[index] = None, False

    def _forget_all_before(self, last: Step) -> None:
        for step in self.plan.steps[: self.plan.place[last.node]]:
            self._forget(step)


def _random_states() -> list[Tensor]:
    """Those of torch on every device; graphs draw no numbers from Python and NumPy."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.extend(torch.cuda.get_rng_state_all())
    return states


def _set_random_states(states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def same_bits(a: Any, b: Any) -> bool:
    """Whether two results are the same in every bit, so that nothing behind them can differ."""
    if isinstance(a, tuple | list):
        pairs = type(a) is type(b) and len(a) == len(b)
        return pairs and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return isinstance(a, int | str | None) and type(a) is type(b) and bool(a == b)
    if a is b:
        return True
    if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
        return False
    if not torch.equal(a, b):
        return False
    bits = _BITS.get(a.dtype)
    return bits is None or torch.equal(a.view(bits), b.view(bits))  # tells 0 from -0


_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def _version(value: Tensor) -> int:
    # an inference tensor counts nothing: changing one in place outside of its mode is an error
    return 0 if value.is_inference() else value._version


def _storages(value: Any) -> dict[int, int]:
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in _tensors(value)
        if tensor.layout == torch.strided
    }


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
