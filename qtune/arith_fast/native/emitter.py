"""A thin writer of LLVM code: loops, vectors, and the few conversions that exact kernels need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qtune.arith_fast.native.engine import Isa, ir_module

Value = Any
"""A value of ``llvmlite.ir``."""


class Code:
    """The code of one kernel ``void name(i64* parameters, i64 first, i64 stop)``.

    Vectors have ``lanes`` elements, whatever their type.
    """

    def __init__(self, name: str, flags: Isa) -> None:
        ir = self.ir = ir_module()
        self.isa, self.lanes, self.name = flags, flags.lanes, name
        self.i1, self.i8, self.i16 = ir.IntType(1), ir.IntType(8), ir.IntType(16)
        self.i32, self.i64 = ir.IntType(32), ir.IntType(64)
        self.f32, self.f64, self.ptr = ir.FloatType(), ir.DoubleType(), ir.PointerType()
        self.module = ir.Module(name)
        kind = ir.FunctionType(ir.VoidType(), [self.ptr, self.i64, self.i64])
        function = ir.Function(self.module, kind, name)
        self._parameters, self.first, self.stop = function.args
        entry = function.append_basic_block("entry")
        self.b = ir.IRBuilder(entry)
        self.b.position_at_end(entry)
        body = function.append_basic_block("body")
        self.b.branch(body)
        self.b.position_at_end(body)

    def done(self) -> Any:
        """Close the function and return the module."""
        self.b.ret_void()
        return self.module

    def number(self, value: int) -> Value:
        """An i64 constant."""
        return self.ir.Constant(self.i64, value)

    def parameter(self, index: int) -> Value:
        """Parameter ``index`` as i64."""
        return self.b.load(self._slot(index), typ=self.i64)

    def pointer(self, index: int) -> Value:
        """Parameter ``index`` as an address."""
        return self.b.load(self._slot(index), typ=self.ptr)

    def _slot(self, index: int) -> Value:
        return self.b.gep(self._parameters, [self.number(index)], source_etype=self.i64)

    def vector(self, element: Any, lanes: int | None = None) -> Any:
        """The vector type of an element type."""
        return self.ir.VectorType(element, lanes or self.lanes)

    def at(self, base: Value, *offsets: Value) -> Value:
        """``base`` plus offsets in bytes."""
        for offset in offsets:
            base = self.b.gep(base, [offset], source_etype=self.i8)
        return base

    def times(self, value: Value, factor: int) -> Value:
        """``value * factor`` of i64."""
        return value if factor == 1 else self.b.mul(value, self.number(factor))

    def load(self, kind: Any, address: Value) -> Value:
        """An unaligned load."""
        return self.b.load(address, typ=kind, align=1)

    def store(self, value: Value, address: Value) -> None:
        """An unaligned store."""
        self.b.store(value, address, align=1)

    def splat(self, value: Value, lanes: int | None = None) -> Value:
        """A vector of one value."""
        kind = self.vector(value.type, lanes)
        undefined = self.ir.Constant(kind, self.ir.Undefined)
        one = self.b.insert_element(undefined, value, self.ir.Constant(self.i32, 0))
        picks = self.ir.Constant(self.vector(self.i32, lanes), [0] * (lanes or self.lanes))
        return self.b.shuffle_vector(one, undefined, picks)

    def constants(self, element: Any, values: Sequence[Any]) -> Value:
        """A constant vector."""
        return self.ir.Constant(self.vector(element, len(values)), list(values))

    def same(self, element: Any, value: Any, lanes: int | None = None) -> Value:
        """A constant vector of one number."""
        return self.constants(element, [value] * (lanes or self.lanes))

    def picked(self, a: Value, b: Value, picks: Sequence[int]) -> Value:
        """Elements of two vectors by position."""
        return self.b.shuffle_vector(a, b, self.constants(self.i32, picks))

    def halves(self, value: Value) -> list[Value]:
        """The lower and the upper half of a vector."""
        count = value.type.count
        return [
            self.picked(value, value, range(start, start + count // 2)) for start in (0, count // 2)
        ]

    def joined(self, parts: Sequence[Value]) -> Value:
        """Two vectors as one."""
        return self.picked(parts[0], parts[1], range(2 * parts[0].type.count))

    def variable(self, initial: Value) -> Value:
        """A place in a register: ``load`` and ``store`` it."""
        with self.b.goto_entry_block():
            place = self.b.alloca(initial.type)
        self.b.store(initial, place)
        return place

    def read(self, place: Value, kind: Any) -> Value:
        """What a variable holds."""
        return self.b.load(place, typ=kind)

    def loop(self, start: Value, stop: Value, step: int, body: Callable[[Value], None]) -> None:
        """``for i in range(start, stop, step): body(i)`` of i64."""
        b, function = self.b, self.b.function
        before = b.block
        head, inner, after = (function.append_basic_block(n) for n in ("head", "inner", "after"))
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(self.i64)
        index.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", index, stop), inner, after)
        b.position_at_end(inner)
        body(index)
        index.add_incoming(b.add(index, self.number(step)), b.block)
        b.branch(head)
        b.position_at_end(after)

    def either(
        self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """``if condition: then() else: otherwise()``."""
        with self.b.if_else(condition) as (first, second):
            with first:
                then()
            with second:
                otherwise()

    def call(self, name: str, kind: Any, *arguments: Value) -> Value:
        """Call an intrinsic of LLVM."""
        found = self.module.globals.get(name)
        if found is None:
            signature = self.ir.FunctionType(kind, [a.type for a in arguments])
            found = self.ir.Function(self.module, signature, name)
        return self.b.call(found, arguments)

    def minimum(self, a: Value, b: Value) -> Value:
        """The smaller of two signed integers (or vectors of them)."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        """The larger of two signed integers (or vectors of them)."""
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def clamped(self, value: Value, low: Value, high: Value) -> Value:
        """A vector of doubles between two others."""
        value = self.b.select(self.b.fcmp_ordered(">", value, low), value, low)
        return self.b.select(self.b.fcmp_ordered(">", value, high), high, value)

    def floor(self, value: Value) -> Value:
        """``floor`` of a vector of doubles."""
        return self.call(f"llvm.floor.v{value.type.count}f64", value.type, value)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """``a * b + c`` of doubles, in one rounding or two: where it is exact, both are equal."""
        name = f"llvm.fmuladd.v{a.type.count}f64"
        return self.call(name, a.type, a, b, c)

    def mask(self, remaining: Value) -> Value:
        """Lanes below ``remaining``."""
        lanes = self.constants(self.i32, range(self.lanes))
        count = self.splat(self.b.trunc(remaining, self.i32))
        return self.b.icmp_signed("<", lanes, count)

    def masked_load(self, kind: Any, address: Value, mask: Value) -> Value:
        """The lanes of ``mask``, zeros elsewhere."""
        one, zero = self.ir.Constant(self.i32, 1), self.ir.Constant(kind, None)
        return self.call(f"llvm.masked.load.{_short(kind)}.p0", kind, address, one, mask, zero)

    def masked_store(self, value: Value, address: Value, mask: Value) -> None:
        """Store the lanes of ``mask``."""
        one = self.ir.Constant(self.i32, 1)
        name = f"llvm.masked.store.{_short(value.type)}.p0"
        self.call(name, self.ir.VoidType(), value, address, one, mask)


def _short(kind: Any) -> str:
    return f"v{kind.count}{kind.element}".replace("double", "f64").replace("float", "f32")
