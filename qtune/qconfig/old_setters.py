"""The older setters: fixed, by sensitivity, by name; a tuple of them, the first wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qtune.errors import QconfigError
from qtune.qconfig.named import QconfigsByName
from qtune.qconfig.predefined import predefined
from qtune.qconfig.qconfig import QConfig
from qtune.qconfig.rules import Template
from qtune.qconfig.sensitivity import SensitiveOps


@dataclass(frozen=True)
class OldSetter:
    """One setter of the older kind.

    ``reference``: the qconfig of every operator, ``None`` where the setter speaks for some only.
    With a reference, the model's outputs are high precision wherever possible, and a warning tells
    where they can't be.
    """

    name: str
    reference: QConfig | None = None
    templates: tuple[Template, ...] = ()

    def __repr__(self) -> str:
        return self.name


class ModuleNameQconfigSetter(OldSetter):
    """``{name of an operator or module: QConfig}``; ``None`` keeps it float.

    For what single operators need, a fixed scale for example. The most specific name wins.
    """

    def __init__(self, module_name_to_qconfig: Mapping[str, QConfig | None]) -> None:
        name = type(self).__name__
        if not isinstance(module_name_to_qconfig, Mapping):
            raise QconfigError(
                f"{name}: expected a mapping of names to QConfigs but got "
                f"{module_name_to_qconfig!r}"
            )
        super().__init__(name, None, (QconfigsByName(dict(module_name_to_qconfig), name),))


@dataclass(frozen=True)
class SensitiveOpSetter:
    """Called with a sensitivity table and ``topk`` or ``ratio``, gives the setter that makes the
    results of the most sensitive operators int16.
    """

    name: str
    qconfig: str

    def __call__(
        self, table: Any, topk: int | None = None, ratio: float | None = None
    ) -> OldSetter:
        """``table``: what ``QuantAnalysis.sensitivity`` returns for one output, in either form, or
        the path of a saved one, most sensitive first. ``topk``: how many operators; ``ratio``:
        which share of them, rounded up. One of the two.
        """
        if (topk is None) == (ratio is None):
            raise QconfigError(f"{self.name}: give topk or ratio, one of them")
        limit = topk if ratio is None else float(ratio)
        ops = SensitiveOps.of(table, limit, self.name)
        return OldSetter(self.name, None, (ops.named(predefined(self.qconfig)),))

    def __repr__(self) -> str:
        return self.name


def fixed_setter(name: str, qconfig: str) -> OldSetter:
    """A setter of everything by one predefined qconfig."""
    return OldSetter(name, predefined(qconfig))


default_calibration_qconfig_setter = fixed_setter(
    "default_calibration_qconfig_setter", "default_calib_8bit_fake_quant_qconfig"
)
default_qat_qconfig_setter = fixed_setter(
    "default_qat_qconfig_setter", "default_qat_8bit_fake_quant_qconfig"
)
default_qat_fixed_act_qconfig_setter = fixed_setter(
    "default_qat_fixed_act_qconfig_setter", "default_qat_8bit_fixed_act_fake_quant_qconfig"
)
calibration_8bit_weight_16bit_act_qconfig_setter = fixed_setter(
    "calibration_8bit_weight_16bit_act_qconfig_setter",
    "default_calib_8bit_weight_16bit_act_fake_quant_qconfig",
)
qat_8bit_weight_16bit_act_qconfig_setter = fixed_setter(
    "qat_8bit_weight_16bit_act_qconfig_setter",
    "default_qat_8bit_weight_16bit_act_fake_quant_qconfig",
)
qat_8bit_weight_16bit_fixed_act_qconfig_setter = fixed_setter(
    "qat_8bit_weight_16bit_fixed_act_qconfig_setter",
    "default_qat_8bit_weight_16bit_fixed_act_fake_quant_qconfig",
)
sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter = SensitiveOpSetter(
    "sensitive_op_calibration_8bit_weight_16bit_act_qconfig_setter",
    "default_calib_8bit_weight_16bit_act_fake_quant_qconfig",
)
sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter = SensitiveOpSetter(
    "sensitive_op_qat_8bit_weight_16bit_act_qconfig_setter",
    "default_qat_8bit_weight_16bit_act_fake_quant_qconfig",
)
sensitive_op_qat_8bit_weight_16bit_fixed_act_qconfig_setter = SensitiveOpSetter(
    "sensitive_op_qat_8bit_weight_16bit_fixed_act_qconfig_setter",
    "default_qat_8bit_weight_16bit_fixed_act_fake_quant_qconfig",
)
