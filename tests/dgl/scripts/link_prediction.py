"""GraphSAGE that tells edges from pairs without one. Seed edges are not among the edges that messages pass."""

import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, NeighborSampler, as_edge_prediction_sampler, negative_sampler
from dgl.nn import SAGEConv
from small_graphs import both_directions, communities
from torch import nn


class Model(nn.Module):
    def __init__(self, in_size, hidden_size):
        super().__init__()
        self.first = SAGEConv(in_size, hidden_size, "mean")
        self.second = SAGEConv(hidden_size, hidden_size, "mean")

    def encode(self, blocks, x):
        return self.second(blocks[1], F.relu(self.first(blocks[0], x)))

    def score(self, pairs, h):
        with pairs.local_scope():
            pairs.ndata["h"] = h
            pairs.apply_edges(dgl.function.u_dot_v("h", "h", "score"))
            return pairs.edata["score"].view(-1)


def main():
    torch.manual_seed(0)
    dgl.seed(0)
    g, reverse_eids = both_directions(communities(300))
    order = torch.randperm(g.num_edges() // 2)
    test_eids, train_eids = order[:300], order[300:]
    sampler = as_edge_prediction_sampler(
        NeighborSampler([12, 12], prefetch_node_feats=["feat"]),
        exclude="reverse_id",
        reverse_eids=reverse_eids,
        negative_sampler=negative_sampler.Uniform(1),
    )
    loader = DataLoader(g, train_eids, sampler, batch_size=128, shuffle=True, drop_last=True, num_workers=0)
    model = Model(8, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        for _, pairs, negatives, blocks in loader:
            h = model.encode(blocks, blocks[0].srcdata["feat"])
            scores = torch.cat([model.score(pairs, h), model.score(negatives, h)])
            wanted = torch.cat([torch.ones(pairs.num_edges()), torch.zeros(negatives.num_edges())])
            loss = F.binary_cross_entropy_with_logits(scores, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    above = []
    with torch.no_grad():
        for _, pairs, negatives, blocks in DataLoader(g, test_eids, sampler, batch_size=100):
            h = model.encode(blocks, blocks[0].srcdata["feat"])
            above.append(model.score(pairs, h)[:, None] > model.score(negatives, h)[None])
    print(f"accuracy {torch.cat([x.flatten() for x in above]).float().mean():.3f}")


if __name__ == "__main__":
    main()
