"""What the stages of any model share: the content key, and artefacts kept under it."""

from __future__ import annotations

import platform
import random
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch

from qtune.arith_fast.capability import provenance as cpu_provenance
from qtune.bpu import compiler
from qtune.hbir.module import HbirModule
from qtune.march import as_march, march
from qtune.testing.content import source_digest
from qtune.testing.origin import Origin, mark
from qtune.testing.store import MemoryStore, Store, content_key
from qtune.version import __version__

M = TypeVar("M")

_SEED = 0
_NOT_IN_KEY = frozenset({"model", "threads"})
"""Facts that say where a result came from, but don't change the artefact."""


class BuiltStages(ABC):
    """Stages that are built when first asked for and filed under the hash of ``provenance``."""

    def __init__(self, march: str, store: Store | None) -> None:
        self.march = str(as_march(march))
        self.store: Store = store if store is not None else MemoryStore()

    @property
    @abstractmethod
    def name(self) -> str:
        """The model's name in reports."""

    @property
    @abstractmethod
    def provenance(self) -> dict[str, object]:
        """What the artefacts were made of and with: plain values by name."""

    @property
    @abstractmethod
    def qat_bc(self) -> HbirModule:
        """The fake-quant HBIR module."""

    @cached_property
    def key(self) -> str:
        """Hash of everything the artefacts depend on; an edited forward gives another key."""
        facts = self.provenance.items()
        return content_key({name: value for name, value in facts if name not in _NOT_IN_KEY})

    @cached_property
    def quantized_bc(self) -> HbirModule:
        """The integer HBIR module."""
        return self._module("quantized.bc", lambda: compiler.convert(self.qat_bc, self.march))

    @cached_property
    def hbm(self) -> compiler.Hbm:
        """The compiled program; in a temporary folder where the store can't keep it."""

        def compile_aside() -> compiler.Hbm:
            folder = tempfile.mkdtemp(prefix="qtune-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            made = compiler.compile(self.quantized_bc, Path(folder) / "model.hbm", self.march)
            return cast(compiler.Hbm, made)  # what the suffix .hbm gives

        def save(made: compiler.Hbm, partial: Path) -> object:
            return shutil.copyfile(made.path, partial)

        def load(path: Path) -> compiler.Hbm:
            return compiler.Hbm(path, self.march)

        made = self.store.get(self.key, "model.hbm", compile_aside, save, load)
        kept = self.store.path(self.key, "model.hbm")
        found = made if kept is None or not kept.exists() else load(kept)
        return self._mark(found, "model.hbm")

    def _module(self, name: str, build: Callable[[], HbirModule]) -> HbirModule:
        with march(self.march):
            module = self.store.get(self.key, name, build, compiler.save, compiler.load)
        return self._mark(module, name)

    def _mark(self, model: M, name: str) -> M:
        path = self.store.path(self.key, name)
        where = None if path is None else str(path)
        return mark(model, Origin(self.name, where, self.provenance, self._sources()))

    def _sources(self) -> Mapping[str, str]:
        """The line of code of each operator, where known."""
        return {}


def environment() -> dict[str, object]:
    """Versions and machine: what artefacts are made with."""
    return {
        "qtune": __version__,
        "qtune_source": source_digest(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "onnx": version("onnx"),
        "onnx_ir": version("onnx-ir"),
        **cpu_provenance(),
    }


@contextmanager
def seeded(seed: int = _SEED) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators; restore them after the block."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
