"""Rows and topology spread over multiple GPUs: one allocation for all loaders of the process.

Ranks allocate such memory together, so it is only reused if all ranks still have it: they compare its numbers. A single
rank may read data that is sharded over its node, without the other ranks.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from manyhop.arguments import as_tensor
from manyhop.features import CachedRows, DistributedRows, HotRows
from manyhop.graph import Graph, PlacedGraph
from manyhop.memory.places import SPREAD_PLACES, Place
from manyhop.memory.stores.copies import Copy, Kept, forget
from manyhop.ranks import world
from manyhop.system.arrays import known, known_if_any

if TYPE_CHECKING:
    from manyhop.features import WholeMemory

T = TypeVar("T")
RowsT = TypeVar("RowsT", bound=Tensor | DistributedRows)

TOPOLOGY = "topology"
"""The name of the tables that samplers read, among names of features."""

_run = ""
_numbers = itertools.count(1)  # all ranks create spread memory in the same order


class Held:
    """The place of rows and their hot rows, for all loaders that read them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.hot: tuple[HotRows, Tensor] | None = None
        """The set of hot rows that this rank's GPU caches, and these rows."""

    def reader(self, rows: Any) -> Any:
        """Return a separate source for ``gather`` for each loader; hot rows are shared."""
        if isinstance(rows, DistributedRows):
            hot, hot_rows = self.hot or (None, None)
            return replace(rows, hot=hot, hot_rows=hot_rows)
        return rows if self.hot is None else CachedRows(rows, *self.hot)


class SpreadRows(Kept):
    """A tensor, or an array, of the user's whose rows are spread over GPUs. All ranks create it.

    Raises as ``WholeMemory``.
    """

    def __init__(self, value: Any, place: Place, name: str, timeout: float) -> None:
        super().__init__(value)
        self.number = next(_numbers)
        """Equal on all ranks."""
        self.place = place
        self.held = Held(place)
        rows = as_tensor(name, value)
        self._memory = make_memory(rows.shape, rows.dtype, place, name, timeout)
        self._memory.copy_from(rows)
        self.rows: Tensor | DistributedRows = self._memory.whole if place == "sharded" else self._memory.rows()
        """The source of the rows."""

    @staticmethod
    def of(value: Any, place: Place, name: str, timeout: float) -> SpreadRows:
        """Spread rows for all loaders of the process. All ranks call it."""
        spread = SpreadRows(value, place, name, timeout)
        _forget_at_shutdown()
        return spread.keep(place)


def hold(rows: RowsT, place: Place) -> RowsT:
    """Return rows that loaders read in place: they are placed for GPUs already, and belong to a store."""
    known(rows).held = Held(place)
    return rows


def held(value: Any) -> Held | None:
    """Return the record of rows that belong to a store; ``None`` for other rows, which loaders place."""
    record = known_if_any(value) if isinstance(value, Tensor | DistributedRows) else None
    found: Held | None = None if record is None else record.held
    if found is None and isinstance(value, DistributedRows):
        hold(value, "device" if value.is_whole else "distributed")
        return held(value)
    return found


def is_held(value: object) -> bool:
    """Return whether rows are placed for GPUs already, and belong to a store."""
    return held(value) is not None


def make_memory(shape: Sequence[int], dtype: torch.dtype, place: Place, name: str, timeout: float) -> WholeMemory:
    """Return memory over GPUs, ``sharded`` or ``distributed``. All ranks call it."""
    from manyhop.features import WholeMemory

    kind: Literal["continuous", "distributed"] = "continuous" if place == "sharded" else "distributed"
    return WholeMemory(shape, dtype, kind=kind, name=name, timeout=timeout)


def spread_graph(graph: Graph, device: torch.device, timeout: float) -> PlacedGraph:
    """Spread a topology over the GPUs of each node, for all loaders of the process. All ranks call it."""
    from manyhop.features import share_graph

    number = next(_numbers)
    there, memory = share_graph(graph, timeout=timeout)
    _forget_at_shutdown()
    return PlacedGraph(graph, there, device, "sharded", memory, number).keep()


def spread_edges(graph: Graph, device: torch.device, timeout: float) -> PlacedGraph:
    """Spread the edges of a topology over the GPUs of all ranks, for cuGraph. All ranks call it."""
    from manyhop.sampling.engines import collective_backend

    number = next(_numbers)
    memory = collective_backend().spread(graph, device, timeout=timeout)
    _forget_at_shutdown()
    return PlacedGraph(graph, graph, device, "distributed", memory, number).keep()


