"""Inputs from a factory, a file, or a random generator, as calls of the model."""

from __future__ import annotations

import inspect
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qtune.analysis.finding import call_of
from qtune.capture.inputs import Inputs
from qtune.capture.interface import signature_of
from qtune.cli.files import safe_load
from qtune.cli.outcome import InputError
from qtune.cli.sources import called, load_object
from qtune.errors import ArgumentError, kind_of
from qtune.onnx_debug.data import CalibrationDataSet
from qtune.testing.built_stages import seeded
from qtune.testing.onnx_inputs import ports_in

_END = object()
RANDOM = "--random"
FILES = (".pt", ".pth", ".npy", ".npz")


@dataclass(frozen=True, slots=True)
class Data:
    """Items that can be gone through several times; ``text`` says what they are.

    ``open`` gives a fresh iterable; of it at most ``steps`` items are taken. Tensors and dicts of
    tensors at its top are cut into items of ``batch`` samples.
    """

    option: str
    text: str
    open: Callable[[], Any]
    steps: int | None
    batch: int
    seed: int

    def calls(self, model: Any) -> Iterator[Inputs]:
        """The call of ``model`` that each item stands for.

        Random numbers are those of ``seed``. Raises ``InputError`` for an item that forward does
        not take.
        """
        draws = _Draws(self.seed)
        with draws:
            items = iter(_items(self.open(), self.batch, self.option))
        for index in itertools.count() if self.steps is None else range(self.steps):
            with draws:
                item = next(items, _END)
            if item is _END:
                return
            call = _by_name(item, model) if isinstance(item, Mapping) else item
            inputs = self._call(model, call, index)
            self._check_width(inputs, model, index)
            yield inputs

    def _call(self, model: Any, item: Any, index: int) -> Inputs:
        try:
            return call_of(model, item, index, self.option, InputError)
        except InputError as error:
            if self.option != RANDOM:
                raise
            raise InputError(_other_shapes([arg.shape for arg in item.args], model)) from error

    def _check_width(self, inputs: Inputs, model: Any, index: int) -> None:
        """``InputError`` for float64 data, NumPy's default, where the model computes in float32."""
        is_double = any(isinstance(a, Tensor) and a.dtype == torch.float64 for a in inputs.args)
        weights = model.parameters() if is_double and isinstance(model, nn.Module) else ()
        if any(weight.dtype == torch.float32 for weight in weights):
            raise InputError(
                f"{self.option}: item {index} of {self.text} is float64 and the model float32; "
                "give the data as float32"
            )

    def all_calls(self, model: Any) -> list[Inputs]:
        """All calls; ``InputError`` if there is none."""
        found = list(self.calls(model))
        if not found:
            raise InputError(f"{self.option}: {self.text} gives no item")
        return found


class _Draws:
    """Random generators of Python, NumPy and torch that are set aside between uses.

    What a data source draws depends on the seed alone, not on what is computed between its items.
    """

    def __init__(self, seed: int) -> None:
        self._outside: Any = None
        with seeded(seed):
            self._own = _states()

    def __enter__(self) -> None:
        self._outside = _states()
        _set_states(self._own)

    def __exit__(self, *raised: object) -> None:
        self._own = _states()
        _set_states(self._outside)


