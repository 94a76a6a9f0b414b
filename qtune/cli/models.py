"""The models that a command works on, from its options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from qtune.bpu import compiler
from qtune.cli.data import Data, random_source, source
from qtune.cli.files import check_keys, load_state
from qtune.cli.options import MARCH_VARIABLE, RANDOM_STEPS
from qtune.cli.outcome import InputError
from qtune.cli.setter import setter_of
from qtune.cli.sources import called, load_object
from qtune.errors import MarchError, kind_of
from qtune.hbir.module import HbirModule
from qtune.march import March, as_march, march
from qtune.nn.prepared import PreparedModel
from qtune.prepare.pipeline import prepare
from qtune.prepare.rundir import run_files_in
from qtune.profiler.observe import Model
from qtune.report.files import write_with
from qtune.testing.built_stages import seeded
from qtune.testing.onnx_model import FLOAT, ONNX, OnnxModel, optimized
from qtune.testing.stages import Stages
from qtune.testing.store import MemoryStore

T = TypeVar("T")
BC = ".bc"
CALIBRATED = "calib.pt"
BC_REFUSES = (
    "checkpoint",
    "calibrated",
    "save_calibrated",
    "calibration_data",
    "qconfig",
    "observer",
    "int16",
    "dtypes",
)
"""Options that a finished file has no use for."""


class CalibratedFiles(MemoryStore):
    """Reads the calibrated state from ``--calibrated`` and writes it to ``--save-calibrated``."""

    def __init__(self, source: str | None, target: str | None) -> None:
        self.source = source
        self.target = target

    def get(
        self,
        key: str,
        name: str,
        build: Callable[[], T],
        save: Callable[[T, Path], object],
        load: Callable[[Path], T],
    ) -> T:
        """The artefact; of the calibrated state the file's, if there is one."""
        if name != CALIBRATED:
            return build()
        state: Any = build() if self.source is None else self._read(Path(self.source))
        if self.target is not None:
            write_with(self.target, lambda path: save(state, path))
        found: T = state
        return found

    def _read(self, path: Path) -> Any:
        return load_state(path, "--calibrated")


