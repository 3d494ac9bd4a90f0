"""Cache of compiled CPU kernels on disk, and the compiler of their helpers. Importing this module imports numba."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from numba.core.caching import FunctionCache, NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.runtime import rtsys

from manyhop.system.kernel_progress import KernelProgress

_IMPORT = re.compile(r"^(?:from[ ]+([\w.]+)[ ]+import[ ]+(\([^)]*\)|[^\n]*)|import[ ]+([\w.]+))", re.MULTILINE)


def _imported(module: ModuleType) -> list[ModuleType]:
    """Return the modules of manyhop or of its own package that ``module`` imports at its top level."""
    ours = ("manyhop", module.__name__.partition(".")[0])
    names = []
    for source, members, plain in _IMPORT.findall(_source(module).decode()):
        inside = [f"{source}.{name}" for name in re.findall(r"\w+", members)]
        names += [name for name in inside if name in sys.modules] or [source or plain]
    return [sys.modules[name] for name in names if name.partition(".")[0] in ours and name in sys.modules]


def _source(module: ModuleType) -> bytes:
    return Path(module.__file__).read_bytes() if module.__file__ else b""


@cache
def digest_of_sources(name: str) -> str:
    """Return a digest of the sources of a module and of its imports, recursively."""
    found, todo = {}, [sys.modules[name]]
    while todo:
        module = todo.pop()
        if module.__name__ not in found:
            found[module.__name__] = _source(module)
            todo += _imported(module)
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(found[name])
    return digest.hexdigest()


progress = KernelProgress("CPU")


class Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache on disk, with the sources of all helpers, and the variant of a kernel, in its key."""

    def __init__(self, function: Any, variant: str) -> None:
        super().__init__(function)
        self._variant = variant
        self._lock_name = f"{function.__module__}.{function.__qualname__}{variant}.lock"

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        digest = digest_of_sources(self._py_func.__module__)
        return (*super()._index_key(sig, codegen), digest, self._variant)

    def has(self, sig: Any, codegen: Any) -> bool:
        """Return whether the cache has a compiled form."""
        return self._index_key(sig, codegen) in self._cache_file._load_index()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other processes from compiling this kernel in the body."""
        with ExitStack() as stack:
            with suppress(ImportError, OSError):
                import fcntl  # POSIX systems have it

                file = stack.enter_context(open(Path(self.cache_path) / self._lock_name, "ab"))
                fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            yield

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the compiled form without numba's registries, which take 0.3 s to fill."""
        rtsys.initialize(target_context)  # kernels allocate
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)
            if found is not None:
                return found
        progress.begin(self._py_func.__name__)
        return None


class NoCache(NullCache):  # type: ignore[misc]
    """Stand in for the cache if no folder is writable: each process compiles."""

    def __init__(self, name: str) -> None:
        self._name = name

    def has(self, sig: Any, codegen: Any) -> bool:
        """Return False."""
        return False

    def alone(self) -> AbstractContextManager[None]:
        """Exclude no process."""
        return nullcontext()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load nothing."""
        progress.begin(self._name)
        return None


class _NoEnvironment:
    """A codegen that ignores pointers to environments, as helpers have no address yet."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """LLVM code of a helper. It is linked into kernels, which are optimised as a whole.

    Without it, numba also optimises each helper alone: 20 s for a kernel of 50 helpers instead of 11 s.
    """

    @property
    def codegen(self) -> Any:
        """The codegen of this library."""
        return _NoEnvironment(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, as a helper has no machine code."""
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class PartCompiler(Compiler):  # type: ignore[misc]
    """Compiles a helper into a :class:`_Part`."""

    def compile_extra(self, function: Any) -> Any:
        """Compile a function."""
        self.state.library = _Part(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)
