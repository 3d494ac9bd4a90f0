"""Graphs whose structure is on torch tensors, on the CPU, which stands for a GPU; and comparison with DGL's C++."""

import copy

import dgl
import torch

import manyhop_dgl.graphbolt as gb
from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too
from manyhop_dgl_cuda.index import TorchGraphIndex


def on_torch(g):
    """The same graph or block, with the same data, on torch tensors; DGL's C++ refuses it."""
    out = copy.copy(g)
    with graphs_of_cpu_too():
        out._graph = g._graph.copy_to(g._graph.ctx)
    assert type(out._graph) is TorchGraphIndex
    out._node_frames = [frame.clone() for frame in g._node_frames]
    out._edge_frames = [frame.clone() for frame in g._edge_frames]
    return out


def homogeneous(idtype=torch.int64, num_nodes=40, num_edges=300, *, empty=True):
    """A graph with edges in no order, some twice, and, if ``empty``, a node without edges into it."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(0, num_nodes, (num_edges,), generator=generator)
    dst = torch.randint(0, num_nodes - 1, (num_edges,), generator=generator)
    if not empty:
        dst[:num_nodes] = torch.arange(num_nodes)
    return dgl.graph((src, dst), num_nodes=num_nodes, idtype=idtype)


def block(idtype=torch.int64, num_src=60, num_dst=20, num_edges=200):
    """A block with edges in no order, and destinations without edges."""
    generator = torch.Generator().manual_seed(1)
    src = torch.randint(0, num_src, (num_edges,), generator=generator)
    dst = torch.randint(0, num_dst - 3, (num_edges,), generator=generator)
    return dgl.create_block((src, dst), num_src, num_dst, idtype=idtype)


def heterogeneous(idtype=torch.int64):
    """Two node types, three edge types; nodes of both types get edges of several types."""
    generator = torch.Generator().manual_seed(2)

    def edges(num_src, num_dst, num_edges):
        return tuple(torch.randint(0, n, (num_edges,), generator=generator) for n in (num_src, num_dst))

    relations = {
        ("user", "follows", "user"): edges(30, 29, 120),
        ("user", "rates", "film"): edges(30, 12, 90),
        ("film", "fan", "user"): edges(12, 30, 40),
    }
    return dgl.heterograph(relations, {"user": 30, "film": 12}, idtype=idtype)


def minibatches(device="cpu"):
    """Batches of GraphBolt's loader, sampled on a device."""
    indptr, indices, _ = homogeneous().adj_tensors("csc")
    graph = gb.fused_csc_sampling_graph(indptr, indices)
    items = gb.ItemSampler(gb.ItemSet(torch.arange(40), names="seeds"), batch_size=8)
    torch.manual_seed(0)
    return list(gb.DataLoader(items.copy_to(device).sample_neighbor(graph.to(device), [-1, -1])))


def results(function, g, tensors, module=None):
    """What a function of a graph and tensors gives, and the gradients of the tensors and of the module's parameters.

    Without libxsmm, by which DGL takes the last of equal maxima on CPUs with AVX-512.
    """
    dgl.use_libxsmm(False)
    module = copy.deepcopy(module)
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    torch.manual_seed(1)
    out = function(g, *leaves) if module is None else function(module, g, *leaves)
    outs = _flat(out)
    kept = [o.detach().clone() for o in outs]  # a layer may free its output in its backward pass
    total = sum((o * torch.linspace(-1, 1, o.numel(), dtype=o.dtype, device=o.device).view_as(o)).sum() for o in outs)
    grads = [*leaves, *(module.parameters() if module is not None else [])]
    if total.requires_grad:
        total.backward()
    return kept + [t.grad for t in grads]


def _flat(out):
    if isinstance(out, torch.Tensor):
        return [out]
    return [t for part in (out.values() if isinstance(out, dict) else out) for t in _flat(part)]


def compare(function, g, *tensors, module=None, rtol=1e-5, atol=1e-5):
    """Assert that a function gives the same with DGL's C++ and on torch tensors, gradients included."""
    expected = results(function, g, tensors, module)
    found = results(function, on_torch(g), tensors, module)
    assert len(expected) == len(found)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
