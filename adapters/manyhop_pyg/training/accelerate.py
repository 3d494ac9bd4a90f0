"""``accelerate``: unchanged PyG models aggregate by segments of sorted edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch

from manyhop.errors import InputError

M = TypeVar("M", bound=torch.nn.Module)


@dataclass(frozen=True, kw_only=True)
class Accelerated:
    """Which layers of a model :func:`accelerate` reached."""

    reached: list[str] = field(default_factory=list)
    """Names of layers, as in ``model.named_modules()``."""

    others: dict[str, str] = field(default_factory=dict)
    """Names of the other layers that pass messages, and why they are left as they are."""


def accelerate(model: torch.nn.Module, *, trim: bool = False) -> Accelerated:
    """Let the layers of a PyG model aggregate by segments of sorted edges, without atomics.

    Reaches ``SAGEConv``, ``GCNConv``, ``GINConv`` and ``GraphConv`` with sums, means and maxima, ``GATConv`` and
    ``GATv2Conv``. Parameters, state dicts and results (within rounding) stay as they are; gradients become
    deterministic. Subclasses of these layers and all other layers are left alone. A layer runs PyG's own code where it
    is called with anything but plain edges ``[2, num_edges]`` and rows ``[num_nodes, num_channels]``, with PyG's hooks,
    or to be explained.

    Batches of manyhop's loaders are known to be sorted; other edges are sorted once per call of the model.

    With ``trim=True``, a layer computes only the rows that the following layers need for those of the seeds, on the
    edges that lead there. The output begins with the rows of the seeds, ``[: batch.batch_size]``, which are right;
    the following ones may be missing: use none of them. The first call of the model computes all rows, and counts the
    layers. A model that is called on other edges than those of a batch of ``NeighborLoader`` or ``LinkNeighborLoader``
    computes all rows, and so do layers that are called one by one, outside of the model. In training, a line of the log
    (``manyhop``) reports it.

    Args:
        model: is changed in place.
        trim: compute only what the rows of seeds depend on. All layers that pass messages must be reached, and the
            model must not add or concatenate rows of different layers: that raises an error.

    Returns:
        The layers reached, and the others with a reason.

    Raises:
        InputError: ``model`` is no module, or ``trim=True`` and a layer is not reached, or there is none.
    """
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"Expected a torch.nn.Module, got a {type(model).__name__}. Pass the model.")
    from torch_geometric.nn import MessagePassing

    from manyhop_pyg.training.layers import PassEdges, obstacle, replace, replace_trims
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
        raise InputError(f"Expected layers that accelerate reaches, got {got}. Leave out trim=True.")
    for name in found.reached:
        replace(layers[name], edges)
    if trim:
        replace_trims(model, edges)
    if found.reached:
        model.register_forward_pre_hook(edges.begin)
        model.register_forward_hook(edges.end, always_call=True)
    return found
