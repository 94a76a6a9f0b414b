"""``PreparedModel``: what ``prepare`` returns; calibrated, trained, exported."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import fx

from qtune.capture.branches import is_aside
from qtune.capture.graph import GraphModel
from qtune.capture.source import call_site
from qtune.modes import QATMode
from qtune.nn.first_training import note_first_training
from qtune.nn.float_graph import FloatGraph
from qtune.nn.float_mode import not_observing
from qtune.nn.preserved import OfFloatClass
from qtune.nn.qat.op import QATOp
from qtune.nn.untraceable import refuse_trace_of_prepared
from qtune.qconfig.plan import Resolution
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.scope import forward_scope
from qtune.quantizers.uncompiled import runs_eagerly

_LEVEL = "consistency_level"
_MODE = "qat_mode"
_WRAPPED = "module."
"""What DataParallel and DistributedDataParallel put before every name of a state."""
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

    @classmethod
    def of(cls, meta: Mapping[str, Any], reason: str) -> FloatOp:
        """From the meta data of the operator's node."""
        source, scope = (str(meta.get(key) or "") for key in ("source", "scope"))
        return cls(meta["name"], meta["op"], reason, source, scope)

    @property
    def call_site(self) -> str:
        """`` (model.py:12, in layer1)`` for messages, ``""`` where nothing is known."""
        return call_site({"source": self.source, "scope": self.scope})


@dataclass(frozen=True, slots=True)
class UnfusedOps:
    """Operators that form a fusible pattern and were left apart, and why."""

    names: tuple[str, ...]
    reason: str