def _states() -> tuple[Any, Any, Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_states(states: tuple[Any, Any, Tensor]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def source(spec: str, option: str, *, steps: int | None, batch: int, seed: int) -> Data:
    """The data that ``spec`` names: a file, or an object of the user."""
    if Path(spec).suffix in FILES:
        content = _read(Path(spec), option)
        return Data(option, spec, lambda: content, steps, batch, seed)
    if Path(spec).is_dir():
        return Data(option, spec, lambda: _folder_items(Path(spec), option), steps, batch, seed)
    given = load_object(spec, option)
    if isinstance(given, Tensor | Mapping | list | tuple) or not callable(given):
        return Data(option, spec, _repeatable(given, spec, option, steps), steps, batch, seed)
    return Data(option, spec, lambda: called(given, spec, option), steps, batch, seed)


def _folder_items(folder: Path, option: str) -> Iterator[dict[str, Tensor]]:
    """The items of a folder ``<input name>/<i>.npy`` as dicts by input name."""
    try:
        for item in CalibrationDataSet(folder, ports_in(folder)):
            yield {name: torch.from_numpy(array) for name, array in item.items()}
    except ArgumentError as error:
        raise InputError(f"{option}: {error}") from None


def random_source(shapes: Iterable[tuple[int, ...]], steps: int, seed: int) -> Data:
    """Normal random numbers: ``steps`` calls with one tensor per shape."""
    sizes = list(shapes)
    text = f"random numbers, {steps} times {', '.join(map(_spelled, sizes))}"

    def draw() -> list[Inputs]:
        return [Inputs(*(torch.randn(size) for size in sizes)) for _ in range(steps)]

    return Data(RANDOM, text, draw, steps, 1, seed)


def _spelled(shape: Sequence[int]) -> str:
    """A shape as ``--random`` takes it."""
    return "x".join(map(str, shape))


def _other_shapes(shapes: Sequence[Sequence[int]], model: Any) -> str:
    """Forward takes another number of arguments than there are shapes."""
    text = (
        f"{RANDOM}: {','.join(map(_spelled, shapes))} are the shapes of {len(shapes)} arguments, "
        f"but forward takes {_signature(model)}; give one shape for each of its arguments"
    )
    if all(len(shape) == 1 for shape in shapes):  # one shape, with commas between its sizes
        sizes = _spelled([shape[0] for shape in shapes])
        text += f"; the shape of one tensor has x between its sizes: {sizes}"
    return text


def _repeatable(given: Any, spec: str, option: str, steps: int | None) -> Callable[[], Any]:
    """A way to go through ``given`` again and again; what can be read only once is kept."""
    if not isinstance(given, Iterable):
        raise InputError(
            f"{option}: {spec} is {kind_of(given)}; expected an iterable of inputs, or a "
            "callable that returns one"
        )
    kept = list(itertools.islice(given, steps)) if iter(given) is given else given
    return lambda: kept


def _items(given: Any, batch: int, option: str) -> Iterable[Any]:
    if isinstance(given, Tensor):
        return _cut({"": given}, batch, option, lambda part: part[""])
    if isinstance(given, Mapping):
        return _cut(given, batch, option, dict)
    if not isinstance(given, Iterable):
        raise InputError(f"{option}: expected an iterable of inputs but got {kind_of(given)}")
    return given


def _cut(
    parts: Mapping[str, Any], batch: int, option: str, form: Callable[[dict[str, Tensor]], Any]
) -> list[Any]:
    """Items of ``batch`` samples along the first dimension of all tensors."""
    tensors = [value for value in parts.values() if isinstance(value, Tensor)]
    counts = {tuple(value.shape[:1]) for value in tensors}
    if len(tensors) < len(parts) or len(counts) != 1 or () in counts:
        came = {n: tuple(getattr(v, "shape", ())) or type(v).__name__ for n, v in parts.items()}
        rule = "a dict must hold tensors with the same number of samples in their first dimension"
        if "" in parts:
            rule, came = "a tensor must have a first dimension, of samples", {"shape": ()}
        raise InputError(f"{option}: {rule}, but got {came}")
    ((count,),) = counts
    return [
        form({name: value[start : start + batch] for name, value in parts.items()})
        for start in range(0, count, batch)
    ]


def _by_name(item: Mapping[str, Any], model: Any) -> Any:
    """The arguments of forward that the dict names; others are labels. Else the dict itself."""
    signature = _signature(model)
    names = set() if signature is None else set(signature.parameters) & set(item)
    return Inputs(**{name: item[name] for name in item if name in names}) if names else item


def _signature(model: Any) -> inspect.Signature | None:
    """Of forward, also where ``model`` is its recording; ``None`` where nothing is known."""
    recorded: inspect.Signature | None = getattr(model, "signature", None)
    return signature_of(model) if recorded is None and isinstance(model, nn.Module) else recorded


def _read(path: Path, option: str) -> Any:
    if path.suffix in (".pt", ".pth"):
        return safe_load(path, option)
    if not path.is_file():
        raise InputError(f"{option}: there is no file {path}")
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return torch.from_numpy(content)
        return {name: torch.from_numpy(content[name]) for name in content.files}
    except (ValueError, TypeError, OSError) as error:
        raise InputError(f"{option}: {path} can't be read: {error}") from error
