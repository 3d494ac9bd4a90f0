"""The beginning and the end of a graph: its batch arrives, and its results leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import Tensor
from torch.utils import _pytree as pytree

from manyhop_train.capture.buffers import Buffers
from manyhop_train.capture.results import MOST, Results, small_of

if TYPE_CHECKING:
    from manyhop_train.capture.arguments import Arguments

R = TypeVar("R")

_NOWHERE = (0,) * MOST


class Ends(Generic[R]):
    """Copies batches to buffers, and results to callers, as parts of a graph: the host writes down addresses only.

    Where no kernels can be compiled, torch's operators copy both, before and after a replay.

    Args:
        buffers: what the graph reads.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._arguments: Arguments | None = None
        self._results: Results[R] | None = None
        if buffers.copied:
            from manyhop_train.capture.arguments import Arguments  # imports triton
            from manyhop_train.capture.copies import prepare

            self._arguments = Arguments(len(buffers.copied) + MOST, buffers.device)
            prepare(len(buffers.copied), MOST, buffers.device)

    def recording(self, step: Callable[[], R]) -> Callable[[], R]:
        """Return a step with its ends, which is to be recorded."""
        arguments, buffers = self._arguments, self._buffers
        if arguments is None:
            return step
        from manyhop_train.capture.copies import enqueue_copies

        def whole() -> R:
            arguments.fetch()
            enqueue_copies([buffers.tensors[i] for i in buffers.copied], 0, arguments, out=False)
            result = step()
            leaves = pytree.tree_leaves(result)
            small = [leaves[i] for i in small_of(leaves, buffers.device)]
            enqueue_copies(small, len(buffers.copied), arguments, out=True)
            return result

        return whole

    def recorded(self, result: R) -> None:
        """Note what the graph writes."""
        self._results = Results(result, None if self._arguments is None else self._buffers.device)
        if self._arguments is not None:
            self._arguments.rewind()

    def write(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Give a batch to the next replay.

        Args:
            tensors: of the batch, in the order of the buffers.

        Returns:
            What has to live until the replay is enqueued.
        """
        buffers, arguments = self._buffers, self._arguments
        buffers.fill(tensors)
        if arguments is None:
            return ()
        sources = [tensors[i] for i in buffers.copied]
        if not all([source.is_contiguous() for source in sources]):
            sources = [source.contiguous() for source in sources]
        arguments.write(
            [*map(Tensor.data_ptr, sources), *(_NOWHERE if self._results is None else self._results.place())]
        )
        return sources

    def results(self) -> R:
        """Return the results of the replay that was enqueued last: tensors of the caller's."""
        assert self._results is not None
        if self._arguments is not None:
            self._arguments.launched()
        return self._results.copies()
