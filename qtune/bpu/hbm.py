"""``.hbm`` files: a quantized module with its memory plan and its static estimate, in one zip."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qtune.bpu.estimate import estimate
from qtune.bpu.memory import plan_memory
from qtune.errors import ArgumentError, HbirError
from qtune.hbir.module import Function, HbirModule
from qtune.hbir.serialize import from_bytes
from qtune.version import __version__

SUFFIX = ".hbm"
_MODULE, _MEMORY, _ESTIMATE, _MANIFEST = (
    "module.bc",
    "memory.json",
    "estimate.json",
    "manifest.json",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(module: HbirModule, march: str, desc: str = "") -> bytes:
    """The content of an ``.hbm`` file; equal modules give equal bytes."""
    manifest = {"toolkit_version": __version__, "march": march, "desc": desc}
    parts = {
        _MANIFEST: json.dumps(manifest).encode(),
        _MODULE: module.to_bytes(),
        _MEMORY: json.dumps(plan_memory(module.model.graph).to_dict()).encode(),
        _ESTIMATE: json.dumps(estimate(module.model, march).to_dict()).encode(),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    return buffer.getvalue()


class Hbm:
    """A compiled program. ``hbm[0].feed({name: array})`` runs it on the emulated BPU."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix != SUFFIX:
            raise ArgumentError(f"{self.path}: expected a file with the suffix {SUFFIX}")
        parts = _read(self.path)
        manifest = json.loads(parts[_MANIFEST])
        self.march: str = manifest["march"]
        self.toolkit_version: str = manifest["toolkit_version"]
        self.desc: str = manifest["desc"]
        self.memory: dict[str, Any] = json.loads(parts[_MEMORY])
        self.estimate: dict[str, Any] = json.loads(parts[_ESTIMATE])
        self._module = from_bytes(parts[_MODULE], f"{self.path} ({_MODULE})")

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions."""
        return self._module.functions

    @property
    def graphs(self) -> tuple[Function, ...]:
        """The functions."""
        return self._module.functions

    def __getitem__(self, key: int | str) -> Function:
        return self._module[key]

    def __len__(self) -> int:
        return len(self._module)

    def __iter__(self) -> Iterator[Function]:
        return iter(self._module)

    def __repr__(self) -> str:
        return f"Hbm({str(self.path)!r}, march={self.march})"


def _read(path: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in (_MANIFEST, _MODULE, _MEMORY, _ESTIMATE)}
    except OSError as error:
        raise HbirError(f"{path} can't be read: {error.strerror or error}") from None
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise HbirError(
            f"{path} is no .hbm file or is cut off ({error}); compile the module again"
        ) from None
