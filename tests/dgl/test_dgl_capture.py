"""``manyhop_dgl.capture``: steps on padded blocks are recorded once per size; a stand-in records on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from tape import NeverWaits
from test_dgl_loader_tensors import graph, links, loader
from torch_graphs import on_torch

import manyhop_dgl
from manyhop.errors import InputError
from manyhop.masks import masked_mean
from manyhop_dgl.samplers import blocks as blocks_
from manyhop_dgl_cuda import kernels
from manyhop_dgl_cuda.dispatch import graphs_of_cpu_too

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
nn = dgl.nn.pytorch


def batches_of(loader):
    """A loader's batches with graphs on torch tensors, as on CUDA."""

    def moved(part):
        if isinstance(part, list):
            return [on_torch(block) for block in part]
        return on_torch(part) if isinstance(part, dgl.DGLGraph) else part

    return [tuple(map(moved, batch)) if isinstance(batch, tuple) else batch for batch in loader]


class Sage(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layers = torch.nn.ModuleList([make(3, 8), make(8, 100)])

    def forward(self, blocks, h):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, h)
            h = h if i else F.relu(h)
        return h


LAYERS = {
    "sage": lambda n, m: nn.SAGEConv(n, m, "mean"),
    "gat": lambda n, m: Mean(nn.GATConv(n, m, 2, allow_zero_in_degree=True)),
    "gcn": lambda n, m: nn.GraphConv(n, m, norm="right", allow_zero_in_degree=True),
    "gcn, both": lambda n, m: nn.GraphConv(n, m, allow_zero_in_degree=True),
}


class Mean(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, block, h):
        return self.layer(block, h).mean(1)


def make_step(model, optimizer):
    def step(batch):
        _, _, blocks = batch
        out = model(blocks, blocks[0].srcdata["x"])
        found = F.cross_entropy(out, blocks[-1].dstdata["y"], reduction="none")
        mask = blocks[-1].dstdata
        loss = masked_mean(found, mask["node_mask"]) if "node_mask" in mask else found.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def losses(layer, *, captured, **options):
    torch.manual_seed(0)
    model = Sage(LAYERS[layer])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=True)
    step = make_step(model, optimizer)
    step = manyhop_dgl.capture(step) if captured else step
    made = loader("plain", batch_size=8, **options)
    return [step(batch).item() for _ in range(2) for batch in batches_of(made)], step


@pytest.mark.parametrize("layer", LAYERS)
def test_losses_are_those_of_the_eager_run(tape, layer):
    plain, _ = losses(layer, captured=False)
    padded, _ = losses(layer, captured=False, pad="auto")
    found, step = losses(layer, captured=True, pad="auto")
    assert (step.eager, step.replayed, step.graphs) == (3, 13, 1)
    assert torch.allclose(torch.tensor(found), torch.tensor(padded), atol=1e-4)
    assert torch.allclose(torch.tensor(padded), torch.tensor(plain), atol=1e-4)
    assert len(set(plain)) > 8


@pytest.mark.parametrize(("layer", "way"), [*((layer, "torch") for layer in LAYERS), ("sage", "triton")])
def test_layers_on_blocks_never_wait(layer, way, monkeypatch):
    if way == "triton":
        pytest.importorskip("triton")
        monkeypatch.setattr(kernels, "_has_kernels", lambda table: True)  # in the interpreter, which is no part of this
    model = Sage(LAYERS[layer])
    step = make_step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = batches_of(loader("plain", batch_size=8, pad="auto"))[0]
    with NeverWaits():
        step(batch)


