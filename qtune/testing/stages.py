"""A model in all its stages, each built when first asked for, kept under its content's hash."""

from __future__ import annotations

import copy
import hashlib
import platform
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qtune import modes
from qtune.arith_fast.capability import provenance as cpu_provenance
from qtune.bpu import compiler
from qtune.capture.inputs import Inputs, as_inputs
from qtune.capture.structure import flatten
from qtune.errors import ArgumentError
from qtune.hbir.module import HbirModule
from qtune.march import as_march, march
from qtune.quantization import FakeQuantState, prepare, set_fake_quantize
from qtune.quantization.hbdk4 import export, pre_export
from qtune.testing.store import MemoryStore, Store, content_key
from qtune.version import __version__

Factory = nn.Module | Callable[[], nn.Module]


class Stages:
    """``float, calib, pre_export, qat_bc, quantized_bc, hbm`` of one model.

    ``factory``: the float module, or a callable that makes it. ``calibration``: an iterable of
    inputs, or a callable that gives one; each item is a tensor (one argument), a tuple (positional
    arguments) or ``qtune.Inputs``. ``example_inputs`` defaults to the first of them. ``store``
    keeps what was built. ``name`` is the model's name in reports.
    """

    def __init__(
        self,
        factory: Factory,
        calibration: Iterable[Any] | Callable[[], Iterable[Any]],
        *,
        march: str,
        qconfig_setter: Any = None,
        example_inputs: Any = None,
        name: str | None = None,
        store: Store | None = None,
    ) -> None:
        self._factory = factory
        self._calibration = calibration
        self._setter = qconfig_setter
        self._example = example_inputs
        self._name = name
        self.march = str(as_march(march))
        self.store: Store = store if store is not None else MemoryStore()

    @cached_property
    def float(self) -> nn.Module:
        """The float model, in eval mode."""
        made = self._factory if isinstance(self._factory, nn.Module) else self._factory()
        if not isinstance(made, nn.Module):
            raise ArgumentError(f"Stages: the factory gave {type(made).__name__}, not a nn.Module")
        return self._named(copy.deepcopy(made).eval())

    @property
    def name(self) -> str:
        """The model's name in reports."""
        return self._name or type(self.float).__name__

    @cached_property
    def batches(self) -> list[Inputs]:
        """The calibration data."""
        given = self._calibration() if callable(self._calibration) else self._calibration
        batches = [as_inputs(item) for item in given]
        if not batches:
            raise ArgumentError("Stages: the calibration data is empty; give at least one batch")
        return batches

    @property
    def example_inputs(self) -> Inputs:
        """What the model was prepared with."""
        return self.batches[0] if self._example is None else as_inputs(self._example)

    @cached_property
    def _prepared(self) -> nn.Module:
        with march(self.march):
            return prepare(self.float, self.example_inputs, self._setter)

    @cached_property
    def key(self) -> str:
        """Hash of everything the artefacts depend on; an edited forward gives another key."""
        return content_key(self.provenance)

    @cached_property
    def provenance(self) -> dict[str, object]:
        """What the artefacts were made of and with."""
        prepared = self._prepared
        return {
            "model": self.name,
            "weights": _digest(self.float.state_dict()),
            "structure": _digest_text(_structure(prepared)),
            "march": self.march,
            "qat_mode": str(modes.get_qat_mode()),
            "consistency_level": str(modes.get_consistency_level()),
            "example_inputs": _digest({"": self.example_inputs}),
            "calibration": _digest(dict(enumerate(self.batches))),
            "qtune": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cpu": cpu_provenance(),
        }

    @cached_property
    def calib(self) -> nn.Module:
        """The calibrated model, in eval mode and VALIDATION state."""
        model = self._prepared

        def load(path: Path) -> dict[str, Tensor]:
            state: dict[str, Tensor] = torch.load(path, weights_only=True)
            return state

        state = self.store.get(self.key, "calib.pt", self._calibrated_state, torch.save, load)
        model.load_state_dict(state)
        set_fake_quantize(model.eval(), FakeQuantState.VALIDATION)
        return self._named(model)

    def _calibrated_state(self) -> dict[str, Tensor]:
        model = self._prepared.eval()
        set_fake_quantize(model, FakeQuantState.CALIBRATION)
        with torch.no_grad():
            for batch in self.batches:
                model(*batch.args, **batch.kwargs)
        return model.state_dict()

    @cached_property
    def pre_export(self) -> nn.Module:
        """The calibrated model with its look-up tables in fixed point."""
        return self._named(pre_export(self.calib))

    @cached_property
    def qat_bc(self) -> HbirModule:
        """The fake-quant HBIR module."""
        return self._module("qat.bc", lambda: export(self.pre_export, self.example_inputs))

    @cached_property
    def quantized_bc(self) -> HbirModule:
        """The integer HBIR module."""
        return self._module("quantized.bc", lambda: compiler.convert(self.qat_bc, self.march))

    @cached_property
    def hbm(self) -> Any:
        """The compiled program."""

        def save(module: HbirModule, path: Path) -> None:
            compiler.compile(module, str(path), self.march)

        path = self.store.path(self.key, "model.hbm")
        if path is None:
            raise ArgumentError("Stages.hbm needs a store on disk: pass store=DirectoryStore(...)")
        self.store.get(self.key, "model.hbm", lambda: self.quantized_bc, save, lambda p: p)
        return compiler.Hbm(str(path))

    def _module(self, name: str, build: Callable[[], HbirModule]) -> HbirModule:
        with march(self.march):
            module = self.store.get(
                self.key, name, build, lambda m, path: compiler.save(m, str(path)), compiler.load
            )
        return self._named(module)

    def _named(self, model: Any) -> Any:
        model.qtune_model_name = self.name
        return model


def _structure(prepared: nn.Module) -> str:
    """The graph with every operator's attributes and fake-quantizes, as text."""
    lines = [str(getattr(prepared, "graph", ""))]
    for name, module in prepared.named_modules():
        attrs = getattr(module, "attrs", "")
        lines.append(f"{name} {type(module).__qualname__} {attrs} {module.extra_repr()}")
    return "\n".join(lines)


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(values: Mapping[Any, Any]) -> str:
    """Hash of names, dtypes, shapes and bytes of all tensors inside ``values``."""
    sha = hashlib.sha256()
    for key, value in values.items():
        content = (value.args, value.kwargs) if isinstance(value, Inputs) else value
        leaves, spec = flatten(content)
        sha.update(f"{key} {spec}".encode())
        for leaf in leaves:
            sha.update(_leaf_bytes(leaf))
    return sha.hexdigest()


def _leaf_bytes(leaf: Any) -> bytes:
    if not isinstance(leaf, Tensor):
        return repr(leaf).encode()
    data = leaf.detach().cpu().contiguous()
    head = f"{data.dtype} {tuple(data.shape)}".encode()
    return head + data.flatten().view(torch.uint8).numpy().tobytes() if data.numel() else head
