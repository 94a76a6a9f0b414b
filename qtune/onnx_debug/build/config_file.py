"""Mappings from JSON and YAML files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qtune.errors import ArgumentError


def read_mapping(path: str | os.PathLike[str], what: str) -> Mapping[str, Any]:
    """The mapping in a .json, .yaml or .yml file."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(
            f"{what}: expected a dict or the path of a JSON or YAML file; got {path!r}"
        )
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{what}: {file} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ArgumentError(f"{what}: {file} is no text in UTF-8") from None
    found = _parsed(file, text, what)
    if not isinstance(found, Mapping):
        raise ArgumentError(f"{what}: {file} holds no mapping of keys to values")
    return found


def _parsed(file: Path, text: str, what: str) -> Any:
    if file.suffix.lower() == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ArgumentError(f"{what}: {file} is no JSON: {error}") from None
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ArgumentError(
            f'{what}: reading {file} needs PyYAML: pip install "qtune[onnx]", or use JSON'
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"{what}: {file} is no YAML: {error}") from None
