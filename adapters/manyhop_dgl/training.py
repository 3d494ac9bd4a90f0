"""``capture``: training steps on padded batches of DGL and GraphBolt as CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

import dgl
from dgl.frame import Frame
from dgl.heterograph_index import HeteroGraphIndex
from torch import Tensor

from manyhop.errors import InputError
from manyhop_dgl.samplers.blocks import make_blocks, unread
from manyhop_dgl.samplers.tensors import BlockTensors, Composite, all_in_nested
from manyhop_train.capture import CapturedStep

R = TypeVar("R")

_ATOMS: Final = frozenset({int, float, str, bool})


def capture(
    step: Callable[[Any], R], *, watch: Sequence[object] = (), verify: int | None = None
) -> CapturedStep[Any, R]:
    """Capture a training step once per size of its batches as a CUDA graph, and replay it afterwards.

    ``step(batch)`` takes what the loader yields, such as ``(input_nodes, output_nodes, blocks)``, calculates the loss,
    its gradients and the optimizer's update; it may return tensors, of which the caller gets detached copies. Its
    Python code runs in the first three steps, in the first two of each size, and then no more: it must not wait for the
    GPU (``.item()``, a condition on a tensor, a shape from data; layers with ``allow_zero_in_degree=False`` do), nor
    count in Python. Otherwise it runs eagerly, and a line of the log (``manyhop``) names the line of the step.

    A replay repeats recorded kernels. The batch, parameters, buffers, states of optimizers and learning rates of Adam,
    AdamW, RMSprop and fused SGD may change from step to step; another setting of an optimizer or a module, or of an
    object in ``watch``, captures the step again. Whatever else the step reads must remain unchanged, which is checked.

    Args:
        step: a function of a batch of a :class:`DataLoader` with ``pad="auto"``: blocks, graphs of seed edges and
            negatives, or tensors (``output="tensors"``); or of a minibatch of GraphBolt's loader, whose blocks are then
            made while the step is recorded. Can be used as a decorator.
        watch: objects that the step reads and that may change, such as the arguments of a script: their attributes or
            entries are numbers, strings, tensors, or lists and dictionaries of these.
        verify: every how many replays the same step also runs eagerly from the same state, and results, gradients and
            parameters are compared. By default, these are the first two replays of each graph and as many later ones
            as take 1 % of the time; 0: none.

    Returns:
        The function to call instead. Its attributes ``eager``, ``replayed`` and ``graphs`` count steps and graphs.

    Raises:
        InputError: ``step`` is no function of one argument, or ``watch`` or ``verify`` are wrong; or, when the first
            batch comes, that batch is not padded, or its graphs on a GPU belong to a build of DGL with CUDA.
        StaleStepError: by the step, after a replay that computed something else than the eager step.
    """
    return CapturedStep(step, _BatchLayout(), watch=watch, verify=verify)


class _BatchLayout:
    """The ``Layout`` of blocks, graphs and tensors in tuples, lists, dictionaries and dataclasses."""

    def check(self, batch: object) -> None:
        """Raise InputError if a batch is not padded, or a CUDA graph cannot read it."""
        graphs = all_in_nested(dgl.DGLGraph, batch)
        if not (_has_masks(batch) or any("edge_mask" in frame for g in graphs for frame in g._edge_frames)):
            raise InputError(
                "Expected a batch of fixed size, got one that is not padded. Make the DataLoader with pad='auto'."
            )
        for g in graphs:
            if g.device.type != "cpu" and not _is_on_torch(g):
                raise InputError(
                    "Expected graphs on torch tensors, which DGL's wheel for CPUs has on a GPU, got one of a build of "
                    "DGL with CUDA. Install that wheel, or capture steps on output='tensors'."
                )

    def contents(self, batch: object) -> tuple[list[Tensor], Hashable]:
        """Return the tensors of structures, frames and containers; and types, names and numbers of nodes, and the
        values of what is no tensor."""
        tensors: list[Tensor] = []
        others: list[object] = []
        _read(batch, tensors, others)
        return tensors, tuple(others)

    def with_tensors(self, batch: object, tensors: Sequence[Tensor]) -> object:
        """Return a batch with other tensors."""
        new = iter(tensors)
        return _mapped(batch, lambda tensor: next(new))


def _read(value: object, tensors: list[Tensor], others: list[object]) -> None:
    """Add the tensors of a value, and all else that a step may depend on."""
    if isinstance(value, Tensor):
        tensors.append(value)
        others.append(Tensor)
    elif value is None or type(value) in _ATOMS:
        others.append(value)
    elif isinstance(value, dgl.DGLGraph):
        _read_graph(value, tensors, others)
    elif isinstance(value, BlockTensors):
        _read_blocks(value, tensors, others)
    elif isinstance(value, Mapping):
        others += (Mapping, len(value))
        for key, part in value.items():
            others.append(key)
            _read(part, tensors, others)
    elif isinstance(value, list) and (own := unread(value)) is not None:
        _read_blocks(own[0], tensors, others)
    elif isinstance(value, list | tuple):
        others += (type(value), len(value))
        for part in value:
            _read(part, tensors, others)
    elif (parts := _parts_of(value)) is not None:
        others += (type(value), len(parts))
        for name, part in parts.items():
            others.append(name)
            _read(part, tensors, others)
    else:
        others.append(value if isinstance(value, Hashable) else id(value))


def _is_on_torch(g: dgl.DGLGraph) -> bool:
    """Return whether the structure consists of torch tensors, not of DGL's C++ objects."""
    return type(g._graph) is not HeteroGraphIndex


