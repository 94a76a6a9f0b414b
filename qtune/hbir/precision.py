"""``Module.precision_config``: how precisely convert treats single operators."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, MutableMapping

import onnx_ir as ir

from qtune.errors import ArgumentError
from qtune.hbir.builder import META_GROUP, META_OP, META_STAGE, names_of

META_PRECISION = "qtune.precision_config"
"""Of the file: operator name -> PrecisionConfig, JSON."""


class PrecisionConfig(enum.StrEnum):
    """What convert does with an operator.

    ``KEEP_FLOAT``: it computes in float32 between dequantize and quantize, on the CPU, and the
    report lists it. ``HIGH_PRECISION_QPP``: its requantize has 31 bits and is a node of its own, as
    on consistency level 0 (numerics.md section 4), on the marches that have levels. Operators that
    requantize nothing (tables, movement) stay as they are.
    """

    KEEP_FLOAT = "keep_float"
    HIGH_PRECISION_QPP = "high_precision_qpp"


class PrecisionTable(MutableMapping[str, PrecisionConfig]):
    """The choices of a module by operator name; they are kept in the file and read by convert.

    A choice holds for the whole fused group of the operator. Names that the module lacks, other
    values and modules that are converted already raise ``ArgumentError``.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def __getitem__(self, name: str) -> PrecisionConfig:
        return self._read()[name]

    def __setitem__(self, name: str, value: PrecisionConfig) -> None:
        self._check(name)
        if not isinstance(value, PrecisionConfig):
            known = ", ".join(f"PrecisionConfig.{item.name}" for item in PrecisionConfig)
            raise ArgumentError(f"precision_config[{name!r}]: expected {known}, got {value!r}")
        self._write({**self._read(), name: value})

    def __delitem__(self, name: str) -> None:
        found = self._read()
        del found[name]
        self._write(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"PrecisionTable({dict(self)})"

    def groups(self, wanted: PrecisionConfig) -> frozenset[str]:
        """The fused groups for which ``wanted`` was chosen."""
        names = {name for name, value in self._read().items() if value is wanted}
        return frozenset(
            node.metadata_props.get(META_GROUP, node.metadata_props[META_OP])
            for node in self._model.graph
            if META_OP in node.metadata_props and names.intersection(names_of(node))
        )

    def _check(self, name: str) -> None:
        if self._model.metadata_props.get(META_STAGE) != "qat":
            raise ArgumentError(
                f"precision_config[{name!r}]: convert has read it already; set it on the module "
                "that export returned"
            )
        known = {
            item
            for node in self._model.graph
            if META_OP in node.metadata_props
            for item in names_of(node)
        }
        if name not in known:
            raise ArgumentError(
                f"precision_config[{name!r}]: the module has no operator of that name; it has: "
                f"{', '.join(sorted(known))}"
            )

    def _read(self) -> dict[str, PrecisionConfig]:
        table = json.loads(self._model.metadata_props.get(META_PRECISION, "{}"))
        return {name: PrecisionConfig(value) for name, value in table.items()}

    def _write(self, table: dict[str, PrecisionConfig]) -> None:
        text = json.dumps({name: value.value for name, value in table.items()})
        self._model.metadata_props[META_PRECISION] = text