def test_seed_edges_and_tensors(tape):
    for options in ({}, {"output": "tensors"}):
        model = torch.nn.Linear(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def score(batch, model=model):
            if isinstance(batch, manyhop_dgl.EdgeTensors):
                h = model(batch.sample.node_features["x"])
                return h, batch.positives, batch.positive_mask, batch.negatives, batch.negative_mask
            _, positive, negative, blocks = batch
            h = model(blocks[0].srcdata["x"])
            return h, positive.edges(), positive.edata["edge_mask"], negative.edges(), negative.edata["edge_mask"]

        def step(batch, optimizer=optimizer, score=score):
            h, (src, dst), mask, (fake_src, fake_dst), fake_mask = score(batch)
            good, bad = (h[src] * h[dst]).sum(1)[:, None], (h[fake_src] * h[fake_dst]).sum(1)[:, None]
            loss = (F.softplus(-good) * mask[:, None]).sum() + (F.softplus(bad) * fake_mask[:, None]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return {"loss": loss}

        captured = manyhop_dgl.capture(step)
        made = links("plain", graph("plain"), batch_size=8, pad="auto", **options)
        found = [captured(batch)["loss"].item() for _ in range(2) for batch in batches_of(made)]
        assert captured.eager + captured.replayed == 14
        assert captured.replayed >= 9
        assert len(set(found)) == len(found) == 14


@pytest.mark.parametrize("kind", ["plain", "typed"])
@pytest.mark.parametrize("change", ["nothing", "rows", "a part is read"])
def test_blocks_are_not_made_for_a_replay(tape, kind, change):
    """Blocks that nobody has read are copied as what they are made of; others, which may be changed, part by part."""

    def changed(batch):
        blocks = batch[2]
        if change == "a part is read":
            assert blocks[0].num_edges(blocks[0].etypes[0])
        if change == "rows":
            for t in blocks[0].srctypes:
                blocks[0].srcnodes[t].data["x"] = 2 * blocks[0].srcnodes[t].data["x"]
        return batch

    def step(batch):
        total = torch.zeros(())
        for block in batch[2]:
            for t in block.canonical_etypes:
                src, dst = block.edges(etype=t)
                weight = block.edges[t].data["w"] * block.edges[t].data["edge_mask"]
                total = total + (weight * (src + 2 * dst + block.edges[t].data[dgl.EID])).sum()
        for t in batch[2][0].srctypes:
            nodes = batch[2][0].srcnodes[t].data
            total = total + (nodes["x"] * nodes["node_mask"][:, None] * nodes[dgl.NID][:, None]).sum()
        ids = [*batch[1].values()] if isinstance(batch[1], dict) else [batch[1]]
        return total + 3 * sum(one.sum() for one in ids)

    with graphs_of_cpu_too():
        expected = [step(changed(batch)) for batch in loader(kind, batch_size=8, pad="auto")]
        captured = manyhop_dgl.capture(step)
        found, unread = [], []
        for batch in loader(kind, batch_size=8, pad="auto"):
            found.append(captured(changed(batch)))
            unread.append(all(isinstance(block, blocks_._LazyBlock) for block in batch[2]))
    assert torch.allclose(torch.stack(found), torch.stack(expected))
    assert captured.replayed >= 4
    assert all(unread[4:]) == (change == "nothing")


def test_blocks_of_different_batches(tape):
    """Together they are no batch of a loader."""
    step = manyhop_dgl.capture(lambda batch: batch[0].srcdata[dgl.NID].sum() + batch[1].srcdata[dgl.NID].sum())
    with graphs_of_cpu_too():
        first, *batches = [blocks for _, _, blocks in loader("plain", batch_size=8, pad="auto")]
        for blocks in batches:
            expected = first[0].srcdata[dgl.NID].sum() + blocks[1].srcdata[dgl.NID].sum()
            assert step([first[0], blocks[1]]) == expected
    assert step.replayed > 0


def test_batches_that_are_not_padded(tape):
    step = manyhop_dgl.capture(lambda batch: None)
    for output in ("blocks", "tensors"):
        with pytest.raises(InputError, match=r"got one that is not padded\. Make the DataLoader with pad='auto'"):
            step(next(iter(loader("plain", output=output))))
    with pytest.raises(InputError, match="Expected a function of a batch, got a int"):
        manyhop_dgl.capture(3)