class PreparedModel(OfFloatClass):
    """A graph of :class:`~qtune.nn.qat.op.QATOp` modules, with the reports of ``prepare``.

    ``float_ops``: what stays float. ``unfused``: patterns that were not fused. ``resolution``: how
    every dtype was decided. ``march``: the march it was prepared for. ``consistency_level``: the
    level it was prepared with (numerics.md section 4), ``None`` where none was set. ``qat_mode``:
    how it treats batch norms behind a GEMM. ``call_names``: operators of functions by the identity
    of the call, in graphs of several branches and with dynamic blocks.
    """

    float_ops: tuple[FloatOp, ...] = ()
    unfused: tuple[UnfusedOps, ...] = ()
    resolution: Resolution | None = None
    march: str = ""
    consistency_level: int | None = None
    qat_mode: QATMode = QATMode.FuseBN
    _has_trained: bool = False
    call_names: Mapping[Any, str] = MappingProxyType({})
    float_graph: FloatGraph | None = None

    @classmethod
    def of(cls, graph: GraphModel) -> PreparedModel:
        """The prepared form of a graph; takes over its modules."""
        model = cls.__new__(cls)
        model.__dict__ = graph.__dict__
        return model

    @runs_eagerly
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph. All calls of one fake-quantize in it are one batch to its observer.

        Raises ``NotCalibratedError`` with the names of all fake-quantizes that had to quantize and
        never saw data. The first training run says in the log if it is one by accident.
        """
        refuse_trace_of_prepared(self)
        if self.training and not self._has_trained:
            self._has_trained = True
            note_first_training(self)
        with forward_scope():
            return super().forward(*args, **kwargs)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        with super()._looking(), not_observing(self), forward_scope():
            yield

    def operators(self, *, aside: bool = False) -> Iterator[tuple[fx.Node, QATOp]]:
        """Every call of an operator, in order of execution.

        ``aside``: also the calls of branches that prepare recorded by itself, for training.
        """
        for node in self.graph.nodes:
            if node.op == "call_module" and (aside or not is_aside(node)):
                module = self.get_submodule(str(node.target))
                if isinstance(module, QATOp):
                    yield node, module

    def calls(self, *, parts: bool = False) -> dict[str, int]:
        """How often the user's model calls each operator, in order of execution.

        Of several branches the one counts that calls it most. The steps of one recurrent layer are
        one call: prepare unrolled it over the same parts; with ``parts`` each counts.
        """
        found: dict[str, dict[str, fx.Node]] = {}
        for node, op in self.operators():
            call = node.name if parts else node.meta.get(ORIGIN_CALL, node.name)
            found.setdefault(op.name, {})[call] = node
        paths = [branch.members(self.graph) for branch in self.graph_branches]
        paths = paths or [set(self.graph.nodes)]
        return {
            name: max(sum(node in own for node in calls.values()) for own in paths)
            for name, calls in found.items()
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """torch's own, with a hint where the state belongs to another model or another level."""
        added = self._without_scale(state_dict)
        if added and not strict:
            _log.warning("load_state_dict: %s", added)
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except RuntimeError as error:
            raise RuntimeError(
                f"{error}\n\t{added}{_about_wrapping(self, state_dict)}This model was made by "
                "prepare: its state also holds the fake-quantizes. Load states of models prepared "
                "from the same float model with the same qconfig; load float weights into the "
                "float model, before prepare."
            ) from None

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        *args: Any,
    ) -> None:
        """torch's own, for this model alone or inside another one (DistributedDataParallel)."""
        self._check_level(local_metadata)
        self._check_mode(local_metadata)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *args)
        if prefix == _WRAPPED and not state_dict:  # torch gives the entries with this prefix only
            _log.warning(
                "load_state_dict: nothing of this state begins with 'module.'. A state saved from "
                "the model itself is loaded into it, not into what wraps it: "
                "ddp_model.module.load_state_dict(state)"
            )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """torch's own; its metadata hold the consistency level and the QAT mode."""
        state = super().state_dict(*args, **kwargs)
        metadata = getattr(state, "_metadata", {})
        facts = metadata.get(kwargs.get("prefix", "")[:-1], {})
        facts.update({_LEVEL: self.consistency_level, _MODE: str(self.qat_mode)})
        return state

    def _without_scale(self, state_dict: Mapping[str, Any]) -> str:
        """What to say where a state has scales, but not for all fake-quantizes of the model."""
        own = {name for name, m in self.named_modules() if isinstance(m, FakeQuantize)}
        missing = [name for name in own if f"{name}.observed" not in state_dict]
        if not missing or len(missing) == len(own):
            return ""
        paths = (path for path, m in self.named_modules() if isinstance(m, QATOp))
        owners = [p for p in paths if any(name.startswith(f"{p}.") for name in missing)]
        return (
            "no scale in this state for operators added after the calibration, or quantized since "
            f"then: {', '.join(owners)}. Calibrate the model as it is now. "
        )

    def _check_level(self, facts: Mapping[str, Any]) -> None:
        """Say in the log that a state of another level is not enough for levels 1 to 4."""
        trained = facts.get(_LEVEL, self.consistency_level)
        if trained == self.consistency_level or not (trained or self.consistency_level):
            return
        _log.warning(
            "load_state_dict: this state was trained on consistency level %s, the model is on %s: "
            "its scales follow its own level. Levels 1 to 4 need retraining",
            "unset" if trained is None else trained,
            "unset" if self.consistency_level is None else self.consistency_level,
        )

    def _check_mode(self, facts: Mapping[str, Any]) -> None:
        """Refuse scales of weights that belong to another QAT mode; the names would not tell."""
        mode = facts.get(_MODE, str(self.qat_mode))
        if mode == self.qat_mode or all(op.kept is None for _, op in self.operators()):
            return
        raise RuntimeError(
            f"load_state_dict: this state comes from QAT mode {mode}, the model was prepared in "
            f"{self.qat_mode}: the scales of its weights mean something else there. Prepare the "
            f"model with set_qat_mode({mode!r}), or calibrate this one"
        )


def _is_wrapped(state_dict: Mapping[str, Any]) -> bool:
    """Whether a state was saved from a model inside DistributedDataParallel or DataParallel."""
    return bool(state_dict) and all(name.startswith(_WRAPPED) for name in state_dict)


def _about_wrapping(model: PreparedModel, state_dict: Mapping[str, Any]) -> str:
    """What to say where the names of a state begin with ``module.`` and those of a model don't."""
    own = (name for name, _ in model.named_parameters())
    if not _is_wrapped(state_dict) or any(name.startswith(_WRAPPED) for name in own):
        return ""
    return (
        "This state was saved from DistributedDataParallel or DataParallel: save "
        "ddp_model.module.state_dict(), or take the prefix off with torch.nn.modules.utils."
        "consume_prefix_in_state_dict_if_present(state, 'module.'). "
    )