class TopologyPlace:
    """The place from which GPUs read the topology of a store, for all loaders.

    Args:
        place: of the topology; ``None``: where the first loader decides.
    """

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._kept: dict[int, tuple[PlacedGraph, Any]] = {}

    def claim(self, graph: Graph, owner: Any) -> None:
        """Let loaders read tables of the store's edges in this place.

        ``owner``: key by which later samplers over the same edges find them.
        """
        known(graph).store_place = weakref.ref(self)
        self._owners[id(graph)] = owner

    def keep(self, graph: Graph, placed: PlacedGraph) -> None:
        """Keep a topology in its place as long as the store is there."""
        self._kept[id(graph)] = placed, self._owners.get(id(graph))

    def __getstate__(self) -> dict[str, object]:
        return {"place": self.place}  # everything else belongs to this process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def place_for_topology(placement: str) -> TopologyPlace | None:
    """Return the place of the topology for a store's ``placement``; ``None`` for host memory."""
    wanted: dict[str, Place | None] = {"pinned": "pinned", "device": "device", "sharded": "sharded", "auto": None}
    return TopologyPlace(wanted[placement]) if placement in wanted else None


def topology_place(graph: Graph | None) -> TopologyPlace | None:
    """Return the place of a topology that a store has set; ``None``: no store has."""
    record = None if graph is None else known_if_any(graph)
    found = None if record is None or record.store_place is None else record.store_place()
    assert found is None or isinstance(found, TopologyPlace)
    return found


class ResidentMemory:
    """Copies and spread rows that GPUs hold already, for other loaders. They are kept as long as this object."""

    def __init__(self, named: Sequence[tuple[str, Any]], graph: Graph | None, device: torch.device) -> None:
        self._copied = {name for name, value in named if Copy.find(value, device, compare=False)}
        self._rows: dict[str, dict[int, SpreadRows]] = {}
        for name, value in named:
            found = [SpreadRows.find(value, place) for place in SPREAD_PLACES]
            self._rows[name] = {rows.number: rows for rows in found if rows is not None}
        self._graphs: dict[int, PlacedGraph] = {}
        if graph is not None:
            if PlacedGraph.find(graph, device, "device") is not None:
                self._copied.add(TOPOLOGY)
            placed = [PlacedGraph.find(graph, device, place) for place in SPREAD_PLACES]
            self._graphs = {one.number: one for one in placed if one is not None}

    def facts(self) -> dict[str, Any]:
        """Return the facts for other ranks: names of copies, and the numbers of spread memories by name."""
        numbers = {name: sorted(found) for name, found in self._rows.items() if found}
        return {"copied": sorted(self._copied), "spread": numbers | {TOPOLOGY: sorted(self._graphs)}}

    def keep_common(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Drop everything that some rank lacks; ``every`` holds the facts of each."""
        self._copied.intersection_update(*(facts["copied"] for facts in every))

        def common(name: str, found: dict[int, T]) -> dict[int, T]:
            numbers = set(found).intersection(*(facts["spread"].get(name, ()) for facts in every))
            return {number: found[number] for number in numbers}

        self._rows = {name: common(name, found) for name, found in self._rows.items()}
        self._graphs = common(TOPOLOGY, self._graphs)

    def places(self, name: str, *, together: bool) -> frozenset[Place]:
        """Return where the rows of a name, or the topology, are; alone, a rank only reads rows without an exchange."""
        spread = {graph.where for graph in self._graphs.values()}
        if name != TOPOLOGY:
            spread = {rows.place for rows in self._rows[name].values()}
        found = spread if together else spread & {"sharded"}
        return frozenset(found | {"device"} if name in self._copied else found)

    def rows(self, name: str, place: Place) -> SpreadRows | None:
        """Return the rows of a name in a place."""
        return next((rows for rows in self._rows[name].values() if rows.place == place), None)

    def graph(self, place: Place) -> PlacedGraph | None:
        """Return the topology in a place."""
        return next((graph for graph in self._graphs.values() if graph.where == place), None)


def _forget_at_shutdown() -> None:
    global _run
    if _run != world.token():
        _run = world.token()
        world.at_shutdown(lambda: forget(SPREAD_PLACES))  # the memory ends with the run
