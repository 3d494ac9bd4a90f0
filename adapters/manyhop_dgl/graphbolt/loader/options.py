"""What users pass to GraphBolt's loader beside the chain of pipes."""

from __future__ import annotations

from dataclasses import dataclass

from manyhop.arguments import flags, integer
from manyhop.errors import InputError
from manyhop.loading import check_placement
from manyhop.loading.padding import Pad
from manyhop.placement import GPUMode
from manyhop_dgl.graphbolt.loader.chain import Chain
from manyhop_dgl.graphbolt.loader.padding import check_pad
from manyhop_dgl.graphbolt.stages.hints import check_hints


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options of a loader, as given; see :class:`manyhop_dgl.graphbolt.DataLoader`.

    Raises:
        InputError: an option that is none.
    """

    num_workers: int
    persistent_workers: bool
    overlap_feature_fetch: bool
    overlap_graph_fetch: bool
    max_uva_threads: int
    num_gpu_cached_edges: int
    gpu_cache_threshold: int
    placement: GPUMode | None
    pad: Pad | None

    def __post_init__(self) -> None:
        integer("num_workers", self.num_workers, 0)
        flags(
            persistent_workers=self.persistent_workers,
            overlap_feature_fetch=self.overlap_feature_fetch,
            overlap_graph_fetch=self.overlap_graph_fetch,
        )
        check_hints(
            max_uva_threads=self.max_uva_threads,
            num_gpu_cached_edges=self.num_gpu_cached_edges,
            gpu_cache_threshold=self.gpu_cache_threshold,
        )
        check_placement(self.placement, None)

    def check_chain(self, chain: Chain) -> None:
        """Raise InputError where a GPU that samples in groups could not read from the placement, or there is none;
        where minibatches cannot be padded."""
        check_pad(self.pad, chain)
        if self.placement is None:
            return
        if chain.grouped is None:
            raise InputError(
                f"Expected placement only for minibatches that are moved to a GPU before they are sampled, got "
                f"{self.placement!r}. Leave it out, or begin the chain with copy_to('cuda')."
            )
        if self.placement == "cpu-cuda":
            raise InputError(
                "Expected a placement that a GPU samples from, got 'cpu-cuda'. Leave it out, and put copy_to('cuda') "
                "at the end of the chain: the CPU then samples and gathers."
            )

    def num_threads(self, chain: Chain) -> int:
        """How many threads run the stages ahead of the caller; 0: the caller runs them."""
        return int(self.num_workers) or int(self.overlap_feature_fetch and bool(chain.ahead))
