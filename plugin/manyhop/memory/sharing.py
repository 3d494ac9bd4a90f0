"""Objects in memory that the ranks of a node share: made by one of them, mapped by all.

Tensors and arrays reside in a segment, and the rest of the object as a pickle in the same segment. The pickle only
travels between processes of one user, in one run, on one node.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from manyhop.arguments import seconds
from manyhop.errors import InputError, RankError
from manyhop.memory import copies, segments
from manyhop.memory.copies import Copy, find_or_build
from manyhop.memory.mapped_files import FilePlace, MappedFiles, map_again
from manyhop.memory.segments import Bytes, Segment, return_freed_memory, round_up
from manyhop.ranks import control, world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.system.progress import Progress

_ALIGN = 64
_PAGE = 4096
_PIECE = 256 << 20  # bytes that are copied at once
_WORTH_A_LOOK = 1 << 16  # bytes of the smallest tensor that is looked up among mapped files


class SegmentPlace(NamedTuple):
    """Some bytes of a segment; ``segment`` is empty for the one with the pickle."""

    segment: str
    offset: int
    nbytes: int


def pack(what: str, value: Any) -> Copy:
    """Copy an object into shared memory, except tensors that are in shared memory or in mapped files already.

    Tensors bring all of the storage that they are views of. ``what`` names the object in errors.

    Raises:
        InputError: it cannot be pickled, or has tensors that are not on the CPU.
        CapacityError: it does not fit in memory.
    """
    parts, skeleton = _Parts(), io.BytesIO()
    pickler = _Pickler(skeleton, parts)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InputError(f"{what}: it cannot be passed to other processes: {error}. Leave this part out.") from error
    files = MappedFiles() if any(source.nbytes >= _WORTH_A_LOOK for source in parts.sources) else None
    places: list[SegmentPlace | FilePlace] = []
    size = 0
    new: list[tuple[Bytes, int]] = []
    for source in parts.sources:
        place = _present_place(source, files)
        if place is None:
            size = round_up(size, _PAGE if source.nbytes >= _PAGE else _ALIGN)
            place = SegmentPlace("", size, source.nbytes)
            new.append((source, size))
            size += source.nbytes
        places.append(place)
    content = pickle.dumps((places, parts.read_only, skeleton.getvalue()))
    pickle_at = round_up(size, _ALIGN), len(content)
    segment = segments.create(what, sum(pickle_at))
    with closing(Progress("Copying to shared memory", size)) as bar:
        for source, begin in new:
            for done in range(0, source.nbytes, _PIECE):
                part = source[done : done + _PIECE]
                segment.memory[begin + done : begin + done + part.nbytes] = part
                bar.add(part.nbytes)
    segment.memory[pickle_at[0] : sum(pickle_at)] = np.frombuffer(content, np.uint8)
    older = dict.fromkeys(p.segment for p in places if isinstance(p, SegmentPlace) and p.segment)
    return Copy((segment, *filter(None, map(segments.find, older))), pickle_at)


def unpack(packed: Copy) -> Any:
    """Return the object, whose tensors and arrays are views of the shared memory."""
    by_id = {s.id: s.memory for s in packed.segments} | {"": packed.segments[0].memory}
    begin, size = packed.pickle_at
    places, read_only, skeleton = pickle.loads(by_id[""][begin : begin + size].data)
    windows = []
    for place in places:
        if isinstance(place, FilePlace):
            windows.append(map_again(place))
        else:
            windows.append(by_id[place.segment][place.offset : place.offset + place.nbytes])
    return _Unpickler(io.BytesIO(skeleton), windows, read_only).load()


class _Parts:
    """The memory of an object, piece by piece; each piece once."""

    def __init__(self) -> None:
        self.sources: list[Bytes] = []
        self.read_only: list[tuple[int, bool]] = []
        """For each array: its piece, and whether it is read-only."""
        self._known: dict[tuple[int, int], int] = {}

    def add_storage(self, storage: torch.UntypedStorage) -> int:
        """Return the number of a piece."""
        if storage.device.type != "cpu":
            raise InputError(
                f"Expected tensors on the CPU, got one on {storage.device}. Share them before they move to a device, "
                "and move the batches: batch.to(device)."
            )
        return self._add(torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy())

    def add_buffer(self, buffer: pickle.PickleBuffer) -> None:
        """Add the memory of an array; called by the pickler."""
        raw = buffer.raw()
        self.read_only.append((self._add(np.frombuffer(raw, np.uint8)), raw.readonly))

    def _add(self, source: Bytes) -> int:
        key = source.ctypes.data, source.nbytes
        if key not in self._known:
            self._known[key] = len(self.sources)
            self.sources.append(source)  # which keeps it alive, so that its address is not used again
        return self._known[key]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, parts: _Parts) -> None:
        super().__init__(file, protocol=5, buffer_callback=parts.add_buffer)
        self._parts = parts

    def persistent_id(self, obj: Any) -> Any:
        """Replace the memory of tensors of any kind: torch describes them all by storages."""
        if isinstance(obj, torch.storage.TypedStorage):
            return self._parts.add_storage(obj._untyped_storage), obj.dtype
        if isinstance(obj, torch.UntypedStorage):
            return self._parts.add_storage(obj), None
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Reduce arrays that numpy would copy into the pickle: memory maps and strided views."""
        plain = type(obj) is np.memmap or (type(obj) is np.ndarray and not obj.flags.forc)
        if not plain or obj.dtype.hasobject:
            return NotImplemented
        array = np.asarray(obj)
        return (array if array.flags.forc else np.ascontiguousarray(array)).__reduce_ex__(5)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, windows: Sequence[Bytes], read_only: Sequence[tuple[int, bool]]) -> None:
        buffers = [windows[i].data.toreadonly() if fixed else windows[i].data for i, fixed in read_only]
        super().__init__(file, buffers=buffers)
        self._windows = windows
        self._storages: dict[int, torch.UntypedStorage] = {}

    def persistent_load(self, pid: tuple[int, torch.dtype | None]) -> Any:
        i, dtype = pid
        if i not in self._storages:
            self._storages[i] = torch.from_numpy(self._windows[i]).untyped_storage()
        if dtype is None:
            return self._storages[i]
        typed: Any = torch.storage.TypedStorage
        return typed(wrap_storage=self._storages[i], dtype=dtype, _internal=True)