def _read_graph(g: dgl.DGLGraph, tensors: list[Tensor], others: list[object]) -> None:
    others += (type(g), *g.canonical_etypes)
    if _is_on_torch(g):
        for relation in g._graph.relations:
            tensors += relation.tensors()
    for frame in (*g._node_frames, *g._edge_frames):
        others += (frame.num_rows, len(frame._columns), *frame._columns)
        tensors += [column.data for column in frame._columns.values()]


def _read_blocks(blocks: BlockTensors, tensors: list[Tensor], others: list[object]) -> None:
    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    blocks.map(note)
    hops = blocks.hops
    others += (BlockTensors, *blocks.node, hops.weights is None, hops.masks is None, blocks.masks is None)
    others += [tuple(counts.values()) for counts in hops.num_nodes]
    for edge_type, counts in hops.num_edges.items():
        others += (edge_type, *counts)
    features: list[Mapping[str, Any]] = [blocks.node_features, blocks.output_features, *blocks.edge_features]
    for rows in features:
        others += (len(rows), *[(name, *(some if isinstance(some, dict) else ())) for name, some in rows.items()])


def _parts_of(value: object) -> dict[str, object] | None:
    """Return the parts of minibatches and dataclasses, by name; ``None`` for other values."""
    if isinstance(value, Composite):
        return {name: getattr(value, name) for name in value.moving()}  # without values that remain on the CPU
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return None


def _mapped(value: object, change: Callable[[Tensor], Tensor]) -> object:
    """Change each tensor, in the order of :func:`_read`."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dgl.DGLGraph):
        return _mapped_graph(value, change)
    if isinstance(value, BlockTensors):
        return value.map(change)
    if isinstance(value, Mapping):
        return {key: _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list) and (own := unread(value)) is not None:
        return make_blocks(own[0].map(change), None, own[1])
    if isinstance(value, list | tuple):
        parts: list[Any] = [_mapped(part, change) for part in value]
        return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    named = _parts_of(value)
    if named is None:
        return value
    changed = {name: _mapped(part, change) for name, part in named.items()}
    if not isinstance(value, Composite):
        return replace(value, **changed)  # type: ignore[type-var]  # a dataclass
    out = copy.copy(value)
    for name, part in changed.items():
        setattr(out, name, part)
    return out


def _mapped_graph(g: dgl.DGLGraph, change: Callable[[Tensor], Tensor]) -> dgl.DGLGraph:
    out = copy.copy(g)
    if _is_on_torch(g):  # else it remains: steps on the CPU are not recorded
        out._graph = g._graph.with_relations([relation.map(change) for relation in g._graph.relations])
    for name in ("_node_frames", "_edge_frames"):
        frames = getattr(g, name)
        setattr(out, name, [_mapped_frame(frame, change) for frame in frames])
    return out


def _mapped_frame(frame: Frame, change: Callable[[Tensor], Tensor]) -> Frame:
    return Frame({key: change(column.data) for key, column in frame._columns.items()}, num_rows=frame.num_rows)


def _has_masks(batch: object) -> bool:
    if isinstance(batch, Composite):
        return getattr(batch, "node_mask", None) is not None
    sample = getattr(batch, "sample", batch)
    return getattr(sample, "masks", None) is not None
