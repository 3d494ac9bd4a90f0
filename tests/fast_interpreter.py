"""Triton's interpreter without most of what Python costs in it. The tests import it, and ranks that they start.

In every operation of every program, triton's interpreter works out how to convert and to broadcast the operands. Here
an operation does so once for operands of given types, by triton's own code, and keeps a short way: one call of numpy
on the converted arrays, which has to give the same bits that first time. What has no short way goes through triton's
code each time. The language is prepared for the interpreter once, not in each launch and each call of a function.
"""

import inspect
import itertools
import math
import os
import threading
import types
from collections.abc import Callable
from typing import Any

if os.environ.get("TRITON_INTERPRET") == "1":
    import numpy as np
    import triton.language as tl
    from triton._C.libtriton import interpreter as memory
    from triton.runtime import interpreter
    from triton.runtime.errors import InterpreterError

    tensor, constexpr, semantic = tl.tensor, tl.constexpr, interpreter.interpreter_semantic
    new, TensorHandle = object.__new__, interpreter.TensorHandle

    MOST = 1 << 31

    class Info:
        """What all tensors of a type share. There is one of each type: its identity is a key."""

        def __init__(self, type_: Any) -> None:
            shape = type_.shape if type_.is_block() else ()
            self.type, self.dtype = type_, type_.scalar
            self.shape, self.numel = tuple(map(constexpr, shape)), constexpr(math.prod(shape))
            self.wide = type_.scalar.is_ptr() or type_.scalar.primitive_bitwidth >= 32
            """Integers below ``MOST`` are in the range of the type."""

    _infos: dict[str, Info] = {}
    _numpy_types: dict[str, Any] = {}
    _numpy_type_of = interpreter._get_np_dtype

    def _info(type_: Any) -> Info:
        type_.info = _infos.get(type_.name) or _infos.setdefault(type_.name, Info(type_))
        return type_.info  # type: ignore[no-any-return]

    def _set_up(self: Any, handle: Any, type: Any) -> None:
        self.handle = handle
        info = self.info = getattr(type, "info", None) or _info(type)
        self.type, self.dtype, self.shape, self.numel = info.type, info.dtype, info.shape, info.numel

    def _tensor(data: Any, info: Info) -> Any:
        handle, made = new(TensorHandle), new(tensor)
        handle.data, handle.dtype, handle.attr = data, info.dtype, {}
        made.handle, made.info = handle, info
        made.type, made.dtype, made.shape, made.numel = info.type, info.dtype, info.shape, info.numel
        return made

    def _numpy_type(type_: Any) -> Any:
        return _numpy_types.get(type_.name) or _numpy_types.setdefault(type_.name, _numpy_type_of(type_))

    program = threading.local()
    """Which program of which grid runs: threads may launch kernels at the same time, which triton's own cannot."""

    class NoShortWayError(Exception): ...

    def _converts(given: Any, wanted: Any) -> bool:
        """Whether numpy's conversion is what makes one type of the other; False: they are the same."""
        if given == wanted:
            return False
        plain = all(type_.is_int() or type_.name in ("fp32", "fp64") for type_ in (given, wanted))
        if not plain or wanted.is_int1() or (given.is_floating() and wanted.is_int()):
            raise NoShortWayError
        return True

    def _array(operand: Any, wanted: Any) -> tuple[Any, Callable[[Any], Any]]:
        """The array of an operand that is a number, else None, and what converts its array."""
        if operand.__class__ is tensor:
            numpy_type = _numpy_type(wanted)
            return None, (lambda a: a.astype(numpy_type)) if _converts(operand.dtype, wanted) else (lambda a: a)
        return semantic.cast(semantic.to_tensor(operand), wanted).handle.data, lambda a: a

    def _same(data: Any, expected: Any) -> bool:
        return data.dtype == expected.dtype and data.shape == expected.shape and data.tobytes() == expected.tobytes()

    class TensorWithinError(Exception):
        """A constant minus a tensor, say, is a ``constexpr`` with a tensor in it."""

    def _value(operand: Any) -> Any:
        return operand.value if operand.__class__ is constexpr else operand

    def _key(operand: Any) -> Any:
        if operand.__class__ is tensor:
            return operand.info
        value = _value(operand)
        if value.__class__ is tensor:
            raise TensorWithinError
        return operand.__class__, value.__class__, value.name if isinstance(value, tl.dtype) else value

    def _short(long: Callable[..., Any], way_of: Callable[..., Any]) -> Callable[..., Any]:
        """An operation that takes the short way ``way_of(found, *operands)`` to what triton's code has found."""
        ways: dict[Any, Any] = {}

        def operation(*operands: Any, **options: Any) -> Any:
            try:
                key = (*[_key(operand) for operand in operands], *options.items())
            except TensorWithinError:
                return operation(*map(_value, operands), **options)
            way = ways.get(key)
            if way is not None:
                return way(*operands)
            found = long(*operands, **options)
            if key not in ways:
                try:
                    ways[key] = way_of(found, *map(_value, operands))
                except NoShortWayError:
                    ways[key] = None
            return found

        return operation

    # -- Operations on two tensors, or on a tensor and a number.

    def _binary(long: Callable[..., Any], function: Any, check: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        long_way = (None, None)
        ways: dict[Any, Any] = {}

        def operation(self: Any, other: Any) -> Any:
            kind = other.__class__
            if kind is constexpr and other.value.__class__ is tensor:
                return operation(self, other.value)
            if kind is tensor:
                key: Any = (self.info, other.info)
            elif kind is int and 0 <= other < MOST and self.info.wide:
                key = (self.info, int)
            else:
                key = (self.info, _key(other))
            way, info = ways.get(key, long_way)
            if way is not None:
                return _tensor(way(self.handle.data, other), info)
            found = long(self, other)
            found.handle.dtype = found.dtype  # triton leaves comparisons the type of the operands
            if key not in ways:
                value = _value(other)
                try:
                    way = _binary_way(self, value, key[1] is int, function, *check(self, value))
                    ways[key] = (
                        (way, found.info) if _same(way(self.handle.data, other), found.handle.data) else long_way
                    )
                except NoShortWayError:
                    ways[key] = long_way
            return found

        return operation

    def _binary_way(
        lhs: Any, rhs: Any, any_int: bool, function: Any, left: Any, right: Any
    ) -> Callable[[Any, Any], Any]:
        """A function of the array and the other operand; ``left`` and ``right`` are what triton makes of the two."""
        if left.dtype.is_ptr():
            if function is not np.add or right.dtype.is_ptr():
                raise NoShortWayError
            width = max(1, lhs.dtype.element_ty.primitive_bitwidth // 8)
            if rhs.__class__ is tensor:
                return lambda a, b: a + width * b.handle.data.astype(np.uint64)
            if any_int:
                return lambda a, b: a + np.uint64(width * b)
            number = width * right.handle.data.ravel()[:1].astype(np.uint64)
            return lambda a, b: a + number
        wanted, number = _numpy_type(left.dtype), right.handle.data.ravel()[:1].copy()
        if any_int:
            way = lambda a, b: function(a, np.array((b,), wanted))  # noqa: E731
        elif rhs.__class__ is not tensor:
            way = lambda a, b: function(a, number)  # noqa: E731
        elif _converts(rhs.dtype, right.dtype):
            way = lambda a, b: function(a, b.handle.data.astype(wanted))  # noqa: E731
        else:
            way = lambda a, b: function(a, b.handle.data)  # noqa: E731
        return (lambda a, b: way(a.astype(wanted), b)) if _converts(lhs.dtype, left.dtype) else way

    def _swapped(check: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda lhs, rhs: check(rhs, lhs)[::-1]

    def _arithmetic(lhs: Any, rhs: Any) -> Any:
        return semantic.binary_op_type_checking_impl(lhs, rhs, True, True)

    def _bits(lhs: Any, rhs: Any) -> Any:
        return semantic.bitwise_op_type_checking_impl(lhs, rhs)

    def _comparison(lhs: Any, rhs: Any) -> Any:
        return semantic.binary_op_type_checking_impl(lhs, semantic.to_tensor(rhs))

    BINARY = {
        "add": (np.add, _arithmetic),
        "sub": (np.subtract, _arithmetic),
        "mul": (np.multiply, _arithmetic),
        "radd": (np.add, _swapped(_arithmetic)),
        "rmul": (np.multiply, _swapped(_arithmetic)),
        "rsub": (lambda a, b: np.subtract(b, a), _swapped(_arithmetic)),
        "and": (np.bitwise_and, _bits),
        "or": (np.bitwise_or, _bits),
        "xor": (np.bitwise_xor, _bits),
        "lshift": (np.left_shift, _bits),
        "rshift": (np.right_shift, _bits),
        "gt": (np.greater, _comparison),
        "ge": (np.greater_equal, _comparison),
        "lt": (np.less, _comparison),
        "le": (np.less_equal, _comparison),
        "eq": (np.equal, _comparison),
        "ne": (np.not_equal, _comparison),
    }

    def _extremum(long: Callable[..., Any], function: Any) -> Callable[..., Any]:
        short = _binary(long, function, lambda x, y: semantic.binary_op_type_checking_impl(x, semantic.to_tensor(y)))

        def extremum(x: Any, y: Any, **options: Any) -> Any:
            plain = not options and x.__class__ is tensor and not x.dtype.is_floating()
            return (short if plain else long)(x, y, **options)

        return extremum

    # -- Other operations.

    def _conversion(found: Any, self: Any, dtype: Any, bitcast: bool = False) -> Any:
        numpy_type, info = _numpy_type(dtype), found.info
        if self.dtype == dtype:
            return lambda self, *_: self
        if bitcast or self.dtype.is_ptr() or dtype.is_ptr():
            if not _same(self.handle.data.view(numpy_type), found.handle.data):
                raise NoShortWayError
            return lambda self, *_: _tensor(self.handle.data.view(numpy_type), info)
        _converts(self.dtype, dtype)
        return lambda self, *_: _tensor(self.handle.data.astype(numpy_type), info)

    def _indexed(long: Callable[..., Any]) -> Callable[..., Any]:
        """Blocks with axes added by ``None``."""
        infos: dict[Any, Info] = {}

        def get(self: Any, slices: Any) -> Any:
            key = (self.info, *(part is None for part in slices)) if slices.__class__ is tuple else None
            info = infos.get(key)
            if info is not None:
                return _tensor(self.handle.data[slices], info)
            found = long(self, slices)
            if key is not None and self.type.is_block() and _same(self.handle.data[slices], found.handle.data):
                infos[key] = found.info
            return found

        return get

    def _choice(found: Any, condition: Any, x: Any, y: Any) -> Any:
        if not condition.__class__ is x.__class__ is tensor or not condition.dtype.is_int1() or found.dtype.is_ptr():
            raise NoShortWayError
        info, (_, convert), (number, convert_other) = found.info, _array(x, found.dtype), _array(y, found.dtype)

        def choose(condition: Any, x: Any, y: Any) -> Any:
            other = convert_other(y.handle.data) if number is None else number
            return _tensor(np.where(condition.handle.data, convert(x.handle.data), other), info)

        if not _same(choose(condition, x, y).handle.data, found.handle.data):
            raise NoShortWayError
        return choose

    def _spread(data: Any, shape: Any) -> Any:
        return data if data.shape == shape else np.broadcast_to(data, shape)

    def _masked(mask: Any, shape: Any) -> Callable[[Any], Any]:
        """What makes the array of a mask."""
        if mask is None:
            everything = np.ones(shape, bool)
            return lambda mask: everything
        if mask.__class__ is not tensor or not mask.dtype.is_int1():
            raise NoShortWayError
        return lambda mask: _spread(mask.handle.data, shape)

    def _reading(found: Any, pointer: Any, mask: Any, other: Any) -> Any:
        element, shape, info = pointer.dtype.element_ty, pointer.handle.data.shape, found.info
        if element.is_int1() or found.handle.data.shape != shape:
            raise NoShortWayError
        numpy_type, masked = _numpy_type(element), _masked(mask, shape)
        number, convert = _array(0 if other is None else other, element)

        def load(pointer: Any, mask: Any, other: Any) -> Any:
            rest = _spread(convert(other.handle.data) if number is None else number, shape)
            return _tensor(memory.load(pointer.handle.data, masked(mask), rest, numpy_type), info)

        return load

    def _writing(found: Any, pointer: Any, value: Any, mask: Any) -> Any:
        element, shape = pointer.dtype.element_ty, pointer.handle.data.shape
        if (
            element.is_int1()
            or np.broadcast_shapes(shape, *(x.handle.data.shape for x in (value, mask) if x.__class__ is tensor))
            != shape
        ):
            raise NoShortWayError
        masked, (number, convert) = _masked(mask, shape), _array(value, element)

        def store(pointer: Any, value: Any, mask: Any) -> None:
            array = _spread(convert(value.handle.data) if number is None else number, shape)
            memory.store(pointer.handle.data, array, masked(mask))

        return store

    def _constant(long: Callable[..., Any]) -> Callable[..., Any]:
        """What its arguments alone determine, unless one is a tensor: no operation writes into an array."""
        made: dict[Any, Any] = {}

        def constant(*args: Any) -> Any:
            key = (*[tuple(map(int, x)) if isinstance(x, list | tuple | tl.tuple) else _key(x) for x in args],)
            found = made.get(key)
            if found is None:
                found = long(*args)
                if not any(x.__class__ is tensor for x in args):
                    made[key] = found
            return found

        return constant

    def _index(indices: Callable[[], Any]) -> Callable[[Any], Any]:
        """Index or number of programs along an axis."""
        info = _info(tl.int32)
        return lambda axis: _tensor(np.array((indices()[axis],), np.int32), info)

    # -- Launches, and what they call.

    def _builtin(function: Any) -> Callable[..., Any]:
        function = getattr(function, "__wrapped__", function)

        def call(*args: Any, _semantic: Any = None, **kwargs: Any) -> Any:
            return function(*args, **kwargs, _semantic=semantic)

        return call

    def _patch_builtins(package: Any, builder: Any, scope: Any = None) -> None:
        """For good: nothing is undone after a launch; triton 3.5 has no scope."""
        for name, member in inspect.getmembers(package, tl.core.is_builtin):
            setattr(package, name, _builtin(member))

    def _call_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.rewrite()(*args, **kwargs)

    def _launch(self: Any, *args: Any, **kwargs: Any) -> None:
        """Run the programs of a kernel whose arguments are on the CPU, one after the other."""
        values = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in self.arg_names})
        values = {k: v if k in self.constexprs else interpreter._implicit_cvt(v) for k, v in values.items()}
        grid = (*(self.grid(values) if callable(self.grid) else self.grid), 1, 1)[:3]
        program.grid = grid
        for index in itertools.product(*map(range, grid)):
            program.index = index
            try:
                self.fn(**values)
            except Exception as error:
                raise InterpreterError(repr(error)) from error

    def _install() -> None:
        tensor.__init__ = _set_up
        interpreter._get_np_dtype = _numpy_type
        # Checks of overflows are computed, and their results dropped: triton asserts them in debugging only.
        interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
        interpreter._patch_builtin = _patch_builtins
        interpreter._patch_lang(types.FunctionType(_install.__code__, {"tl": tl, "core": tl.core}))
        interpreter._patch_lang = lambda function: None
        tensor.__index__ = lambda self: self.handle.data.item()  # triton 3.6's needs an older numpy
        interpreter.InterpretedFunction.__call__ = _call_function
        interpreter.GridExecutor.__call__ = _launch
        for name, (function, check) in BINARY.items():
            setattr(tensor, f"__{name}__", _binary(getattr(tensor, f"__{name}__"), function, check))
        long_to, long_load, long_store = tensor.to, tl.load, tl.store
        to = _short(lambda self, dtype, bitcast: long_to(self, dtype, bitcast=bitcast), _conversion)
        tensor.to = lambda self, dtype, bitcast=False: to(self, dtype, bitcast)  # no kernel names a rounding mode
        tensor.__getitem__ = _indexed(tensor.__getitem__)
        read = _short(long_load, _reading)
        write = _short(long_store, _writing)
        for package in (tl, tl.core):
            package.program_id, package.num_programs = _index(lambda: program.index), _index(lambda: program.grid)
            package.arange, package.full = _constant(package.arange), _constant(package.full)
            package.where = _short(package.where, _choice)
            package.load = lambda pointer, mask=None, other=None, **options: read(pointer, mask, other, **options)
            package.store = lambda pointer, value, mask=None, **options: write(pointer, value, mask, **options)
            for name, function in (("minimum", np.minimum), ("maximum", np.maximum)):
                setattr(package, name, _extremum(getattr(package, name), function))

    _install()