def _present_place(source: Bytes, files: MappedFiles | None) -> SegmentPlace | FilePlace | None:
    """Return where other processes find these bytes already."""
    address, nbytes = source.ctypes.data, source.nbytes
    found = segments.where(address) if nbytes else None
    if found is not None:
        return SegmentPlace(*found, nbytes)
    return files.find(address, nbytes) if files is not None and nbytes >= _WORTH_A_LOOK else None


T = TypeVar("T")


_run = ""
"""Name of this node in the run; empty before the first ``share()``."""
_calls = 0
_loading = False


def share(load: Callable[[], T], *, what: str | None = None, timeout: float = DEFAULT_TIMEOUT) -> T:
    """Return the result of ``load()`` in memory that all ranks of the node share. Every rank of the run calls this.

    ``load`` runs on one rank of each node. Every rank, also that one, gets its own object whose tensors and numpy
    arrays are views of the same memory. While it is copied, it exists twice. A process that is the only one on its node
    gets the result unchanged. Nodes may load at different speed: all ranks return when all nodes are done.

    Args:
        load: function without arguments that returns anything that can be pickled, with its tensors on the CPU. Must
            not communicate.
        what: name of the result in errors, equal on all ranks. Default: the name of ``load``.
        timeout: seconds to wait for ``load()`` on a different rank of this node, for ranks that call this later, and
            then for other nodes.

    Raises:
        RankError: ``load()`` failed or was killed on a different rank, or is too slow there; the ranks make different
            calls.
        InputError: ``load()`` returned something that cannot be shared.
        CapacityError: there is not enough memory.
    """
    seconds("timeout", timeout)
    if _loading:
        raise InputError("share() was called inside of load(), which runs on one rank only. Share the whole once.")

    def guarded() -> T:
        global _loading
        _loading = True
        try:
            return load()
        finally:
            _loading = False

    found, name = world.init(), _name(load) if what is None else what

    def get() -> T:
        global _calls
        others = found.local_world_size - 1
        if others == 0 or not copies.AVAILABLE:
            return guarded()
        _join(found)
        _calls += 1
        numbered = f"share() number {_calls}, of {name}"[:1000]
        return _once(f"{_run} share {_calls}", guarded, numbered, timeout, others)

    if found.num_nodes == 1:
        return get()
    return control.attempt("share()", get, timeout=timeout, what=f"share() of {name}")


def once_per_node(key: str, build: Callable[[], T], *, what: str) -> T:
    """Return the result of ``build()``: made by the rank of this node that requests ``key`` first, as long as one uses
    it.

    This is not a collective: any rank may ask, at any time, alone. The key must name everything that ``build``
    depends on. It is ``build()`` without a ``share()`` before, after the end of its run, and where the rank that
    builds it fails, is killed or is too slow.

    """
    if not _run:
        return build()
    try:
        return _once(f"{_run} {key}", build, what, DEFAULT_TIMEOUT)
    except RankError:  # of the rank that builds; an error of this rank is raised by build()
        return build()


def node_segment(key: str, size: int, begin: Callable[[Bytes], None], *, what: str, remedy: str) -> Segment | None:
    """Return memory that the ranks of this node share and may write to, as long as one uses it.

    This is not a collective: any rank may ask, at any time, alone, also before ``init``. The rank that asks first calls
    ``begin`` with the memory, all zeros, before others get it. ``None``: no other rank of the node is known of.

    Raises:
        CapacityError: there is not as much memory; the error has ``what`` and the ``remedy``.
        RankError: the rank that makes it failed.
    """
    name = world.launch()
    if name is None or not copies.AVAILABLE:
        return None

    def build() -> Copy:
        segment = segments.create(what, size, remedy)
        begin(segment.memory)
        return Copy((segment,))

    copy = find_or_build(
        _digest(f"{os.getuid()} {name} {key}"), build, what=what, rank=world.current_rank(), timeout=DEFAULT_TIMEOUT
    )
    return copy.segments[0]


def _once(key: str, build: Callable[[], T], what: str, timeout: float, others: int = 0) -> T:
    def packed() -> Copy:
        copy = pack(what, build())
        return_freed_memory()
        return copy

    copy = find_or_build(_digest(key), packed, what=what, rank=world.current_rank(), timeout=timeout, others=others)
    value: T = unpack(copy)
    return value


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _join(found: world.World) -> None:
    global _run, _calls
    run = f"{world.token()} {found.node}"
    if _run != run:
        _run, _calls = run, 0
        world.at_shutdown(_leave)


def _leave() -> None:
    global _run
    _run = ""


def _name(load: Callable[[], Any]) -> str:
    if isinstance(load, functools.partial):
        return _name(load.func)
    code = getattr(load, "__code__", None)
    name = getattr(load, "__qualname__", type(load).__qualname__)
    return name if code is None else f"{name} (line {code.co_firstlineno})"
