"""``PreparedModel``: what ``prepare`` returns; calibrated, trained, exported."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from qtune.capture.graph import GraphModel
from qtune.capture.source import call_site
from qtune.nn.qat.op import QATOp
from qtune.qconfig.plan import Resolution
from qtune.quantizers.scope import forward_scope

_LEVEL = "consistency_level"
_log = logging.getLogger(__name__)


OUTSIDE_STUBS = "it lies outside QuantStub and DeQuantStub"
"""Reason of the operators that the user left out of the quantized region."""


ORIGIN_CALL = "origin_call"
"""Key of ``node.meta``: which call of the user's model a part of a decomposed operator comes from.
"""


@dataclass(frozen=True, slots=True)
class FloatOp:
    """An operator on floating data that is not quantized: its name, what it is, and why.

    ``source``: the line of the model that calls it (``model.py:12``); ``scope``: the path of the
    module whose forward does; both ``""`` where that is not known.
    """

    name: str
    op: str
    reason: str
    source: str = ""
    scope: str = ""

    @property
    def call_site(self) -> str:
        """`` (model.py:12, in layer1)`` for messages, ``""`` where nothing is known."""
        return call_site({"source": self.source, "scope": self.scope})


@dataclass(frozen=True, slots=True)
class UnfusedOps:
    """Operators that form a fusible pattern and were left apart, and why."""

    names: tuple[str, ...]
    reason: str


class PreparedModel(GraphModel):
    """A graph of :class:`~qtune.nn.qat.op.QATOp` modules, with the reports of ``prepare``.

    ``float_ops``: what stays float. ``unfused``: patterns that were not fused. ``resolution``: how
    every dtype was decided. ``march``: the march it was prepared for. ``consistency_level``: the
    level it was prepared with (numerics.md section 4), ``None`` where none was set.
    """

    float_ops: tuple[FloatOp, ...] = ()
    unfused: tuple[UnfusedOps, ...] = ()
    resolution: Resolution | None = None
    march: str = ""
    consistency_level: int | None = None

    @classmethod
    def of(cls, graph: GraphModel) -> PreparedModel:
        """The prepared form of a graph; takes over its modules."""
        model = cls.__new__(cls)
        model.__dict__ = graph.__dict__
        return model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph. All calls of one fake-quantize in it are one batch to its observer.

        Raises ``NotCalibratedError`` with the names of all fake-quantizes that had to quantize and
        never saw data.
        """
        with forward_scope():
            return super().forward(*args, **kwargs)

    def operators(self) -> Iterator[tuple[fx.Node, QATOp]]:
        """Every call of an operator, in order of execution."""
        for node in self.graph.nodes:
            if node.op == "call_module":
                module = self.get_submodule(str(node.target))
                if isinstance(module, QATOp):
                    yield node, module

    def calls(self) -> dict[str, int]:
        """How often the user's model calls each operator, in order of execution.

        The steps of one recurrent layer are one call: prepare unrolled it over the same parts.
        """
        found: dict[str, set[str]] = {}
        for node, op in self.operators():
            found.setdefault(op.name, set()).add(node.meta.get(ORIGIN_CALL, node.name))
        return {name: len(calls) for name, calls in found.items()}

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """torch's own, with a hint where the state belongs to another model or another level."""
        self._check_level(state_dict)
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except RuntimeError as error:
            raise RuntimeError(
                f"{error}\n\tThis model was made by prepare: its state also holds the "
                "fake-quantizes. Load states of models prepared from the same float model with "
                "the same qconfig; load float weights into the float model, before prepare."
            ) from None

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """torch's own; its metadata hold the consistency level."""
        state = super().state_dict(*args, **kwargs)
        metadata = getattr(state, "_metadata", {})
        metadata.get(kwargs.get("prefix", "")[:-1], {})[_LEVEL] = self.consistency_level
        return state

    def _check_level(self, state_dict: Mapping[str, Any]) -> None:
        """Say in the log that a state of another level is not enough for levels 1 to 4."""
        facts = getattr(state_dict, "_metadata", {}).get("", {})
        trained = facts.get(_LEVEL, self.consistency_level)
        if trained == self.consistency_level or not (trained or self.consistency_level):
            return
        _log.warning(
            "load_state_dict: this state was trained on consistency level %s, the model is on %s: "
            "its scales follow its own level. Levels 1 to 4 need retraining",
            "unset" if trained is None else trained,
            "unset" if self.consistency_level is None else self.consistency_level,
        )
