"""Loaders whose ranks share batches: facts that must be equal, and exchanges of data spread over nodes."""

from __future__ import annotations

from dgl.dataloading import BlockSampler

from manyhop.errors import InputError
from manyhop.features import DistributedRows, ShardedRows
from manyhop.loading import graph_facts, plain, rows_fact
from manyhop_dgl.graph.frames import frames
from manyhop_dgl.graph.graph import Graph
from manyhop_dgl.graph.topology import of_type
from manyhop_dgl.loader.source import LoaderView
from manyhop_dgl.samplers.edges import sampler_of_nodes
from manyhop_dgl.samplers.negatives import KeyedNegatives
from manyhop_dgl.samplers.neighbor import EngineSampler
from manyhop_dgl.typing import GraphLike

_OF_THIS_RANK = ("device", "output_device")  # attributes of samplers that ranks may have in their own way
_PREFETCHED = ("prefetch_node_feats", "prefetch_labels", "prefetch_edge_feats")


class LoaderFacts:
    """The ``Facts`` of a loader."""

    def __init__(self, loader: LoaderView) -> None:
        self._loader = loader

    def of_ranks(self) -> dict[str, object]:
        """Return the facts that must be equal on all ranks, in the order of error messages."""
        loader = self._loader
        facts: dict[str, object] = {"pad": plain(getattr(loader, "pad", None))} | plain(self.of_state())
        samplers = (loader.graph_sampler, sampler_of_nodes(loader.graph_sampler))
        if isinstance(samplers[1], EngineSampler):
            facts["edge ids"] = plain(samplers[1].arguments().topology(loader.graph).graph.edge_ids())
        found = frames(loader.graph)
        facts |= {
            f"{what} data '{name}'{of_type(kind)}": rows_fact(value)
            for what, frames_of in (("node", found.nodes), ("edge", found.edges))
            for kind, by_name in frames_of.items()
            for name, value in by_name.items()
        }
        facts["data to prefetch"] = plain(
            [[getattr(sampler, name, None) for name in _PREFETCHED] for sampler in samplers]
        )
        return facts

    def of_state(self) -> dict[str, object]:
        """Return the facts that determine samples, except seeds of random numbers and the size and order of batches."""
        loader = self._loader
        graph, sampler = loader.graph, loader.graph_sampler
        facts: dict[str, object] = {
            "graph_sampler": type(sampler).__name__,
            "arguments of the sampler": _arguments(sampler),
        }
        nodes = sampler_of_nodes(sampler)
        if isinstance(nodes, EngineSampler):
            facts |= graph_facts(nodes.arguments().topology(graph).graph)
        else:
            facts["number of nodes"] = {node_type: int(graph.num_nodes(node_type)) for node_type in graph.ntypes}
            facts["number of edges"] = {t: int(graph.num_edges(t)) for t in graph.canonical_etypes}
        return facts | {"seed_parts": loader.seed_parts, "indices": getattr(loader.dataset, "indices", None)}


def _arguments(sampler: BlockSampler | KeyedNegatives) -> dict[str, object]:
    """Return attributes of a sampler that determine how it samples, also of the samplers in it."""
    if isinstance(sampler, EngineSampler):
        return dict(vars(sampler.arguments()))
    found: dict[str, object] = {}
    for name, value in vars(sampler).items():
        if not name.startswith("_") and name not in (*_OF_THIS_RANK, *_PREFETCHED):
            inner = isinstance(value, BlockSampler | KeyedNegatives)
            found[name] = {"class": type(value).__name__} | _arguments(value) if inner else value
    return found


def over_nodes(graph: GraphLike) -> bool:
    """Return whether data of the graph are spread over multiple nodes."""
    return any(isinstance(value, ShardedRows) and not value.is_whole for value in _columns(graph))


def _columns(graph: GraphLike) -> list[object]:
    if not isinstance(graph, Graph):
        return []
    found = frames(graph)
    return [value for by_name in (*found.nodes.values(), *found.edges.values()) for value in by_name.values()]


def check_sharded(graph: GraphLike, *, use_ddp: bool) -> None:
    """Raise InputError if ranks exchange rows, but do not run in step."""
    spread = "distributed over the GPUs of all ranks", "Graph(placement='sharded', device='cuda')"
    if not any(isinstance(value, DistributedRows) and not value.is_whole for value in _columns(graph)):
        spread = "spread over multiple nodes", "Graph(placement='shared')"
        if not over_nodes(graph):
            return
    if not use_ddp:
        raise InputError(
            f"Expected use_ddp=True, as data of the graph are {spread[0]}, and all ranks exchange rows in every batch. "
            f"Pass use_ddp=True on all ranks, or keep the rows where each rank reads alone: {spread[1]}."
        )
