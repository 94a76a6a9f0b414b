"""Runs the branch of a graph that a call takes, and finds out which one that is on the way.

A model's code is a tree of decisions: two paths are the same up to a condition that came out
differently, which is a guard in both. So the first branch that the arguments allow starts; where
one of its guards fails, the next one goes on from there, if all that ran so far is part of it.
Every operator runs once, whatever was tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from qtune.capture.branches import Branch
from qtune.capture.guards import is_guard
from qtune.capture.program import OnResult, Program, Registers, Step
from qtune.errors import GuardError

_WITHOUT_EFFECT = ("attribute", "guard", "input", "item", "size", "value")
"""Kinds of nodes that a branch may have run before another one goes on."""


class Decided(Exception):  # noqa: N818 - no error: ends a run that only looks for the branch
    """Only ``branch`` is left."""

    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.branch = branch


class Runner:
    """One call of a graph with several branches. ``candidates``: those that its arguments allow,
    each with its program and its inputs. ``failures``: why the others do not fit.
    """

    def __init__(
        self,
        candidates: Sequence[tuple[Branch, Program, Sequence[Any]]],
        failures: dict[int, str],
        on_result: OnResult | None = None,
        *,
        only_decide: bool = False,
    ) -> None:
        self._waiting = list(candidates)
        self._failures = failures
        self._on_result = on_result
        self._only_decide = only_decide
        self._registers: Registers | None = None
        self._done: set[fx.Node] = set()

    def run(self) -> tuple[Branch, Sequence[Any]]:
        """The branch that fits and the leaves of its result. Raises ``GuardError`` if none does."""
        while self._waiting:
            branch, program, inputs = self._waiting.pop(0)
            self._registers = program.start(inputs, self._registers)
            try:
                self._inputs(program, self._registers)
                self._steps(branch, program, self._registers)
            except GuardError as error:
                self._failures[branch.number] = str(error)
                continue
            return branch, program.result(self._registers)
        raise no_branch(self._failures)

    def _inputs(self, program: Program, registers: Registers) -> None:
        for node in program.inputs:
            if node not in self._done and self._on_result is not None:
                program.show(node, registers, self._on_result)
            self._done.add(node)

    def _steps(self, branch: Branch, program: Program, registers: Registers) -> None:
        for step in program.steps:
            if not self._waiting and self._only_decide:
                raise Decided(branch)
            if step.node in self._done:
                continue
            try:
                value = step.compute(registers)
            except Exception as error:
                program.name_operator(error, step.node, registers)
                raise
            if self._on_result is not None:
                value = self._on_result(step.node, value)
            registers[step.register] = value
            self._ran(step)
            if not self._waiting:
                for index in step.dead:
                    registers[index] = None

    def _ran(self, step: Step) -> None:
        """Branches that this step is no part of are out."""
        self._done.add(step.node)
        if not self._waiting or has_no_effect(step.node):
            return
        out = [item for item in self._waiting if step.node not in item[1].members]
        for branch, program, inputs in out:
            self._failures[branch.number] = self._broken_guard(program, inputs)
        self._waiting = [item for item in self._waiting if item not in out]

    def _broken_guard(self, program: Program, inputs: Sequence[Any]) -> str:
        """Why a branch that another one has left behind does not fit."""
        registers = program.start(inputs, list(self._registers or ()))
        for step in program.steps:
            if step.node in self._done:
                continue
            if not has_no_effect(step.node):
                break
            try:
                registers[step.register] = step.compute(registers)
            except GuardError as error:
                return str(error)
        return "another path was taken before"


def has_no_effect(node: fx.Node) -> bool:
    """Whether a node only looks at values that exist."""
    return is_guard(node) or node.meta.get("kind") in _WITHOUT_EFFECT


def no_branch(failures: dict[int, str]) -> GuardError:
    """The error of a call that no branch fits."""
    lines = "\n".join(f"  - example {n}: {text}" for n, text in sorted(failures.items()))
    return GuardError(
        f"none of the {len(failures)} recorded branches fits this call:\n{lines}\n"
        "Record an example that takes this branch too: "
        "example_inputs=[qtune.Inputs(...), qtune.Inputs(...)], one for each branch"
    )
