"""``QConfig``: the fake-quantize constructors of an operator's ports, and ready-made ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from qtune.dtype import FloatDType, QuantDType, qint8
from qtune.errors import QconfigError
from qtune.qconfig.dtypes import Float, port_dtype
from qtune.quantizers.constructor import Constructor
from qtune.quantizers.fake_cast import FakeCast
from qtune.quantizers.fake_quantize import FakeQuantize
from qtune.quantizers.fixed import FixedScaleObserver
from qtune.quantizers.lsq import _LearnableFakeQuantize
from qtune.quantizers.observer import (
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    Observer,
)
from qtune.quantizers.observers import OBSERVERS
from qtune.quantizers.pact import PACTFakeQuantize

FakeQuantizeConstructor = Callable[..., Any]
"""Builds a FakeQuantize, or a FakeCast for float16."""

WEIGHT_AVERAGING = 1.0
"""Weights are known whole at every step, so their range is taken as it is, not averaged."""

FAKE_QUANTS: Mapping[str, type[FakeQuantize]] = MappingProxyType(
    {"fake_quant": FakeQuantize, "lsq": _LearnableFakeQuantize, "pact": PACTFakeQuantize}
)
"""Class of each name that ``get_default_qconfig`` takes."""


@dataclass(frozen=True, slots=True, init=False)
class QConfig:
    """How the ports of an operator are quantized.

    Each of ``input``, ``weight`` and ``output`` is ``None`` or builds a ``FakeQuantize``
    (``FakeQuantize.with_args(...)``). ``activation`` is the old name of ``output``. Without an
    ``output`` a GEMM gives its high-precision result and any other operator stays float; without
    a ``weight`` an operator that has one stays float; without an ``input`` operands come as their
    producers give them. Calling a qconfig returns it.
    """

    input: FakeQuantizeConstructor | None
    weight: FakeQuantizeConstructor | None
    output: FakeQuantizeConstructor | None

    def __init__(
        self,
        input: FakeQuantizeConstructor | None = None,
        weight: FakeQuantizeConstructor | None = None,
        output: FakeQuantizeConstructor | None = None,
        *,
        activation: FakeQuantizeConstructor | None = None,
    ) -> None:
        if output is not None and activation is not None:
            raise QconfigError("QConfig: activation is the old name of output; give one of them")
        ports = {"input": input, "weight": weight, "output": output or activation}
        for port, constructor in ports.items():
            if constructor is not None and not callable(constructor):
                raise QconfigError(
                    f"QConfig: {port} must be None or build a FakeQuantize, for example "
                    f"FakeQuantize.with_args(dtype=qint8), but got {constructor!r}"
                )
            object.__setattr__(self, port, constructor)
        _refuse_one_scale(self.weight)

    @property
    def activation(self) -> FakeQuantizeConstructor | None:
        """The old name of ``output``."""
        return self.output

    def __call__(self) -> QConfig:
        """Itself: the documents write ready-made qconfigs with and without a call."""
        return self


def _refuse_one_scale(weight: FakeQuantizeConstructor | None) -> None:
    """Each operator knows the axis of its output channels, so only -1 would be lost."""
    if isinstance(weight, Constructor) and weight.arguments.get("ch_axis") == -1:
        raise QconfigError(
            "QConfig: weights have one scale per output channel, so ch_axis can't be -1; leave it "
            "out"
        )


def get_qconfig(
    observer: type[Observer] = MinMaxObserver,
    in_dtype: QuantDType | FloatDType | torch.dtype | str | None = None,
    weight_dtype: QuantDType | torch.dtype | str | None = qint8,
    out_dtype: QuantDType | FloatDType | torch.dtype | str | None = qint8,
    fix_scale: bool = False,
) -> QConfig:
    """A qconfig with one observer for inputs and outputs; weights are min-max per channel.

    ``None`` (or ``torch.float32``) leaves the port out; ``torch.float16`` casts (nash-p, -h, -b).
    ``fix_scale`` stops the scales of inputs and outputs after the first batch or the loaded state
    (``averaging_constant`` 0).
    """
    if not (isinstance(observer, type) and issubclass(observer, Observer)):
        raise QconfigError(f"get_qconfig: expected an observer class but got {observer!r}")
    if observer is FixedScaleObserver:
        raise QconfigError(
            "get_qconfig: one fixed scale for every operator makes no sense; give thresholds in "
            "ModuleNameTemplate"
        )
    options: dict[str, Any] = {"averaging_constant": 0} if fix_scale else {}

    def activation(dtype: object, port: str) -> Constructor | None:
        grid = port_dtype(dtype, f"get_qconfig: {port}")
        if isinstance(grid, Float):
            return None
        if isinstance(grid, FloatDType):
            return FakeCast.with_args(dtype=grid)
        return FakeQuantize.with_args(observer=observer, dtype=grid, **options)

    weight = port_dtype(weight_dtype, "get_qconfig: weight_dtype")
    if isinstance(weight, FloatDType):
        raise QconfigError("get_qconfig: weight_dtype is float16; weights are qint8 or qint16")
    return QConfig(
        input=activation(in_dtype, "in_dtype"),
        weight=None if isinstance(weight, Float) else weight_constructor(weight),
        output=activation(out_dtype, "out_dtype"),
    )


def get_default_qconfig(
    activation_fake_quant: str | None = "fake_quant",
    weight_fake_quant: str | None = "fake_quant",
    activation_observer: str | None = "min_max",
    weight_observer: str | None = "min_max",
    activation_qkwargs: Mapping[str, Any] | None = None,
    weight_qkwargs: Mapping[str, Any] | None = None,
) -> QConfig:
    """A qconfig from names. Fake-quantizes: ``fake_quant``, ``lsq``, ``pact``, or ``None`` for
    none (a GEMM then gives its high-precision result); observers: the names of
    ``qtune.quantizers.observers.OBSERVERS``.

    ``activation_qkwargs`` and ``weight_qkwargs`` go to the fake-quantize (``alpha``,
    ``use_grad_scaling``) and its observer (``dtype``, ``scale``, ``averaging_constant``,
    ``is_sync_quantize``); ``observer`` there is a class in place of the named one. Weights have
    one scale per output channel.
    """
    for port, kind, given in (
        ("activation", activation_fake_quant, activation_qkwargs),
        ("weight", weight_fake_quant, weight_qkwargs),
    ):
        if kind is None and given:
            raise QconfigError(
                f"get_default_qconfig: {port}_qkwargs has no effect without {port}_fake_quant; "
                "leave it out"
            )
    weight_options = dict(weight_qkwargs or {})
    if weight_options.pop("qscheme", torch.per_channel_symmetric) != torch.per_channel_symmetric:
        raise QconfigError("get_default_qconfig: weights only support per_channel_symmetric")
    weight_options = {"ch_axis": 0, "averaging_constant": WEIGHT_AVERAGING} | weight_options
    options = dict(activation_qkwargs or {})
    return QConfig(
        weight=_named(weight_fake_quant, weight_observer, weight_options, "weight"),
        output=_named(activation_fake_quant, activation_observer, options, "activation"),
    )


def weight_constructor(dtype: QuantDType) -> Constructor:
    """Min-max per channel, not averaged."""
    return FakeQuantize.with_args(
        observer=MovingAveragePerChannelMinMaxObserver,
        dtype=dtype,
        ch_axis=0,
        averaging_constant=WEIGHT_AVERAGING,
    )


def _named(
    fake_quant: str | None, observer: str | None, options: dict[str, Any], port: str
) -> Constructor | None:
    if fake_quant is None:
        return None
    if fake_quant not in FAKE_QUANTS:
        raise QconfigError(
            f"get_default_qconfig: {port}_fake_quant must be one of {', '.join(FAKE_QUANTS)} or "
            f"None, got {fake_quant!r}"
        )
    if observer is None or observer not in OBSERVERS:
        raise QconfigError(
            f"get_default_qconfig: {port}_observer must be one of {', '.join(OBSERVERS)}, "
            f"got {observer!r}"
        )
    options = {"observer": _observer(observer, options)} | options
    return FAKE_QUANTS[fake_quant].with_args(**options)


def _observer(name: str, options: Mapping[str, Any]) -> type[Observer]:
    """The class of this name; min_max has the classes that the guide prints."""
    if name == "min_max" and "ch_axis" not in options:
        return MovingAverageMinMaxObserver
    if name == "min_max" and options["ch_axis"] != -1:
        return MovingAveragePerChannelMinMaxObserver
    return OBSERVERS[name]
