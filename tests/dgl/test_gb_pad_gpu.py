"""Padded minibatches on a GPU: equal to those of the CPU, and steps on them captured."""

import pytest
import torch
from gb_graphs import batches, random_graph
from test_gb_pad import CHAINS, STORE, nodes, parts

import manyhop_dgl
import manyhop_dgl.graphbolt as gb

dgl = pytest.importorskip("dgl", "2.1", reason="DGL is not installed: pip install 'manyhop[dgl]'")
pytestmark = pytest.mark.gpu


def on_gpu(pipe):
    """The same chain with copy_to("cuda") at its beginning."""
    stage = pipe
    while not isinstance(stage, gb.CopyTo):
        stage = stage.datapipe
    stage.device = torch.device("cuda")
    return pipe


@pytest.mark.parametrize("chain", CHAINS)
def test_a_gpu_makes_the_same_padded_minibatches(chain):
    found, expected = list(gb.DataLoader(on_gpu(chain()), pad="auto")), list(gb.DataLoader(chain(), pad="auto"))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("input_nodes", "node_mask", "seed_mask", "seeds", "compacted_seeds", "labels"):
            mine, other = parts(getattr(ours, name)), parts(getattr(theirs, name))
            assert all(value is None or torch.equal(mine[t].cpu(), value) for t, value in other.items()), name
        assert all(torch.equal(ours.node_features[key].cpu(), rows) for key, rows in theirs.node_features.items())
        for layer, other in zip(ours.sampled_subgraphs, theirs.sampled_subgraphs, strict=True):
            for name in ("original_edge_ids", "edge_mask", "row_mask"):
                mine, values = parts(getattr(layer, name)), parts(getattr(other, name))
                assert all(torch.equal(mine[t].cpu(), value) for t, value in values.items()), name
            for t, csc in parts(other.sampled_csc).items():
                assert torch.equal(parts(layer.sampled_csc)[t].indices.cpu(), csc.indices)
                assert torch.equal(parts(layer.sampled_csc)[t].indptr.cpu(), csc.indptr)


@pytest.mark.parametrize("pad", [None, "auto"])
def test_one_minibatch_of_given_seeds(pad):
    loader = gb.DataLoader(on_gpu(nodes()), pad=pad)
    for one in list(loader):
        again = loader.batch(one.seeds if pad is None else one.seeds[one.seed_mask], key=one.key)
        assert torch.equal(again.input_nodes, one.input_nodes)
        assert torch.equal(again.node_features["x"], one.node_features["x"])
        assert again.input_nodes.is_cuda


@pytest.mark.parametrize("form", ["minibatch", "blocks", "pyg"])
def test_captured_losses_are_those_of_the_eager_run(form):
    graph, results = random_graph(), []
    for captured in (False, True):
        torch.manual_seed(0)
        first, second = (dgl.nn.SAGEConv(3, n, "mean").cuda() for n in (3, 4))
        optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.02)

        def step(batch, first=first, second=second, optimizer=optimizer):
            if form == "pyg":
                x, labels, mask = batch.node_features["x"], batch.labels, batch.seed_mask
                for layer, net in zip(batch.sampled_subgraphs, (first, second), strict=True):
                    (_, target), (src, dst), _ = layer.to_pyg(x)
                    x = net.fc_neigh(torch.zeros_like(target).index_add(0, dst, x[src])) + net.fc_self(target)
            else:
                blocks, x, labels, mask = batch if form == "blocks" else unpacked(batch)
                x = second(blocks[1], first(blocks[0], x))
            losses = torch.nn.functional.cross_entropy(x, labels, reduction="none")
            loss = (losses * mask).sum() / mask.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        step = manyhop_dgl.capture(step) if captured else step
        items = torch.arange(50), torch.arange(50) % 4
        pipe = batches(("seeds", "labels"), items, batch_size=16, seed=5).copy_to("cuda")
        pipe = pipe.sample_neighbor(graph, [3, 2])
        loader = gb.DataLoader(pipe.fetch_feature(STORE, ["x"]), pad="auto")
        made = (unpacked(one) if form == "blocks" else one for _ in range(5) for one in loader)
        results.append([step(batch).item() for batch in made])
    assert step.replayed >= 16
    assert torch.allclose(*map(torch.tensor, results), atol=1e-2)


def unpacked(minibatch):
    return minibatch.blocks, minibatch.node_features["x"], minibatch.labels, minibatch.seed_mask
