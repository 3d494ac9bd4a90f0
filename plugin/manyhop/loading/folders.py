"""Placement and loading of the tensors of a graph on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import TypeVar

from torch import Tensor

from manyhop.errors import InputError
from manyhop.features import CacheSize, cache_files, check_cache
from manyhop.files import StoredGraph, open_graph
from manyhop.memory.placement import Item, decide
from manyhop.memory.places import FOLDER_PLACES, Place, check_place
from manyhop.memory.sharing import share
from manyhop.ranks import control, world
from manyhop.ranks.control import DEFAULT_TIMEOUT
from manyhop.system.memory import available_memory

T = TypeVar("T")

_TOGETHER = ("auto", "shared", "sharded")  # all ranks of the run open the folder, and wait for each other


def open_placed(folder: str | PathLike[str], placement: Place) -> tuple[StoredGraph, dict[str, Place]]:
    """Open a folder; return the graph and :func:`places`.

    Raises:
        InputError: no such folder, or an unknown placement.
        RankError: another rank failed or is missing.
    """
    check_place(placement, FOLDER_PLACES)
    graph = on_all_ranks("opening a folder", placement, lambda: open_graph(folder))
    return graph, places(graph, placement)


def on_all_ranks(title: str, placement: Place, action: Callable[[], T]) -> T:
    """Return ``action()``; if all ranks open a folder together, only after it has succeeded on all of them.

    Raises:
        Exception: ``action`` failed on this rank.
        RankError: it failed on other ranks.
    """
    if placement not in _TOGETHER:
        return action()
    world.init()
    return control.attempt(title, action, timeout=DEFAULT_TIMEOUT)


def places(graph: StoredGraph, placement: Place) -> dict[str, Place]:
    """Return the place of ``"topology"`` and of each ``"features NAME"``, equal on all ranks.

    Args:
        placement: a place for all tensors, or ``"auto"``, a decision of all ranks. ``"sharded"`` applies to features
            that can be sharded; the other tensors are shared.

    Raises:
        RankError: another rank is missing.
    """
    features = {f"features {name}": rows for name, rows in graph.features()}
    can_shard = {f"features {name}" for name in graph.shardable()}
    if placement == "sharded":
        return {name: "sharded" if name in can_shard else "shared" for name in ["topology", *features]}
    if placement != "auto":
        return dict.fromkeys(["topology", *features], placement)
    found = world.init()
    # Free memory differs between ranks; the decision must not.
    facts = {"free": available_memory() or 1 << 62}  # unknown: reading fails if it was too much
    every = control.exchange(f"the placement of {graph.path.name}", facts, timeout=DEFAULT_TIMEOUT)
    chosen = decide(
        Item(name="topology", nbytes=graph.topology_bytes, can_map=graph.is_compressed),
        [
            Item(name=name, nbytes=rows.nbytes, can_map=rows.can_map, can_shard=name in can_shard)
            for name, rows in features.items()
        ],
        memory=min(facts["free"] for facts in every),
        ranks_per_node=-(-found.world_size // found.num_nodes),
        num_nodes=found.num_nodes,
    )
    return {choice.item.name: choice.place for choice in (chosen.topology, *chosen.features)}


def sharded_rows(graph: StoredGraph, chosen: Mapping[str, Place]) -> set[int]:
    """Return the ``id`` of the rows to spread over nodes."""
    return {id(rows) for name, rows in graph.features() if chosen[f"features {name}"] == "sharded"}


def load(
    graph: StoredGraph, chosen: Mapping[str, Place], placement: Place, cache: CacheSize | None = None
) -> dict[int, Tensor]:
    """Load all tensors except sharded rows and edge lists. Return them by the ``id`` of their rows in ``graph``.

    Compressed columns are checked, which reads them once.

    Args:
        placement: the user's placement. It determines whether all ranks call this, or any rank alone.

    Raises:
        InputError: a truncated or damaged file, or a cache although no features stay in files.
        GraphError: invalid compressed columns.
        CapacityError: not enough memory.
        RankError: another rank failed or is missing.
    """
    if cache is not None:
        check_cache(cache)
        if placement not in ("mapped", "auto"):
            raise InputError(
                f"Expected cache only with placement='mapped' or 'auto', got {cache!r} with {placement!r}. Leave it "
                "out."
            )
    tensors = on_all_ranks(f"reading {graph.path.name}", placement, lambda: _read(graph, chosen))
    if cache:
        mapped = [tensors[id(rows)] for name, rows in graph.features() if chosen[f"features {name}"] == "mapped"]
        cache_files(mapped, cache)
    return tensors


def _read(graph: StoredGraph, chosen: Mapping[str, Place]) -> dict[int, Tensor]:
    tables = {("topology", name): rows for name, rows in graph.topology() if not name.endswith("edge_index")}
    tables |= {("features", name): rows for name, rows in graph.features()}
    tensors: dict[int, Tensor] = {}
    together = {key: rows for key, rows in tables.items() if chosen[_item(key)] == "shared"}
    if together:
        what = f"the graph in {graph.path.name}"

        def read() -> dict[tuple[str, str], Tensor]:
            found = {key: rows.read() for key, rows in together.items()}
            graph.check_columns({id(rows): found[key] for key, rows in together.items()})
            return found

        loaded = share(read, what=what)
        tensors |= {id(rows): loaded[key] for key, rows in together.items()}
    alone: dict[int, Tensor] = {}
    for key, rows in tables.items():
        if chosen[_item(key)] in ("mapped", "process"):
            alone[id(rows)] = rows.mapped() if chosen[_item(key)] == "mapped" else rows.read()
    graph.check_columns(alone)
    return tensors | alone


def _item(key: tuple[str, str]) -> str:
    return "topology" if key[0] == "topology" else f"features {key[1]}"
