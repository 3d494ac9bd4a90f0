"""What the Python code of a step takes from outside, as far as names in it show."""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from manyhop_train.capture.values import Named, parts_of

_NOT_THE_USERS: Final = frozenset({"torch", "torch_geometric", "dgl", "triton"}) | sys.stdlib_module_names
_PASSED_ON: Final = frozenset({"CACHE", "PUSH_NULL", "EXTENDED_ARG", "PRECALL", "NOT_TAKEN"})
_NOTHING: Final = object()


def is_users(module: str) -> bool:
    """Whether a module may be the user's, by its name."""
    package = module.partition(".")[0]
    return package == "__main__" or not (package in _NOT_THE_USERS or package.startswith("manyhop"))


def reads_of(function: object) -> list[Named]:
    """Return the variables of closures and modules, and the attributes of these and of ``self``, in a function's code.

    Functions that it names are searched, too, and entries of dictionaries, but nothing in installed packages.
    """
    search = _Search()
    search.visit(function)
    return [*search.found.values()]


def uses_argument(function: Any, number: int) -> str | None:
    """Return the name of a positional argument that the code of a function reads; ``None``: it does not."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None or number >= code.co_argcount:
        return None
    name: str = code.co_varnames[number]
    loads = [i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")]
    used = name in code.co_cellvars or any(name in load if isinstance(load, tuple) else name == load for load in loads)
    return name if used else None


class _Variable:
    """A variable of a closure."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def __getitem__(self, name: str) -> object:
        try:
            return self._cell.cell_contents
        except ValueError:  # not assigned yet
            raise KeyError(name) from None


class _Versions:
    """How often a tensor has been changed in place."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __getitem__(self, name: str) -> object:
        return self._tensor._version


class _Properties:
    """The properties of an object."""

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __getitem__(self, name: str) -> object:
        try:
            return getattr(self._owner, name)
        except Exception:  # whatever the package raises
            raise KeyError(name) from None


class _Search:
    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Named] = {}
        self._visited: set[tuple[CodeType, int]] = set()
        self._cells: dict[int, _Variable] = {}
        self._properties: dict[int, _Properties] = {}

    def visit(self, value: Any) -> None:
        """Search a value if it is code of the user's."""
        while isinstance(value, functools.partial):
            value = value.func
        owner: object = _NOTHING
        if isinstance(value, MethodType):
            value, owner = value.__func__, value.__self__
        elif isinstance(value, torch.nn.Module):
            for module in value.modules():
                self._visit_method(module, "forward")
            return
        elif not isinstance(value, FunctionType | type | ModuleType) and is_users(type(value).__module__):
            self._visit_method(value, "__call__")
            return
        if isinstance(value, FunctionType):
            self._visit_function(value, owner)

    def _visit_method(self, owner: object, name: str) -> None:
        method = getattr(type(owner), name, None)
        if isinstance(method, FunctionType):
            self._visit_function(method, owner)

    def _visit_function(self, function: Any, owner: object) -> None:
        function = inspect.unwrap(function)  # of decorators
        if not _is_searched(function):
            return
        code: CodeType = function.__code__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        known = {code.co_varnames[0]: owner} if owner is not _NOTHING and code.co_argcount else {}
        self._visit_code(code, function.__globals__, cells, known)

    def _visit_code(
        self, code: CodeType, variables: dict[str, Any], cells: Mapping[str, CellType], known: Mapping[str, object]
    ) -> None:
        key = code, id(next(iter(known.values()), None))
        if key in self._visited:
            return
        self._visited.add(key)
        top: object = _NOTHING  # what the last instruction has loaded
        for instruction in dis.get_instructions(code):
            name = instruction.argval
            match instruction.opname:
                case "LOAD_GLOBAL" | "LOAD_NAME":
                    top = self._note(variables, name) if name in variables else _NOTHING
                case "LOAD_DEREF" | "LOAD_CLASSDEREF" if name in cells:
                    top = self._note(self._cells.setdefault(id(cells[name]), _Variable(cells[name])), name)
                case "LOAD_ATTR" | "LOAD_METHOD":
                    top = self._attribute(top, name)
                case loads if loads.startswith(("LOAD_FAST", "LOAD_DEREF")):
                    top = known.get(name[-1] if isinstance(name, tuple) else name, _NOTHING)
                case other if other not in _PASSED_ON:
                    top = _NOTHING
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._visit_code(constant, variables, cells, known)

    def _note(self, where: Any, name: str) -> object:
        try:
            value: object = where[name]
        except KeyError:
            value = None
        if (id(where), name) not in self.found:
            self.found[id(where), name] = where, name
            self.visit(value)
            if type(value) is dict and len(value) <= 64:  # such as settings
                for key, entry in [*value.items()]:
                    if isinstance(key, str) and type(entry) in (int, float, bool, dict):
                        self._note(value, key)
            elif (
                isinstance(value, Tensor)
                and value.device.type == "cpu"
                and not value.dim()
                and not value.is_inference()
            ):
                host = _Versions(value)  # of a number that kernels get by value
                self.found[id(host), name] = host, name
        return value

    def _attribute(self, owner: object, name: str) -> object:
        if owner is _NOTHING or owner is None:
            return _NOTHING
        if isinstance(owner, ModuleType) and not is_users(owner.__name__):
            return vars(owner).get(name, _NOTHING)
        for where in _dictionaries(owner):
            if name in where:
                return self._note(where, name)
        found = inspect.getattr_static(type(owner), name, _NOTHING)
        if found is _NOTHING or not is_users(type(owner).__module__):
            return _NOTHING
        for where in _dictionaries(owner):
            self._note(where, name)  # nothing, until the object has its own
            break
        for where in _dictionaries(type(owner)):
            if name in where:
                self._note(where, name)
                break
        if isinstance(found, property) and not _is_searched(found.fget):
            return self._property(owner, name)
        if isinstance(found, FunctionType | property):
            self._visit_function(found.fget if isinstance(found, property) else found, owner)
        return _NOTHING

    def _property(self, owner: object, name: str) -> object:
        """A property of a package's class, such as Lightning's ``current_epoch``."""
        try:
            value: object = getattr(owner, name)
        except Exception:  # whatever the package raises
            return _NOTHING
        if type(value) in (int, float, bool, str):
            where = self._properties.setdefault(id(owner), _Properties(owner))
            self.found[id(where), name] = where, name
        return value


def _is_searched(function: Any) -> bool:
    """Whether a function is Python code of the user's."""
    code = getattr(function, "__code__", None)
    if code is None or "-packages" in code.co_filename:
        return False
    return is_users(str(function.__globals__.get("__name__", "")))


def _dictionaries(owner: object) -> Iterator[Any]:
    """Where an object or a class has its attributes."""
    if isinstance(owner, type):
        yield from (vars(kind) for kind in owner.__mro__ if is_users(kind.__module__))
        return
    attributes = getattr(owner, "__dict__", None)
    if isinstance(attributes, dict):
        yield attributes
        if isinstance(owner, torch.nn.Module):
            yield from parts_of(owner)
