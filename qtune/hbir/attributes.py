"""Attributes of nodes as plain Python values, and facts about operators as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir


def node_attributes(node: ir.Node) -> dict[str, Any]:
    """Attributes of ``node``: int, float, str, tuples of them, NumPy arrays for tensors."""
    return {name: _plain(attribute) for name, attribute in node.attributes.items()}


def _plain(attribute: ir.Attr) -> Any:
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.value.numpy()
    if isinstance(attribute.value, (list, tuple)):
        return tuple(attribute.value)
    return attribute.value


def dump_facts(value: Any) -> str:
    """JSON of an operator's canonical attributes or shapes; what JSON lacks becomes its text."""
    return json.dumps(_jsonable(value))


def load_facts(text: str) -> Any:
    """What :func:`dump_facts` wrote; lists come back as tuples."""
    return _tuples(json.loads(text))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_jsonable(item) for item in value]
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
