"""Facade: the setter and its templates, made for ``from ... import *``."""

from qtune.qconfig.setter import QconfigSetter
from qtune.qconfig.templates import ConvDtypeTemplate, MatmulDtypeTemplate, ModuleNameTemplate

__all__ = ["ConvDtypeTemplate", "MatmulDtypeTemplate", "ModuleNameTemplate", "QconfigSetter"]
