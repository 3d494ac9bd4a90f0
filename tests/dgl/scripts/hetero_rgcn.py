"""R-GCN on films, people and studios. Studios have nothing but an embedding; films learn from the other two."""

import dgl
import torch
import torch.nn.functional as F
from dgl.dataloading import DataLoader, MultiLayerNeighborSampler
from dgl.nn import GraphConv, HeteroGraphConv
from small_graphs import films
from torch import nn


class RGCN(nn.Module):
    def __init__(self, etypes, hidden_size, classes):
        super().__init__()
        convs = {rel: GraphConv(hidden_size, hidden_size, norm="right") for rel in etypes}
        last = {rel: GraphConv(hidden_size, classes, norm="right") for rel in etypes}
        self.layers = nn.ModuleList([HeteroGraphConv(convs, "sum"), HeteroGraphConv(last, "sum")])

    def forward(self, blocks, x):
        x = self.layers[0](blocks[0], x)
        return self.layers[1](blocks[1], {k: F.relu(v) for k, v in x.items()})


class Inputs(nn.Module):
    def __init__(self, g, hidden_size):
        super().__init__()
        self.project = nn.Linear(6, hidden_size)
        self.embed = nn.ModuleDict({t: nn.Embedding(g.num_nodes(t), hidden_size) for t in ("film", "studio")})

    def forward(self, block, input_nodes):
        x = {t: embed(input_nodes[t]) for t, embed in self.embed.items()}
        return x | {"person": self.project(block.srcnodes["person"].data["feat"])}


def main():
    torch.manual_seed(0)
    dgl.seed(0)
    g = films()
    fanouts = [{rel: 5 for rel in g.etypes}, {rel: 5 for rel in g.etypes}]
    sampler = MultiLayerNeighborSampler(
        fanouts,
        prefetch_node_feats={"person": ["feat"]},
        prefetch_labels={"film": ["label"]},
    )
    mask = g.nodes["film"].data["train_mask"]
    train, test = ({"film": m.nonzero().view(-1)} for m in (mask, ~mask))
    loader = DataLoader(g, train, sampler, batch_size=50, shuffle=True, drop_last=False)
    inputs, model = Inputs(g, 16), RGCN(g.etypes, 16, 3)
    optimizer = torch.optim.Adam([*inputs.parameters(), *model.parameters()], lr=0.02)
    for _ in range(4):
        for input_nodes, _, blocks in loader:
            logits = model(blocks, inputs(blocks[0], input_nodes))["film"]
            loss = F.cross_entropy(logits, blocks[-1].dstnodes["film"].data["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = []
    with torch.no_grad():
        for input_nodes, _, blocks in DataLoader(g, test, sampler, batch_size=100):
            logits = model(blocks, inputs(blocks[0], input_nodes))["film"]
            right.append(logits.argmax(1) == blocks[-1].dstnodes["film"].data["label"])
    print(f"accuracy {torch.cat(right).float().mean():.3f}")


if __name__ == "__main__":
    main()
