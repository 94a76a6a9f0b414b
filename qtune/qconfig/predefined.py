"""Ready-made qconfigs under the toolchain's names (toolchain_facts 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from qtune.dtype import QuantDType, qint8, qint16
from qtune.errors import QconfigError
from qtune.qconfig.qconfig import QConfig, get_default_qconfig

CALIBRATION_OBSERVER = "mse"
"""The plugin guide recommends mse for activations in calibration, min_max for weights."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes one ready-made qconfig: results of ``dtype`` (``None``: high precision) by
    ``observer``; ``averaging_constant`` 0 keeps their scales. Weights: qint8, min_max per channel.
    """

    dtype: QuantDType | None
    observer: str = "min_max"
    fake_quant: str = "fake_quant"
    averaging_constant: float | None = None

    def make(self) -> QConfig:
        """The qconfig."""
        if self.dtype is None:
            return get_default_qconfig(None, activation_observer=None)
        options: dict[str, object] = {"dtype": self.dtype}
        if self.averaging_constant is not None:
            options["averaging_constant"] = self.averaging_constant
        return get_default_qconfig(
            self.fake_quant,
            self.fake_quant,
            activation_observer=self.observer,
            activation_qkwargs=options,
        )


_CALIB8, _CALIB16 = Recipe(qint8, CALIBRATION_OBSERVER), Recipe(qint16, CALIBRATION_OBSERVER)
_HIGH_PRECISION = Recipe(None)

RECIPES: Mapping[str, Recipe] = {
    "default_calib_8bit_fake_quant_qconfig": _CALIB8,
    "default_qat_8bit_fake_quant_qconfig": Recipe(qint8),
    "default_qat_8bit_fixed_act_fake_quant_qconfig": Recipe(qint8, averaging_constant=0),
    "default_qat_8bit_lsq_quant_qconfig": Recipe(qint8, fake_quant="lsq"),
    "default_calib_8bit_weight_16bit_act_fake_quant_qconfig": _CALIB16,
    "default_qat_8bit_weight_16bit_act_fake_quant_qconfig": Recipe(qint16),
    "default_qat_8bit_weight_16bit_fixed_act_fake_quant_qconfig": Recipe(
        qint16, averaging_constant=0
    ),
    "default_calib_16bit_fake_quant_qconfig": _CALIB16,
    "default_qat_16bit_fake_quant_qconfig": Recipe(qint16),
    "default_calib_8bit_weight_32bit_out_fake_quant_qconfig": _HIGH_PRECISION,
    "default_qat_8bit_weight_32bit_out_fake_quant_qconfig": _HIGH_PRECISION,
    "default_calib_out_8bit_fake_quant_qconfig": _HIGH_PRECISION,
    "default_qat_out_8bit_fake_quant_qconfig": _HIGH_PRECISION,
}


@cache
def predefined(name: str) -> QConfig:
    """The ready-made qconfig of this name; ``QconfigError`` for an unknown one."""
    if name not in RECIPES:
        raise QconfigError(f"no qconfig {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name].make()


def get_default_qat_qconfig() -> QConfig:
    """``default_qat_8bit_fake_quant_qconfig``."""
    return predefined("default_qat_8bit_fake_quant_qconfig")


def get_default_qat_out_qconfig() -> QConfig:
    """``default_qat_out_8bit_fake_quant_qconfig``: a high-precision output."""
    return predefined("default_qat_out_8bit_fake_quant_qconfig")


def get_default_calib_qconfig() -> QConfig:
    """``default_calib_8bit_fake_quant_qconfig``."""
    return predefined("default_calib_8bit_fake_quant_qconfig")
