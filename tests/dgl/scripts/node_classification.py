"""GraphSAGE on sampled neighbourhoods; afterwards all nodes, layer by layer."""

import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, MultiLayerFullNeighborSampler, NeighborSampler
from dgl.nn import SAGEConv
from small_graphs import communities
from torch import nn


class SAGE(nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                SAGEConv(in_size, hidden_size, "mean"),
                SAGEConv(hidden_size, out_size, "mean"),
            ]
        )

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if i < len(self.layers) - 1:
                x = F.relu(x)
        return x

    @torch.no_grad()
    def inference(self, g, batch_size):
        """One loader for all layers: each takes what the one before has put into the graph."""
        g.ndata["h"] = g.ndata["feat"]
        sampler = MultiLayerFullNeighborSampler(1, prefetch_node_feats=["h"])
        loader = DataLoader(g, torch.arange(g.num_nodes()), sampler, batch_size=batch_size, num_workers=0)
        for i, layer in enumerate(self.layers):
            y = torch.empty(g.num_nodes(), layer._out_feats)
            for _, output_nodes, blocks in loader:
                h = layer(blocks[0], blocks[0].srcdata["h"])
                y[output_nodes[0] : output_nodes[-1] + 1] = F.relu(h) if i < len(self.layers) - 1 else h
            g.ndata["h"] = y
        return g.ndata.pop("h")


def main():
    torch.manual_seed(0)
    dgl.seed(0)
    g = communities()
    sampler = NeighborSampler([6, 6], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    train_idx = g.ndata["train_mask"].nonzero().view(-1)
    loader = DataLoader(g, train_idx, sampler, batch_size=64, shuffle=True, drop_last=False, num_workers=0)
    model = SAGE(8, 16, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(6):
        for _, _, blocks in loader:
            logits = model(blocks, blocks[0].srcdata["feat"])
            loss = F.cross_entropy(logits, blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    predicted = model.inference(g, 200).argmax(1)
    right = (predicted == g.ndata["label"])[g.ndata["test_mask"]]
    print(f"accuracy {right.float().mean():.3f}")


if __name__ == "__main__":
    main()
