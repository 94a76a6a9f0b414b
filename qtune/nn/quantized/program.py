"""``qtune::run_program``: the one torch operator that converted modules run.

A program is an integer HBIR module in bytes (the content of a ``.bc`` file) as a uint8 tensor. The
operator's text ``signature`` says what goes in and out, so that shapes are known without reading
the program, and names the program's content, under which its execution plan is kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from qtune.errors import HbirError, RunError
from qtune.hbir.argument import torch_name
from qtune.hbir.builder import META_DTYPE, META_SCALE
from qtune.hbir.module import Function, HbirModule
from qtune.hbir.serialize import from_bytes

OPERATOR = "qtune::run_program"
_PLANS = 1024
"""Most execution plans that are kept."""
_PORT = re.compile(r"(\w+)\[([\d,]*)\]")


@dataclass(frozen=True, slots=True)
class PortForm:
    """One input or output of a program: ``dtype`` as torch names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def empty(self, device: torch.device | str) -> torch.Tensor:
        """A tensor of this form without content."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device=device)


@dataclass(frozen=True, slots=True)
class ResultGrid:
    """What the codes of an output mean: name of the quantized dtype and scale."""

    dtype: str
    scale: float


@dataclass(frozen=True, slots=True)
class PackedProgram:
    """An operator's program as it is passed to ``qtune::run_program``.

    ``grids``: for each output what its codes mean, ``None`` for plain tensors.
    """

    program: torch.Tensor
    signature: str
    grids: tuple[ResultGrid | None, ...]


def pack(module: HbirModule, name: str) -> PackedProgram:
    """The program of an integer module; ``name`` is the operator's, for messages."""
    data = module.to_bytes()
    function = module[0]
    inputs = "+".join(_form(item) for item in function.model.graph.inputs)
    outputs = "+".join(_form(item) for item in function.model.graph.outputs)
    digest = hashlib.sha256(data).hexdigest()
    signature = f"{name}|{inputs}->{outputs}|{digest}"
    program = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return PackedProgram(program, signature, tuple(map(_grid, function.model.graph.outputs)))


def _form(value: Any) -> str:
    return str(PortForm(torch_name(value.dtype), tuple(value.shape.numpy())))


def _grid(value: Any) -> ResultGrid | None:
    props = value.metadata_props
    if META_SCALE not in props or META_DTYPE not in props or value.dtype.is_floating_point():
        return None
    return ResultGrid(props[META_DTYPE], float(props[META_SCALE]))


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature, read: the operator's name, the forms of inputs and outputs, the digest."""

    name: str
    inputs: tuple[PortForm, ...]
    outputs: tuple[PortForm, ...]
    digest: str

    @classmethod
    def read(cls, text: str) -> Signature:
        """The parts of a signature; ``RunError`` for a text that is none."""
        try:
            name, forms, digest = text.rsplit("|", 2)
            inputs, outputs = forms.split("->")
        except ValueError:
            raise RunError(f"{OPERATOR}: {text!r} is no signature of a program") from None
        return cls(name, _forms(inputs), _forms(outputs), digest)

    def check(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise ``RunError`` where the tensors are not what the program was made for."""
        got = [str(PortForm(str(t.dtype).removeprefix("torch."), tuple(t.shape))) for t in tensors]
        if got != list(map(str, self.inputs)):
            raise RunError(
                f"{self.name}: its program was made for {', '.join(map(str, self.inputs))}, got "
                f"{', '.join(got)}. A traced model runs inputs of the example's shapes; trace it "
                "again with the other ones"
            )


@lru_cache(maxsize=_PLANS)
def _read(text: str) -> Signature:
    return Signature.read(text)


def _forms(text: str) -> tuple[PortForm, ...]:
    found = _PORT.findall(text)
    return tuple(PortForm(kind, tuple(map(int, filter(None, s.split(","))))) for kind, s in found)


@dataclass(frozen=True, slots=True)
class _Key:
    """A program under the digest of its content."""

    digest: str
    program: torch.Tensor = field(compare=False)


@lru_cache(maxsize=_PLANS)
def _function(key: _Key) -> Function:
    """The callable form of a program, checked against its digest when it is first met."""
    data = bytes(key.program.cpu().numpy())
    if hashlib.sha256(data).hexdigest() != key.digest:
        raise HbirError(
            f"{OPERATOR}: the program does not have the content that its signature names; load or "
            "convert the model again"
        )
    return from_bytes(data, "the program of a converted operator")[0]


def module_of(program: torch.Tensor, signature: str) -> HbirModule:
    """The module of a program; it is shared, so copy it before it is changed."""
    return HbirModule(_function(_Key(_read(signature).digest, program)).model)


def run_program(
    inputs: Sequence[torch.Tensor], program: torch.Tensor, signature: str
) -> list[torch.Tensor]:
    """Run a program on plain codes and tensors; the results lie on the device of the inputs."""
    form = _read(signature)
    form.check(inputs)
    function = _function(_Key(form.digest, program))
    results = function.program().run([tensor.detach().cpu() for tensor in inputs])
    device = inputs[0].device if inputs else program.device
    return [results[item.name or ""].to(device) for item in function.model.graph.outputs]


def _shapes_only(
    inputs: Sequence[torch.Tensor], program: torch.Tensor, signature: str
) -> list[torch.Tensor]:
    """The results' shapes and dtypes, for fake and meta tensors."""
    form = _read(signature)
    form.check(inputs)
    return [port.empty(inputs[0].device if inputs else program.device) for port in form.outputs]


torch.library.define(OPERATOR, "(Tensor[] inputs, Tensor program, str signature) -> Tensor[]")
torch.library.impl(OPERATOR, "CompositeExplicitAutograd", run_program)
torch.library.register_fake(OPERATOR, _shapes_only)
