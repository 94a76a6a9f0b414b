"""The domain's data: schemas and bodies agree, and every body is valid ONNX."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qtune.errors import HbirError
from qtune.hbir import domain
from qtune.hbir.domain import DomainOp, bodies, domain_ops, functions_for, schema


def test_every_operator_has_a_body_that_agrees_with_its_schema():
    assert set(bodies()) == set(domain_ops())


@pytest.mark.parametrize("name", sorted(domain_ops()))
def test_body_is_a_valid_function_and_says_what_it_computes(name):
    context = onnx.checker.C.CheckerContext()
    context.ir_version = domain.IR_VERSION
    context.opset_imports = {"": domain.OPSET, domain.DOMAIN: domain.DOMAIN_VERSION}

    onnx.checker.check_function(domain.body(name), context)

    assert schema(name).doc


def test_bodies_come_with_the_bodies_they_use():
    for name in domain_ops():
        names = [function.name for function in functions_for([name])]
        assert names[-1] == name
        for function in functions_for([name]):
            used = {node.op_type for node in function.node if node.domain == domain.DOMAIN}
            assert used <= set(names[: names.index(function.name)])


def test_unknown_operator_is_named_with_those_that_exist():
    with pytest.raises(HbirError, match="no operator qtune::Nothing; the domain has: "):
        functions_for(["Nothing"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no onnx text", "no ONNX function text"),
        ('<opset_import: ["" : 21], domain: "qtune"> Twice (x) => (z) { z = Add(x, x) }', "differ"),
    ],
)
def test_broken_body_is_named(monkeypatch, text, message):
    monkeypatch.setattr(domain, "domain_ops", lambda: {"Twice": DomainOp("Twice", ("x",))})
    monkeypatch.setattr(domain, "_texts", lambda: {"Twice": ("here", text)})
    with pytest.raises(HbirError, match=f"here: .*Twice.*{message}|{message}.*Twice"):
        domain.body.__wrapped__("Twice")


def test_single_node_model_checks_count_and_attributes():
    name = next(n for n, op in domain_ops().items() if op.attributes)
    arrays = [np.zeros(1, np.float32)] * len(schema(name).inputs)

    with pytest.raises(HbirError, match="takes the attributes"):
        domain.single_node_model(name, arrays, {})
    with pytest.raises(HbirError, match="got 0 arrays"):
        domain.single_node_model(name, [], dict.fromkeys(schema(name).attributes, 0))
