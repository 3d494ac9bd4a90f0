"""Where the GPU of a loader reads edges and data: decided when the loader is made, kept up to date."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from manyhop import _cuda
from manyhop.features import CachedRows, GPUVisits, RowRequest, is_pinnable, is_pinned, keep_hot, pin
from manyhop.graph import PlacedGraph
from manyhop.loading import Copy, Version, is_movable
from manyhop.pipeline import Streams
from manyhop.placement import GPUPlace, GPUPlacement, Item, decide_gpu
from manyhop_dgl._frames import frames
from manyhop_dgl._loader_tensors import sampler_of_nodes
from manyhop_dgl._samplers_features import wanted


class _Placed(NamedTuple):
    """What the rows of some data are read from."""

    source: Any
    version: Version
    there: Any


class GPUMemory:
    """The memories of one loader.

    Data in CPU memory whose place is the GPU are copied there once for all loaders of the process; a copy is renewed
    when the tensor has been replaced or changed in place.

    Args:
        graph: whose edges and data they are.
        sampler: says which data are wanted.
        device: the GPU.
        streams: of the loader.
        use_uva: everything large stays in host memory, pinned, where the GPU reads it.
    """

    def __init__(self, graph: Any, sampler: Any, device: torch.device, streams: Streams, *, use_uva: bool) -> None:
        self._device, self._streams = device, streams
        self.placement = _decide(graph, sampler, device, use_uva=use_uva)
        logging.getLogger("manyhop").info("DataLoader on %s:\n%s", device, self.placement)
        self._places = {choice.item.name: choice.place for choice in self.placement.features}
        self._lock = threading.Lock()
        self._placed: dict[str, _Placed] = {}

    @property
    def topology(self) -> GPUPlace:
        """The place of the tables that the sampler reads."""
        return self.placement.topology.place

    @property
    def reads_all(self) -> bool:
        """Whether the GPU reads all data by itself."""
        return all(choice.place != "host" for choice in self.placement.features)

    def placed(self, request: RowRequest) -> RowRequest:
        """The request to where the GPU reads the rows."""
        known = self._placed.get(request.name)
        if known is None or known.source is not request.source or not known.version.is_current():
            if not is_movable(request.source, self._device):
                return request
            known = self._place(request)
        return RowRequest(known.there, request.index, 0, request.name, request.bound)

    def _place(self, request: RowRequest) -> _Placed:
        source, place = request.source, self._places.get(request.name, self._worst())
        with self._lock:
            known = self._placed.get(request.name)
            if known is not None and known.source is source and known.version.is_current():
                return known  # another thread was faster
            self._streams.synchronize()  # what is about to be dropped has been read
            if place == "host":
                known = _Placed(source, Version(source), source)
            elif place == "pinned" and is_pinnable(source):
                pin(source)
                known = _Placed(source, Version(source), source)
            else:
                copy = Copy.of(source, self._device)
                known = _Placed(source, copy, copy.there)
            self._streams.synchronize()  # what is new is there
            self._placed[request.name] = known
            return known

    def _worst(self) -> GPUPlace:
        """For data that come later: where the largest of the others are, as far as there are some."""
        return max(
            self.placement.features, key=lambda choice: choice.item.nbytes, default=self.placement.topology
        ).place

    def keep_hot(self, rows: Mapping[str, Mapping[str, int]] | None, batches: Sequence[Any], prefetcher: Any) -> None:
        """Keep the rows on the GPU that batches want most often, of data in host memory.

        Args:
            rows: ``"node"`` or ``"edge"`` -> name -> rows to keep; ``None``: as many as the placement says.
            batches: some that are typical.
            prefetcher: says what they want.
        """
        visits = GPUVisits(self._device)
        nbytes = {choice.item.name: choice.cache_bytes for choice in self.placement.features}
        counts = {
            f"'{name}' of {what} type": n for what, by_name in (rows or {}).items() for name, n in by_name.items()
        }

        def note(requests: list[RowRequest]) -> list[Tensor]:
            slow = []
            for request in map(self.placed, requests):
                if not isinstance(request.source, Tensor) or request.source.is_cuda or not is_pinned(request.source):
                    continue
                if rows is not None:
                    kept = counts.get(request.name.partition(" type ")[0] + " type", 0)
                    nbytes[request.name] = kept * request.source[:1].nbytes
                if nbytes.get(request.name, 0) > 0:
                    slow.append(request)
            visits.add(slow)
            return [torch.empty(0) for _ in requests]

        for batch in batches:
            prefetcher.fill(batch, note)
        if visits.rows == 0:
            return
        cached = keep_hot(visits.hottest(sum(nbytes.values())), self._device)
        for name, known in self._placed.items():
            if id(known.source) in cached:
                self._placed[name] = known._replace(there=cached[id(known.source)])

    def take_cache_counts(self) -> tuple[int, int]:
        """Rows asked for where there is a cache, and those of them that it had, since this was called before."""
        there = {id(known.there): known.there for known in self._placed.values()}
        counts = [rows.take_counts() for rows in there.values() if isinstance(rows, CachedRows)]
        return sum(asked for asked, _ in counts), sum(found for _, found in counts)


def _decide(graph: Any, sampler: Any, device: torch.device, *, use_uva: bool) -> GPUPlacement:
    """Where edges and data go.

    Raises:
        CapacityError: it does not fit as the user wants.
    """
    nodes = sampler_of_nodes(sampler)
    edges = nodes.arguments().topology(graph).graph
    data = frames(graph)
    sources: dict[str, Any] = {}
    for names, what, kinds in (
        (nodes.prefetch_node_feats, "node", data.nodes),
        (nodes.prefetch_labels, "node", data.nodes),
        (nodes.prefetch_edge_feats, "edge", data.edges),
        ([] if nodes is sampler else sampler.prefetch_labels, "edge", data.edges),
    ):
        known = names if isinstance(names, Mapping) else [n for n in names if any(n in of for of in kinds.values())]
        for name, kind in wanted(known, kinds, what):
            sources[f"'{name}' of {what} type {kind!r}"] = kinds[kind][name]
    items = [
        Item(
            name=name,
            nbytes=int(source.nbytes),
            can_map=False,
            in_memory=True,
            on_gpu=Copy.exists(source, device),
        )
        for name, source in sources.items()
        if is_movable(source, device)
    ]
    there = PlacedGraph.exists(edges, device)
    topology = Item(
        name="topology",
        nbytes=edges.nbytes,
        can_map=False,
        in_memory=True,
        pointer_bytes=edges.pointer_bytes,
        on_gpu=there,
    )
    hardware = _cuda.hardware(device, together=False, timeout=60.0)
    return decide_gpu(topology, items, hardware, mode="pinned-cuda" if use_uva else "auto")
