"""Facade: the setter and its templates, made for ``from ... import *``."""

from qtune.qconfig.saved import LoadFromFileTemplate
from qtune.qconfig.sensitivity import SensitivityTemplate
from qtune.qconfig.setter import QconfigSetter
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate

__all__ = [
    "ConvDtypeTemplate",
    "LoadFromFileTemplate",
    "MatmulDtypeTemplate",
    "ModuleNameTemplate",
    "QconfigSetter",
    "SensitivityTemplate",
]
