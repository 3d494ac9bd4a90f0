"""Loaders whose ranks share batches: what they agree on, and exchanges of data that are spread over nodes."""

from __future__ import annotations

from typing import Any

from manyhop.errors import InputError
from manyhop.features import Exchange, ShardedRows, Traffic
from manyhop.loading import plain
from manyhop.pipeline import Lockstep
from manyhop.sampling import CONTRACT_VERSION
from manyhop_dgl._frames import frames
from manyhop_dgl._graph import Graph

_OF_THIS_RANK = ("device", "output_device")  # attributes of samplers that ranks may have in their own way


def facts_of(loader: Any, seed: int | None) -> dict[str, Any]:
    """What has to be the same on all ranks, in the order in which differences are told. JSON can hold it."""
    graph, sampler = loader.graph, loader.graph_sampler
    facts: dict[str, Any] = {"class": type(loader).__name__, "version of the sampling contract": CONTRACT_VERSION}
    facts |= {"seed": seed}
    facts |= {name: plain(getattr(loader, name)) for name in ("batch_size", "shuffle", "drop_last")}
    facts["graph_sampler"] = type(sampler).__name__
    arguments = {k: v for k, v in vars(sampler).items() if not k.startswith("_") and k not in _OF_THIS_RANK}
    facts["arguments of the sampler"] = plain(arguments)
    facts["number of nodes"] = {node_type: int(graph.num_nodes(node_type)) for node_type in graph.ntypes}
    facts["number of edges"] = {str(t): int(graph.num_edges(t)) for t in graph.canonical_etypes}
    facts["indices"] = plain(loader.dataset.indices)
    return facts


def exchanges(graph: Any) -> bool:
    """Whether data of the graph are spread over several nodes."""
    if not isinstance(graph, Graph):
        return False
    found = frames(graph)
    columns = [value for by_name in (*found.nodes.values(), *found.edges.values()) for value in by_name.values()]
    return any(isinstance(value, ShardedRows) and not value.is_whole for value in columns)


def check_sharded(graph: Any, *, use_ddp: bool) -> None:
    """Raise InputError where ranks would have to exchange rows, but go their own ways."""
    if not use_ddp and exchanges(graph):
        raise InputError(
            "Expected use_ddp=True, as data of the graph are spread over several nodes, and all ranks have to take "
            "part in every batch to exchange rows. Pass use_ddp=True on all ranks, or keep all rows on every node: "
            "Graph(placement='shared')."
        )


def make_lockstep(loader: Any, title: str, timeout: float) -> Lockstep | None:
    """The exchanges of a loader; ``None`` where all rows are on this node. All ranks call it."""
    if not exchanges(loader.graph):
        return None

    def moved(traffic: Traffic) -> None:
        loader._stats.count(exchanged_bytes=traffic.bytes_received, other_rows=traffic.rows_received)

    return Lockstep(Exchange(title, timeout=timeout), moved)