class Session:
    """A float model with its data and all its stages, under the options of the command line."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.march = march_of(args.march)
        self.data, self.calibration = data_of(args)
        store = CalibratedFiles(args.calibrated, args.save_calibrated)
        net = _float_model(args.model, args.checkpoint, args.seed)
        self.setter = setter_of(args)
        self.stages = Stages(
            lambda: net,
            lambda: self.calibration.all_calls(net),
            march=self.march.value,
            qconfig_setter=self.setter,
            name=args.model,
            store=store,
        )

    @property
    def calib(self) -> nn.Module:
        """The calibrated model."""
        if self.args.calibrated is not None:
            path = Path(self.args.calibrated)
            prepared = self.stages.prepared
            check_keys(prepared, load_state(path, "--calibrated"), path, "--calibrated")
        return self.stages.calib

    def prepared(self, setter: Any, **options: Any) -> PreparedModel:
        """The float model prepared once more, with another setter; it writes no files."""
        with run_files_in(None):
            model: PreparedModel = prepare(
                self.stages.float, self.stages.batches[0], setter, **options
            )
        return model

    def stage(self, name: str) -> Model:
        """A stage by its name in ``Stages``: float, calib, pre_export, qat_bc, quantized_bc."""
        if name != "float":
            _ = self.calib  # a state that does not fit is found here
        found: Model = getattr(self.stages, name)
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """What a result says about where it comes from."""
        found = {"model": self.args.model, "march": self.march.value, "data": self.data.text}
        if self.args.calibrated is not None:
            found["calibration"] = f"{self.args.calibrated} (a state dict)"
        elif self.calibration is self.data:
            found["calibration"] = "the same data"
        else:
            found["calibration"] = self.calibration.text
        return found


@contextmanager
def session(args: argparse.Namespace) -> Iterator[Session]:
    """A session within which march and threads are those of the options."""
    with torch_threads(args.threads), march(march_of(args.march)):
        yield Session(args)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Within the block torch uses ``count`` threads; as it does where that is ``None``."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def data_of(args: argparse.Namespace) -> tuple[Data, Data]:
    """The data to look at, and those for calibration."""
    how: Mapping[str, Any] = {"steps": args.steps, "batch": args.batch, "seed": args.seed}
    if args.random is not None:
        data = random_source(args.random, args.steps or RANDOM_STEPS, args.seed)
    else:
        data = source(args.data, "--data", **how)
    if args.calibration_data is None:
        return data, data
    return data, source(args.calibration_data, "--calibration-data", **how)


@contextmanager
def bc_models(
    args: argparse.Namespace, specs: Mapping[str, str]
) -> Iterator[tuple[tuple[HbirModule, ...], Data]]:
    """The modules of ``.bc`` files and the data for them; ``InputError`` for other options."""
    given = [name for name in BC_REFUSES if getattr(args, name)]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise InputError(f"{option}: a .bc or .onnx file is taken as it is")
    known = nullcontext() if args.march is None else march(march_of(args.march))
    with torch_threads(args.threads), known:
        modules = tuple(_bc_file(spec, option) for option, spec in specs.items())
        yield modules, data_of(args)[0]


def _bc_file(spec: str, option: str) -> HbirModule:
    if not Path(spec).is_file():
        raise InputError(f"{option}: there is no file {spec}")
    return _onnx_module(spec) if is_onnx(spec) else compiler.load(spec)


def _onnx_module(spec: str) -> HbirModule:
    """An ONNX model in HBIR; a float one with its batch norms fused, as build_model makes it."""
    model = OnnxModel(Path(spec))
    return (optimized(model, {}) if model.kind == FLOAT else model).hbir


def is_bc(spec: str | None) -> bool:
    """Whether ``spec`` is the name of a ``.bc`` or an ``.onnx`` file, which need no factory."""
    return spec is not None and (Path(spec).suffix == BC or is_onnx(spec))


def is_onnx(spec: str | None) -> bool:
    """Whether ``spec`` is the name of an ``.onnx`` file."""
    return spec is not None and Path(spec).suffix == ONNX


def march_of(name: str | None) -> March:
    """The march of ``--march`` or of the environment; ``InputError`` lists the known ones."""
    given = name or os.environ.get(MARCH_VARIABLE)
    known = ", ".join(m.value for m in March)
    if not given:
        raise InputError(
            f"no march is given; pass --march or set {MARCH_VARIABLE}; choose one of: {known}"
        )
    try:
        return as_march(given)
    except MarchError as error:
        where = "--march" if name else MARCH_VARIABLE
        raise InputError(f"{where}: {error}") from error


def _float_model(spec: str, checkpoint: str | None, seed: int) -> nn.Module:
    if is_onnx(spec):
        raise InputError(
            f"MODEL: {spec} is an ONNX file; this needs the float model in torch. For ONNX files: "
            "qtune onnx check, qtune onnx build, qtune compare, qtune sensitivity, qtune init"
        )
    if is_bc(spec):
        raise InputError(f"MODEL: {spec} is a .bc file; this needs the float model")
    made = load_object(spec, "MODEL")
    if not isinstance(made, nn.Module):
        if not callable(made):
            raise InputError(f"MODEL: {spec} is {kind_of(made)}, no model or factory")
        with seeded(seed):
            made = called(made, spec, "MODEL")
    if not isinstance(made, nn.Module):
        raise InputError(f"MODEL: {spec} returned {kind_of(made)}; expected a torch.nn.Module")
    if checkpoint is not None:
        state = load_state(Path(checkpoint), "--checkpoint")
        check_keys(made, state, Path(checkpoint), "--checkpoint")
        made.load_state_dict(state)
    return made
