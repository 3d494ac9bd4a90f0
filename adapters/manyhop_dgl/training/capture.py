"""``capture``: training steps on padded batches of DGL's and GraphBolt's classes as CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import dgl
from dgl.frame import Frame
from torch import Tensor

from manyhop.capture import CapturedStep
from manyhop.errors import InputError
from manyhop_dgl.graphbolt.items.minibatch import MiniBatch
from manyhop_dgl.graphbolt.stages.base import Movable
from manyhop_dgl.torch_graphs.index import TorchGraphIndex

R = TypeVar("R")


def capture(step: Callable[[Any], R]) -> CapturedStep[Any, R]:
    """Capture a training step once per size of its batches as a CUDA graph, and replay it afterwards.

    ``step(batch)`` takes what the loader yields, such as ``(input_nodes, output_nodes, blocks)``, calculates the loss,
    its gradients and the optimizer's update; it may return tensors, of which the caller gets detached copies. Its
    Python code runs in the first three steps, in the first two of each size, and then no more: it must not wait for the
    GPU (``.item()``, a condition on a tensor, a shape from data; layers with ``allow_zero_in_degree=False`` do), nor
    count in Python. Otherwise it runs eagerly, and a line of the log (``manyhop``) names the line of the step.

    Adam, AdamW and others with an option ``capturable`` get it set. Learning rates of Adam and AdamW may change at any
    step; a change of another setting of an optimizer captures the step again. Schedulers stay outside.

    Args:
        step: a function of a batch of a :class:`DataLoader` with ``pad="auto"``: blocks, graphs of seed edges and
            negatives, or tensors (``output="tensors"``); or of a minibatch of GraphBolt's loader, whose blocks are then
            made while the step is recorded. Can be used as a decorator.

    Returns:
        What is called in its place. Its attributes ``eager``, ``replayed`` and ``graphs`` count steps and graphs.

    Raises:
        InputError: ``step`` cannot be called; or, when the first batch comes, that batch is not padded, or its graphs
            on a GPU belong to a build of DGL with CUDA.
    """
    if not callable(step):
        raise InputError(f"Expected a function of a batch, got a {type(step).__name__}.")
    return CapturedStep(step, _BatchLayout())


class _BatchLayout:
    """The ``Layout`` of blocks, graphs and tensors in tuples, lists, dictionaries and dataclasses."""

    def check(self, batch: object) -> None:
        """Raise InputError where a batch is not padded, or cannot be read by a CUDA graph."""
        graphs = _graphs(batch)
        if not (_has_masks(batch) or any("edge_mask" in frame for g in graphs for frame in g._edge_frames)):
            raise InputError(
                "Expected a batch of fixed size, got one that is not padded. Make the DataLoader with pad='auto'."
            )
        for g in graphs:
            if g.device.type != "cpu" and type(g._graph) is not TorchGraphIndex:
                raise InputError(
                    "Expected graphs on torch tensors, which DGL's wheel for CPUs has on a GPU, got one of a build of "
                    "DGL with CUDA. Install that wheel, or capture steps on output='tensors'."
                )

    def contents(self, batch: object) -> tuple[list[Tensor], Hashable]:
        """Return the tensors of structures, frames and containers; and types, names and numbers of nodes, and the
        values of what is no tensor."""
        found: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            found.append(tensor)
            return tensor

        _mapped(batch, note)
        return found, _frozen(batch)

    def with_tensors(self, batch: object, tensors: Sequence[Tensor]) -> object:
        """Return a batch with other tensors."""
        new = iter(tensors)
        return _mapped(batch, lambda tensor: next(new))


def _mapped(value: object, change: Callable[[Tensor], Tensor]) -> object:
    """The same with each tensor changed, in an order that batches of a size have in common."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dgl.DGLGraph):
        return _mapped_graph(value, change)
    if isinstance(value, Movable):
        out = copy.copy(value)
        for name in value.moving():  # which leaves out what stays on the CPU
            setattr(out, name, _mapped(getattr(value, name), change))
        return out
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, tuple):
        parts: list[Any] = [_mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [_mapped(part, change) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _mapped(getattr(value, one.name), change) for one in fields(value)})
    return value


def _mapped_graph(g: dgl.DGLGraph, change: Callable[[Tensor], Tensor]) -> dgl.DGLGraph:
    out = copy.copy(g)
    if type(g._graph) is TorchGraphIndex:  # else it stays: steps on the CPU are not recorded
        out._graph = g._graph.with_relations([relation.map(change) for relation in g._graph.relations])
    for name in ("_node_frames", "_edge_frames"):
        frames = getattr(g, name)
        setattr(out, name, [_mapped_frame(frame, change) for frame in frames])
    return out


def _mapped_frame(frame: Frame, change: Callable[[Tensor], Tensor]) -> Frame:
    return Frame({key: change(column.data) for key, column in frame._columns.items()}, num_rows=frame.num_rows)


def _graphs(value: object) -> list[dgl.DGLGraph]:
    """The graphs in a batch."""
    if isinstance(value, dgl.DGLGraph):
        return [value]
    if isinstance(value, Mapping):
        return [g for part in value.values() for g in _graphs(part)]
    return [g for part in value for g in _graphs(part)] if isinstance(value, list | tuple) else []


def _has_masks(batch: object) -> bool:
    """Whether a batch of tensors is padded."""
    if isinstance(batch, MiniBatch):
        return batch.node_mask is not None
    sample = getattr(batch, "sample", batch)
    return getattr(sample, "masks", None) is not None


def _frozen(value: object) -> Hashable:
    """A value that equals another where a step cannot tell them apart."""
    if isinstance(value, Tensor):
        return None
    if isinstance(value, dgl.DGLGraph):
        frames = tuple(tuple(frame._columns) for frame in (*value._node_frames, *value._edge_frames))
        sizes = tuple(frame.num_rows for frame in value._node_frames)
        return type(value), tuple(value.canonical_etypes), sizes, frames
    if isinstance(value, Movable):
        return type(value), tuple((name, _frozen(getattr(value, name))) for name in value.moving())
    if isinstance(value, Mapping):
        return tuple((key, _frozen(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    if is_dataclass(value) and not isinstance(value, type):
        return tuple((one.name, _frozen(getattr(value, one.name))) for one in fields(value))
    return value if isinstance(value, Hashable) else id(value)
