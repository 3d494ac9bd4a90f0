"""Decorators and intrinsics for CPU kernels. Importing this module imports numba.

Kernels accept addresses instead of arrays: one compiled function serves any number of types and widths of ids.
``i32(address, n)`` and similar helpers convert an address to an array. Unsigned indices avoid numba's test for negative
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.typing import Signature
from numba.extending import intrinsic

from manyhop.system.kernel_progress import compiling
from manyhop.system.numba_cache import Cache, NoCache, PartCompiler, progress
from manyhop.system.threads import hold_while_forking

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}

float64, int64, uint64, void = types.float64, types.int64, types.uint64, types.void  # for signatures of kernels

KERNELS: list[Any] = []  # of all modules imported so far

hold_while_forking(global_compiler_lock)


def helper(function: F) -> F:
    """Decorate a function that kernels call. It is compiled as a part of them."""
    made = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=PartCompiler, **_OPTIONS)(function)
    return cast(F, made)


def kernel(signature: str | Signature) -> Callable[[F], F]:
    """Decorate a function that is compiled for one signature, or loaded from the cache, when it is first called.

    It releases the GIL.
    """

    def declare(function: F) -> F:
        return cast(F, _declare(function, signature))

    return declare


def records(dtype: np.dtype[np.void]) -> Any:
    """Return numba's type of a contiguous table of records, for signatures."""
    return numba.from_dtype(dtype)[::1]


def without(function: F, *helpers: Callable[..., Any]) -> F:
    """Return a variant of a kernel for requests that never call these helpers. It compiles faster."""
    full = cast(Any, function)
    variant = "_without_" + "_".join(sorted(h.__name__.strip("_") for h in helpers))
    return cast(F, _declare(_stripped(full.py_func, frozenset(map(id, helpers)), variant, {}), full.signature, variant))


def prepare(*kernels: Callable[..., Any]) -> None:
    """Load kernels, or compile them and show the progress."""
    todo = [cast(Any, k) for k in kernels if not cast(Any, k).overloads]
    progress.expect(sum(not k.is_cached() for k in todo))
    for k in todo:
        k.build()


def _declare(function: Any, signature: str | Signature, variant: str = "") -> Any:
    """Return a dispatcher that compiles its one signature at the first call."""
    dispatcher = numba.njit(**_OPTIONS)(function)
    dispatcher.signature = signature

    @cache
    def types_and_cache() -> tuple[Any, Any]:
        arguments, _ = sigutils.normalize_signature(signature)
        try:
            dispatcher._cache = Cache(function, variant)
        except RuntimeError:  # no directory can be written to
            dispatcher._cache = NoCache(function.__name__)
        return arguments, dispatcher._cache

    def build() -> None:
        with compiling(), global_compiler_lock:  # other threads wait
            if not dispatcher.overloads:
                arguments, on_disk = types_and_cache()
                with nullcontext() if is_cached() else on_disk.alone():
                    dispatcher.compile(arguments)
                dispatcher.disable_compile()
                progress.end()

    def is_cached() -> bool:
        arguments, on_disk = types_and_cache()
        return bool(on_disk.has(arguments, dispatcher.targetctx.codegen()))

    def compile_first(*args: Any, **kwargs: Any) -> Any:
        build()
        return dispatcher  # which numba calls

    dispatcher.build, dispatcher.is_cached, dispatcher._compile_for_args = build, is_cached, compile_first
    KERNELS.append(dispatcher)
    return dispatcher


@helper
def _nothing(*args: Any) -> int:
    return 0


def _stripped(function: Any, gone: frozenset[int], variant: str, done: dict[int, Any]) -> Any:
    """Return a copy of a function and of the helpers that it calls. Helpers in ``gone`` do nothing.

    A copy has its own name, since numba links compiled and cached machine code by name.
    """
    if id(function) in done:
        return done[id(function)]
    inner = getattr(function, "py_func", function)
    other = {}
    for name in inner.__code__.co_names:
        called = inner.__globals__.get(name)
        if isinstance(called, Dispatcher):
            instead = _nothing if id(called) in gone else _stripped(called, gone, variant, done)
            if instead is not called:
                other[name] = instead
    copy = function
    if other:
        copy = FunctionType(inner.__code__, inner.__globals__ | other, inner.__name__, inner.__defaults__)
        copy.__module__, copy.__qualname__ = inner.__module__, inner.__qualname__ + variant
    if function is not inner and copy is not function:
        copy = helper(copy)
    done[id(function)] = copy
    return copy


