"""A model in all its stages, each built when first asked for, kept under its content's hash."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qtune import modes
from qtune.capture.inputs import Inputs, as_inputs, batch_to_inputs, naming
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.march import march
from qtune.nn.float_mode import undone_on_error
from qtune.nn.prepared import PreparedModel
from qtune.prepare.rundir import run_files_in, write_run_files
from qtune.qconfig.plan import OpQuantPlan, PortPlan
from qtune.quantization import FakeQuantState, PrepareMethod, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export, pre_export
from qtune.report.progress import progress
from qtune.testing.built_stages import BuiltStages, environment, seeded
from qtune.testing.content import digest, model_digest
from qtune.testing.origin import Origin, mark, sources_of
from qtune.testing.store import Store

Factory = nn.Module | Callable[[], nn.Module]


class Stages(BuiltStages):
    """``float, calib, pre_export, qat_bc, quantized_bc, hbm`` of one model.

    ``factory``: the float module (it is copied), or a callable that makes it. ``calibration``: an
    iterable of inputs, or a callable that gives one; each item is a tensor (one argument), a tuple
    (positional arguments) or ``qtune.Inputs``. Both callables run with the random generators of
    Python, NumPy and torch seeded to 0, so that all processes make the same model.
    ``qconfig_setter`` and ``method`` as for ``prepare``. ``example_inputs`` defaults to the first
    calibration item. ``store`` keeps what was built. ``name`` is the model's name in reports.

    What is built is filed under the content of model, configuration, data and versions (``key``),
    taken together in ``provenance``.
    """

    def __init__(
        self,
        factory: Factory,
        calibration: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        march: str,
        qconfig_setter: Any = None,
        method: PrepareMethod = PrepareMethod.JIT_STRIP,
        example_inputs: Any = None,
        name: str | None = None,
        store: Store | None = None,
    ) -> None:
        self._factory = factory
        self._calibration = calibration
        self._setter = qconfig_setter
        self._method = method
        self._example = example_inputs
        self._name = name
        super().__init__(march, store)

    def __repr__(self) -> str:
        return f"Stages({self._name or self._factory!r}, march={self.march!r})"

    @cached_property
    def float(self) -> nn.Module:
        """The float model, in eval mode."""
        given = self._factory
        if isinstance(given, nn.Module):
            made = copy.deepcopy(given)
        elif callable(given):
            with seeded():
                made = given()
        else:
            made = given
        if not isinstance(made, nn.Module):
            raise ArgumentError(
                "Stages: expected a torch.nn.Module, or a callable that makes one, as factory; got "
                f"{type(made).__module__}.{type(made).__qualname__}"
            )
        return mark(made.eval(), Origin(self._name or type(made).__name__))

    @property
    def name(self) -> str:
        """The model's name in reports."""
        return self._name or type(self.float).__name__

    @cached_property
    def batches(self) -> list[Inputs]:
        """The calibration data."""
        with seeded():
            given = self._calibration() if callable(self._calibration) else self._calibration
            items: Any = [given] if isinstance(given, Tensor | Inputs) else given
            if not isinstance(items, Iterable):
                raise ArgumentError(
                    "Stages: calibration must be an iterable of inputs, or a callable that gives "
                    f"one, but got {items!r} (type={type(items).__name__})"
                )
            batches = [
                batch_to_inputs(item, self.float, index, "Stages: calibration", ArgumentError)
                for index, item in enumerate(items)
            ]
        if not batches:
            raise ArgumentError("Stages: the calibration data is empty; give at least one batch")
        return batches

    @property
    def example_inputs(self) -> Inputs:
        """What the model was prepared with."""
        if self._example is None:
            return self.batches[0]
        return as_inputs(self._example, "Stages: example_inputs", ArgumentError)

    @cached_property
    def _prepared(self) -> tuple[PreparedModel, str]:
        """The prepared model, which ``calib`` calibrates, and the digest of what it was before."""
        with march(self.march), run_files_in(None):
            model = prepare(self.float, self.example_inputs, self._setter, self._method)
        return model, model_digest(model)

    @property
    def prepared(self) -> PreparedModel:
        """The prepared model, which ``calib`` calibrates and returns."""
        return self._prepared[0]

    @cached_property
    def provenance(self) -> dict[str, object]:
        """What the artefacts were made of and with: plain values by name."""
        return {
            "model": self.name,
            "content": self._prepared[1],
            "qconfig": self._qconfig_digest(),
            "march": self.march,
            "method": str(self._method),
            "qat_mode": str(modes.get_qat_mode()),
            "consistency_level": str(modes.get_consistency_level()),
            "example_inputs": digest(self.example_inputs),
            "calibration": digest(self.batches),
            **environment(),
        }

    def _qconfig_digest(self) -> str:
        """What every operator was to get: the same rules, said in another way, are the same."""
        resolution = self.prepared.resolution
        plans = {} if resolution is None else resolution.plans
        return digest({name: _without_rules(plan) for name, plan in plans.items()})

    @cached_property
    def calib(self) -> nn.Module:
        """The calibrated model, in eval mode and VALIDATION state."""
        state = self.store.get(
            self.key, "calib.pt", self._calibrated_state, torch.save, _load_state
        )
        model = self._prepared[0]
        model.load_state_dict(state)
        set_fake_quantize(model.eval(), FakeQuantState.VALIDATION)
        return self._mark(model, "calib.pt")

    def _calibrated_state(self) -> dict[str, Tensor]:
        model = self._prepared[0]
        with undone_on_error(model), torch.no_grad(), march(self.march):
            set_fake_quantize(model.eval(), FakeQuantState.CALIBRATION)
            for index, batch in enumerate(progress(self.batches, "calibrate", unit="batch")):
                with naming(f"batch {index} of the calibration", batch):
                    model(*batch.args, **batch.kwargs)
        kept = self.store.path(self.key, "prepare")
        with run_files_in(kept):
            write_run_files(model, self.example_inputs)
        state: dict[str, Tensor] = model.state_dict()
        return state

    @cached_property
    def pre_export(self) -> nn.Module:
        """The calibrated model with its look-up tables in fixed point."""
        with march(self.march):
            exportable: nn.Module = pre_export(self.calib)
        return self._mark(exportable, "calib.pt")

    @cached_property
    def qat_bc(self) -> HbirModule:
        """The fake-quant HBIR module."""
        return self._module("qat.bc", lambda: export(self.pre_export, self.example_inputs))

    def _sources(self) -> Mapping[str, str]:
        return sources_of(self._prepared[0])


def _without_rules(plan: OpQuantPlan) -> OpQuantPlan:
    """What an operator gets, not who said so."""

    def bare(port: PortPlan | None) -> PortPlan | None:
        return None if port is None else dataclasses.replace(port, rule="")

    inputs = {index: dataclasses.replace(port, rule="") for index, port in plan.inputs.items()}
    return dataclasses.replace(
        plan, output=bare(plan.output), weight=bare(plan.weight), inputs=inputs
    )


def _load_state(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    return state
