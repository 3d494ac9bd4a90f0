"""``accelerate``: unchanged PyG models aggregate by segments of sorted edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch

from manyhop.errors import InputError

M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True, kw_only=True)
class Accelerated:
    """The layers of a model that :func:`accelerate` has changed."""

    reached: list[str] = field(default_factory=list)
    """Names of layers, as in ``model.named_modules()``."""

    others: dict[str, str] = field(default_factory=dict)
    """Names of the other message passing layers, and why they are unchanged."""


def accelerate(model: torch.nn.Module, *, trim: bool = False) -> Accelerated:
    """Aggregate by segments of sorted edges, without atomics, in the layers of a PyG model.

    Applies to ``SAGEConv``, ``GCNConv``, ``GINConv`` and ``GraphConv`` with sums, means and maxima, ``GATConv`` and
    ``GATv2Conv``. Parameters, state dicts and results (within rounding) are unchanged; gradients become deterministic.
    Subclasses of these layers and other layers are unchanged. A layer runs PyG's code if its arguments are not plain
    edges ``[2, num_edges]`` and rows ``[num_nodes, num_channels]``, if it has PyG's hooks, or if it is explained.

    Batches of manyhop's loaders are sorted; other edges are sorted once per call of the model.

    With ``trim=True``, a layer computes only the rows and edges that the rows of the seeds depend on. The output begins
    with the rows of the seeds, ``[: batch.batch_size]``; do not use others. The first call of the model computes all
    rows and counts the layers. All rows are also computed if the edges do not come from ``NeighborLoader`` or
    ``LinkNeighborLoader``, and if layers are called outside of the model; training then logs a warning.

    Args:
        model: model to change in place.
        trim: compute only rows that the rows of seeds depend on. All message passing layers must be accelerated, and
            the model must not add or concatenate rows of different layers, which raises an error.

    Returns:
        The accelerated layers, and the others with a reason.

    Raises:
        InputError: ``model`` is not a module, or ``trim=True`` with other layers or none.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"Expected a torch.nn.Module, got a {type(model).__name__}. Pass the model.")
    from torch_geometric.nn import MessagePassing

    from manyhop_pyg.training.layers import PassEdges, obstacle, replace
    from manyhop_pyg.training.trim import Trim

    edges = PassEdges(Trim() if trim else None)
    found = Accelerated()
    layers = {name: module for name, module in model.named_modules() if isinstance(module, MessagePassing)}
    for name, module in layers.items():
        reason = obstacle(module)
        if reason is None:
            found.reached.append(name)
        else:
            found.others[name] = reason
    if trim and (found.others or not found.reached):
        got = "; ".join(f"{name}: {reason}" for name, reason in found.others.items()) or "none"
        raise InputError(f"Expected layers that accelerate supports, got {got}. Leave out trim=True.")
    for name in found.reached:
        replace(layers[name], edges)
    if found.reached:
        model.register_forward_pre_hook(edges.begin)
        model.register_forward_hook(edges.end, always_call=True)
    return found
