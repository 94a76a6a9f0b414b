"""The zoos by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from . import module_db_models, own_models, smp_models, timm_models, transformers_models
from .runner import Architecture

ZOOS: Mapping[str, Callable[[], Iterable[Architecture]]] = {
    "own": own_models.architectures,
    "module_db": module_db_models.architectures,
    "timm": timm_models.architectures,
    "smp": smp_models.architectures,
    "transformers": transformers_models.architectures,
}