def _prefetch_into(level: int, lines: int = 1) -> Any:
    """Return an intrinsic that prefetches cache lines at any address. ``level``: 3 for the L1 cache, 2 for the L2."""

    @intrinsic  # type: ignore[untyped-decorator]
    def prefetch(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            int32, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
            function_type = ir.FunctionType(ir.VoidType(), [pointer, int32, int32, int32])
            function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
            read, keep, data = (ir.Constant(int32, c) for c in (0, level, 1))
            first = builder.inttoptr(args[0], pointer)
            for line in range(lines):
                builder.call(function, [builder.gep(first, [ir.Constant(int32, 64 * line)]), read, keep, data])
            return context.get_dummy_value()

        return types.void(types.uint64), codegen

    return prefetch


# A core has more requests under way for its L2 than for its L1 cache. At 128 entries ahead, sampling on Zen 4 took
# 90 % of the time at 32; a Xeon (Granite Rapids) at 32 was no faster than without prefetches.
AHEAD = 128
"""How many entries ahead a pass of a sampler prefetches; at most `manyhop.sampling.cpu.tables.SPARE`."""

prefetch = _prefetch_into(2)
prefetch8_far = _prefetch_into(2, 8)
prefetch8_near = _prefetch_into(3, 8)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typingctx: Any, address: Any) -> Any:
    """Return an address as a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def count_below(typingctx: Any, address: Any, bound: Any, n: Any) -> Any:
    """Count the values below a bound among the first ``n`` of 32 uint16 at an address, in one comparison."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int16, int32, int64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
        vector, undefined = ir.VectorType(int16, 32), ir.Constant(ir.VectorType(int16, 32), ir.Undefined)
        values = builder.load(builder.inttoptr(args[0], vector.as_pointer()), align=2)
        bound = builder.insert_element(undefined, args[1], ir.Constant(int32, 0))
        bound = builder.shuffle_vector(bound, undefined, ir.Constant(ir.VectorType(int32, 32), [0] * 32))
        bits = builder.zext(builder.bitcast(builder.icmp_unsigned("<", values, bound), int32), int64)
        one = ir.Constant(int64, 1)
        return builder.ctpop(builder.and_(bits, builder.sub(builder.shl(one, args[2]), one)))

    return types.uint64(types.uint64, types.uint16, types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def fence(typingctx: Any) -> Any:
    """Order reads and writes before it and after it, as other threads and processes see them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic  # type: ignore[untyped-decorator]
def _store_past(typingctx: Any, address: Any, value: Any) -> Any:
    """Store a number of 64 bits past the caches; a :func:`fence` must follow."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        store = builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64), codegen


@helper
def put(out: npt.NDArray[np.int64], x: int, value: Any, past: bool) -> None:
    """Write an entry of a result. With ``past``, loops that write entries in order do not read their lines first.

    Then a :func:`fence` must follow the loop.
    """
    if past:
        _store_past(np.uint64(out.ctypes.data) + np.uint64(8) * np.uint64(x), np.int64(value))
    else:
        out[x] = value


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(typingctx: Any, value: Any) -> Any:
    """Return the bits of a float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), codegen


@helper
def i32(address: int | np.int64, n: int) -> npt.NDArray[np.int32]:
    """Return ``[n] int32`` at an address."""
    return numba.carray(_pointer(address), (n,), np.int32)  # type: ignore[no-any-return]


@helper
def u8(address: int | np.int64, n: int) -> npt.NDArray[np.uint8]:
    """Return ``[n] uint8`` at an address."""
    return numba.carray(_pointer(address), (n,), np.uint8)  # type: ignore[no-any-return]


@helper
def u16(address: int | np.int64, n: int) -> npt.NDArray[np.uint16]:
    """Return ``[n] uint16`` at an address."""
    return numba.carray(_pointer(address), (n,), np.uint16)  # type: ignore[no-any-return]


@helper
def u32(address: int | np.int64, n: int) -> npt.NDArray[np.uint32]:
    """Return ``[n] uint32`` at an address."""
    return numba.carray(_pointer(address), (n,), np.uint32)  # type: ignore[no-any-return]


@helper
def i64(address: int | np.int64, n: int) -> npt.NDArray[np.int64]:
    """Return ``[n] int64`` at an address."""
    return numba.carray(_pointer(address), (n,), np.int64)  # type: ignore[no-any-return]


@helper
def u64(address: int | np.int64, n: int) -> npt.NDArray[np.uint64]:
    """Return ``[n] uint64`` at an address."""
    return numba.carray(_pointer(address), (n,), np.uint64)  # type: ignore[no-any-return]


@helper
def f32(address: int | np.int64, n: int) -> npt.NDArray[np.float32]:
    """Return ``[n] float32`` at an address."""
    return numba.carray(_pointer(address), (n,), np.float32)  # type: ignore[no-any-return]


@helper
def f64(address: int | np.int64, n: int) -> npt.NDArray[np.float64]:
    """Return ``[n] float64`` at an address."""
    return numba.carray(_pointer(address), (n,), np.float64)  # type: ignore[no-any-return]
