"""The one place of the CPU kernels that knows numba: decorators, intrinsics, the cache on disk, its message.

Importing this module imports numba. Kernels take addresses instead of arrays, so that one compiled function serves all
graphs, whatever their number of types and the width of their ids; ``i32(address, n)`` and its like turn an address into
an array. Unsigned indices spare numba's test for negative ones.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba.core import cgutils, sigutils, types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def _digest_of_sources() -> str:
    """A digest of all kernel sources: numba itself looks only at the file of the cached function."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("_cpu_*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _digest_of_sources()


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache on disk, with the sources of all helpers in its key."""

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), _DIGEST)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is None:
            _announce()
        return found


@cache
def _announce() -> None:
    """Say, once, why nothing happens for some seconds."""
    message = "manyhop: compiling its CPU kernels, once on this machine; this takes about 15 seconds."
    print(message, file=sys.stderr, flush=True)


def helper(function: F) -> F:
    """A function that kernels call; it is compiled as a part of them."""
    return cast(F, numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function))


def kernel(signature: str) -> Callable[[F], F]:
    """A function compiled for one signature, or loaded from the cache on disk; it releases the GIL."""

    def compile_or_load(function: F) -> F:
        dispatcher = numba.njit(**_OPTIONS)(function)
        try:
            dispatcher._cache = _Cache(function)
        except RuntimeError:  # no directory can be written to: compile in each process
            _announce()
        args, _ = sigutils.normalize_signature(signature)
        dispatcher.compile(args)
        dispatcher.disable_compile()
        return cast(F, dispatcher)

    return compile_or_load


def _prefetch_into(level: int, lines: int = 1) -> Any:
    """An intrinsic that asks for cache lines from an address on, which may be any; 3: into the L1 cache, 2: the L2."""

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


# A Zen core has more requests under way for its L2 cache than for its L1 cache: random rows of 512 bytes came in 55 %
# of the time (Zen 4), and sampling took 11 % less. On a Xeon it took longer.
prefetch = _prefetch_into(2 if get_host_cpu_name().startswith("znver") else 3)
prefetch8_far = _prefetch_into(2, 8)
prefetch8_near = _prefetch_into(3, 8)


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(typingctx: Any, address: Any) -> Any:
    """An address as a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def count_below(typingctx: Any, address: Any, bound: Any, n: Any) -> Any:
    """How many of the first ``n`` of the 32 uint16 at an address are below a bound, compared at once."""

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
def bits_of(typingctx: Any, value: Any) -> Any:
    """The bits of a float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), codegen


@helper
def i32(address: int, n: int) -> npt.NDArray[np.int32]:
    """``[n] int32`` at an address."""
    return numba.carray(_pointer(address), (n,), np.int32)  # type: ignore[no-any-return]


@helper
def u16(address: int, n: int) -> npt.NDArray[np.uint16]:
    """``[n] uint16`` at an address."""
    return numba.carray(_pointer(address), (n,), np.uint16)  # type: ignore[no-any-return]


@helper
def u32(address: int, n: int) -> npt.NDArray[np.uint32]:
    """``[n] uint32`` at an address."""
    return numba.carray(_pointer(address), (n,), np.uint32)  # type: ignore[no-any-return]


@helper
def i64(address: int, n: int) -> npt.NDArray[np.int64]:
    """``[n] int64`` at an address."""
    return numba.carray(_pointer(address), (n,), np.int64)  # type: ignore[no-any-return]


@helper
def u64(address: int, n: int) -> npt.NDArray[np.uint64]:
    """``[n] uint64`` at an address."""
    return numba.carray(_pointer(address), (n,), np.uint64)  # type: ignore[no-any-return]


@helper
def f32(address: int, n: int) -> npt.NDArray[np.float32]:
    """``[n] float32`` at an address."""
    return numba.carray(_pointer(address), (n,), np.float32)  # type: ignore[no-any-return]


@helper
def f64(address: int, n: int) -> npt.NDArray[np.float64]:
    """``[n] float64`` at an address."""
    return numba.carray(_pointer(address), (n,), np.float64)  # type: ignore[no-any-return]
