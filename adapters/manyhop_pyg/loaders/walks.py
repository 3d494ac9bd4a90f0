"""The loader of models that learn from random walks: batches of windows around nodes, made by threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from manyhop.arguments import positions
from manyhop.loading import Epoch, EpochLoader, Item, Threads, check_options, graph_facts, plain
from manyhop.loading.iterator import EpochIterator
from manyhop.loading.pipeline import Uneven
from manyhop.sampling import CONTRACT_VERSION
from manyhop.sampling.walks import Walker
from manyhop.system.ranges import ranged
from manyhop_pyg.loaders.adapter import find_pinning, pinned
from manyhop_pyg.loaders.check import check_torch_arguments
from manyhop_pyg.loaders.options import load_positions, of_ranks

Windows = tuple[Tensor, Tensor]
"""Positive and negative samples, ``[num_windows, context_size] int64`` each."""


@dataclass(frozen=True)
class WalkSource:
    """What a model gives its loader."""

    num_starts: int
    """Walks start at nodes 0, 1, ..."""

    sample: Callable[[Tensor], Windows]
    """Makes the samples of a batch around nodes ``[batch_size] int64``."""

    facts: Callable[[], tuple[Walker, dict[str, int]]]
    """Returns what walks, and ``walks_per_node`` and other numbers that samples depend on, as of now."""

    device: Callable[[], torch.device]
    """Returns where the samples are made, as of now."""


class WalkLoader(EpochLoader, DataLoader[Windows]):
    """Batches of positive and negative samples around nodes, made ahead by threads, in keyed order.

    A batch is a function of ``(seed, epoch, batch)``, on a CPU and on a GPU. If the model is on a GPU, the caller
    enqueues the walks there, and no threads are started. See :class:`manyhop_pyg.NodeLoader` for the arguments.

    Args:
        source: makes the samples.
        seed, distributed, uneven, rank_timeout: as of other loaders; batches do not mark repetitions.
        **kwargs: of torch's ``DataLoader``, as they apply to threads.

    Raises:
        InputError: arguments that do not make sense.
        RankError: with ``distributed=True``, where ranks pass other arguments, or do not come in time.
    """

    def __init__(
        self,
        source: WalkSource,
        *,
        seed: int | None = None,
        distributed: bool = False,
        uneven: Uneven | None = None,
        rank_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        check_torch_arguments(kwargs)
        check_options(distributed, uneven, rank_timeout, None, kwargs)
        self.source, self.distributed = source, distributed
        self.uneven, self.rank_timeout = of_ranks(distributed, uneven, rank_timeout)
        self._pins_batches = False
        shuffle, own_order = load_positions(self, source.num_starts, kwargs)
        self._get_ready(source.num_starts, seed, shuffle=shuffle, own_order=own_order)

    def _get_ready(self, num_items: int, seed: int | None, *, shuffle: bool, own_order: bool) -> None:
        self._set_up_epochs(num_items, seed, shuffle=shuffle, own_order=own_order)
        self._prepare_ranks()

    def __iter__(self) -> EpochIterator:  # type: ignore[override]  # an iterator of our own
        return self._get_iterator()

    def _get_iterator(self) -> EpochIterator:  # type: ignore[override]
        self._stats.on_gpu = self._is_on_gpu()
        self._pins_batches = not self._stats.on_gpu and find_pinning(wanted=self.pin_memory)
        return self._begin_epoch(self._index_sampler)

    def _is_on_gpu(self) -> bool:
        return self.source.device().type == "cuda"

    def _num_threads(self) -> int:
        return 0 if self._is_on_gpu() else self.num_workers

    def _threads(self) -> Threads:
        threads = super()._threads()
        return replace(threads, timeout=None) if self._is_on_gpu() else threads  # nothing is late

    def _nodes_of_seeds(self) -> list[tuple[Tensor, int]]:
        return [(torch.arange(self._num_items), self._num_items)]

    def _sources(self) -> list[Any]:
        return []  # samples have no rows

    def _facts(self, seed: int | None) -> dict[str, Any]:
        facts: dict[str, Any] = {"class": type(self).__name__, "version of the sampling contract": CONTRACT_VERSION}
        facts |= {"seed": seed, "batch_size": self.batch_size, "shuffle": self._shuffle, "drop_last": self.drop_last}
        facts |= {"uneven": self.uneven} | plain(self._shape())
        return facts

    def _shape(self) -> dict[str, Any]:
        walker, numbers = self.source.facts()
        return {"specification of the walks": walker.spec} | numbers | graph_facts(walker.graph)

    def _stages(self, epoch: Epoch) -> tuple[Callable[[int, Item], Windows], None, Threads]:
        @ranged("sample")
        def make(batch: int, item: Item) -> Windows:
            rank_batch, index = item
            with epoch.batch_context(batch, rank_batch):
                start = time.perf_counter()
                made = self.collate_fn(epoch.to_index(index))
                self._stats.record(rank_batch.batch, "sample", start, time.perf_counter())
            rank_batch.contents.update(self._contents(len(index), made))
            return pinned(made) if self._pins_batches else made

        return make, None, self._threads()

    def _contents(self, num_starts: int, made: Windows) -> dict[str, int]:
        """Return what is in a batch: the entries of all windows count as nodes, and the steps of walks as edges."""
        walker, numbers = self.source.facts()
        num_steps = num_starts * numbers["walks_per_node"] * len(walker.spec.steps)
        return {"seeds": num_starts, "nodes": sum([part.numel() for part in made]), "edges": num_steps}

    def collate_fn(self, index: Any) -> Windows:
        """Return the samples around nodes."""
        return self.source.sample(index if self._own_order else positions(index, self._num_items))

    def batch(self, seeds: Tensor | Sequence[int], *, key: tuple[int, int, int] | None = None) -> Windows:
        """Return the samples around these nodes now; see :meth:`manyhop_pyg.NodeLoader.batch`.

        Args:
            seeds: ``[num_seeds]`` nodes where walks start.
            key: ``(seed, epoch, batch)``; default: the loader's ``seed``, or 0 if it has none, and batch 0 of epoch 0.

        Raises:
            InputError: seeds or a key that do not make sense.
        """
        made: Windows = self._make_alone(key, lambda: self.source.sample(positions(seeds, self._num_items)))
        return made
