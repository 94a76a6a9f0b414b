"""Operators that a user enters into the domain ``qtune``."""

from __future__ import annotations

import pytest

from qtune.errors import HbirError
from qtune.hbir.domain import DomainOp, domain_ops, register_domain_op

BODY = '<opset_import: ["" : 21], domain: "qtune"> Own (x) => (z) { z = Identity (x) }'


def test_taken_name_and_unfitting_body_are_refused_and_leave_nothing() -> None:
    before = dict(domain_ops())
    with pytest.raises(HbirError, match="QAdd is defined twice"):
        register_domain_op(DomainOp("QAdd", ("x",)), BODY)
    with pytest.raises(HbirError, match="body and schema of Own differ"):
        register_domain_op(DomainOp("Own", ("x",)), BODY)
    assert dict(domain_ops()) == before
