"""Embeddings among the data of a graph: what a sampler prefetches comes with the batch, and is of that time."""

import pytest
import torch

import manyhop
from manyhop.errors import FeatureError, InputError
from manyhop_dgl import DataLoader, Graph, MultiLayerNeighborSampler, as_edge_prediction_sampler

NODES, WIDTH, CLASSES = 300, 8, 5


def make_graph():
    draw = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, NODES, (2, 3000), generator=draw)
    graph = Graph((src, dst), num_nodes=NODES)
    graph.ndata["label"] = torch.arange(NODES) % CLASSES
    return graph


def train(ahead, placement="shared", place_on=None, device="cpu", **options):
    """Train a small model on rows alone; return the loss of each step, and the table."""
    graph = make_graph()
    embedding = manyhop.Embedding(NODES, WIDTH, placement=placement, device=place_on, seed=1)
    if ahead:
        graph.ndata["emb"] = embedding
    sampler = MultiLayerNeighborSampler([4, 4], prefetch_node_feats=["label", "emb"] if ahead else ["label"])
    loader = DataLoader(
        graph, torch.arange(NODES), sampler, shuffle=True, seed=3, device=device, batch_size=12, **options
    )
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, CLASSES).to(device)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), manyhop.optim.Adam(embedding, lr=0.05)]
    losses = []
    for _ in range(2):
        for input_nodes, _, blocks in loader:
            rows = blocks[0].srcdata["emb"] if ahead else embedding(input_nodes)
            assert rows.requires_grad
            loss = torch.nn.functional.cross_entropy(model(rows), blocks[0].srcdata["label"])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    with torch.no_grad():
        return torch.stack(losses).tolist(), embedding(torch.arange(NODES, device=device)).clone()


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 3, "prefetch_factor": 6}], ids=str)
def test_training_is_the_same_to_the_last_bit(options):
    expected, found = train(False), train(True, **options)
    assert len(expected[0]) == 50
    assert found[0] == expected[0]
    assert torch.equal(found[1], expected[1])


def test_tensors_and_seed_edges():
    graph = make_graph()
    graph.ndata["emb"] = people = manyhop.Embedding(NODES, WIDTH)
    sampler = MultiLayerNeighborSampler([3], prefetch_node_feats=["emb"])
    for batch in DataLoader(graph, torch.arange(NODES), sampler, batch_size=50, output="tensors"):
        assert batch.node_features["emb"].requires_grad
        assert torch.equal(batch.node_features["emb"], people.weight[batch.input_nodes])
    edges = DataLoader(graph, torch.arange(100), as_edge_prediction_sampler(sampler), batch_size=50, num_workers=1)
    with torch.no_grad():
        for input_nodes, _, blocks in edges:
            assert not blocks[0].srcdata["emb"].requires_grad
            assert torch.equal(blocks[0].srcdata["emb"], people.weight[input_nodes])


def test_failures(tmp_path):
    graph = make_graph()
    with pytest.raises(FeatureError, match=f"to have {NODES} rows, one each, got an embedding of 7"):
        graph.ndata["emb"] = manyhop.Embedding(7, WIDTH)
    graph.ndata["emb"] = manyhop.Embedding(NODES, WIDTH)
    sampler = MultiLayerNeighborSampler([3], prefetch_node_feats=["emb"])
    with pytest.raises(InputError, match=r"Expected no embedding to be prefetched with pad='auto', got 'emb' of node"):
        next(iter(DataLoader(graph, torch.arange(NODES), sampler, batch_size=50, pad="auto", output="tensors")))
    with pytest.raises(FeatureError, match="Expected 'emb' as a tensor of this node; its rows are trainable"):
        graph.to_dgl()
