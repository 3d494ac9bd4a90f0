"""A batch by itself, as for serving: launched and collected in as few steps of the host as there can be.

For seeds of one type, without times and excluded edges, what :class:`Launch` finds out for each launch is the same each
time. Whatever else happens (a batch that does not fit, a seed that is no node) is left to it: the sample is a function
of the request, so the batch is begun anew.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from manyhop.errors import InputError
from manyhop.graph import NodeType
from manyhop.sampling.contract import BatchKey, NodeRequest, SampledSubgraph
from manyhop.sampling.gpu.kernels import tables as t
from manyhop.sampling.gpu.launch.pool import Pool
from manyhop.sampling.gpu.launch.workspace import Workspace
from manyhop.sampling.gpu.transfer import low_64_bits, run_on

_ONE = range(1)
_SEED_COLUMNS = t.SEED_COLUMNS.value


class SinglePlan(NamedTuple):
    """What launches of so many seeds of one type have in common."""

    pool: Pool
    before: tuple[int, ...]
    """Of the descriptor: the seeds of earlier types."""
    after: tuple[int, ...]
    """Of the descriptor: what follows the address of the seeds."""

    @classmethod
    def of(cls, pool: Pool, node_type: NodeType) -> SinglePlan:
        """Return the plan for launches of a pool, which is for one batch."""
        types = pool.plan.types
        before, after = types[node_type], len(types) - types[node_type]
        return cls(pool, (0,) * (before * _SEED_COLUMNS), (0,) * (after * _SEED_COLUMNS - 2))


class Single:
    """A batch in flight.

    Args:
        node_type: type of the seeds.
        seeds: ``[n] int64``.
        key: of the batch.
        plan: for so many seeds of that type.
        workspace: of the plan's pool, on the current stream; its results are preallocated.
        memory: for the results.
        otherwise: samples a batch in any case, or raises.
    """

    __slots__ = ("_key", "_memory", "_node_type", "_otherwise", "_pool", "_seeds", "_stream", "_workspace")

    def __init__(
        self,
        node_type: NodeType,
        seeds: Tensor,
        key: BatchKey,
        plan: SinglePlan,
        workspace: Workspace,
        memory: Tensor,
        otherwise: Callable[[NodeRequest], SampledSubgraph],
    ) -> None:
        self._node_type, self._key, self._pool, self._memory = node_type, key, plan.pool, memory
        self._workspace: Workspace | None = None  # the caller's until it is launched
        self._stream, self._otherwise, host = workspace.stream, otherwise, workspace.host
        if seeds.is_cuda:
            seeds = seeds.to(workspace.plan.device).contiguous()
            address = seeds.data_ptr()
        else:
            seeds, address = seeds.contiguous(), host.seeds_address
            ctypes.memmove(address, seeds.data_ptr(), seeds.nbytes)
        self._seeds = seeds  # outlives the launch, which reads it where it is on the device
        seed, epoch, number = key
        if (seed | epoch | number) >> 63:
            seed, epoch, number = map(low_64_bits, key)
        _, stamp = workspace.begin_descriptor()
        host.write_descriptor(stamp, seed, epoch, number, 0, *plan.before, seeds.shape[0], address, *plan.after)
        workspace.launch([memory.data_ptr()])
        self._workspace = workspace

    def finish(self) -> list[SampledSubgraph]:
        """Return the sample, as :meth:`manyhop.sampling.gpu.sampler.Pending.finish` does."""
        workspace = self._workspace
        if workspace is None:
            raise InputError("This batch has been finished already. Call begin() for the next one.")
        report = workspace.wait()
        if any(report.failed):
            if not report.failed[t.BAD_SEED.value]:
                self._pool.learn(workspace, failed=True)
            self._release()
            request = NodeRequest(key=self._key, seeds={self._node_type: self._seeds})
            return [run_on(self._stream, self._otherwise, request)]
        layout, memory = workspace.layout, self._memory
        sizes = layout.sizes(_ONE, report)
        sizes.append(memory.shape[0] - sum(sizes))
        samples = list(layout.samples(memory.unsafe_split_with_sizes(sizes), _ONE, report))
        self._pool.observe(workspace, report)
        self._pool.learn(workspace, failed=False)
        self._release()
        return samples

    def _release(self) -> None:
        workspace, self._workspace = self._workspace, None
        assert workspace is not None
        self._pool.release(workspace)

    def __del__(self) -> None:
        workspace = self._workspace
        if workspace is not None:
            workspace.wait()  # the next launch overwrites the descriptor, which this one may still read
            self._release()
