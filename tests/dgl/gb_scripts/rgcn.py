"""Classes of papers, from papers and authors: a convolution per relation."""

import sys
from itertools import pairwise

import dgl.graphbolt as gb
import dgl.nn as dglnn
import torch
import torch.nn.functional as F


class RGCN(torch.nn.Module):
    def __init__(self, relations, sizes):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            dglnn.HeteroGraphConv({r: dglnn.SAGEConv(a, b, "mean") for r in relations}, aggregate="sum")
            for a, b in pairwise(sizes)
        )

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x if i == 0 else {ntype: F.relu(h) for ntype, h in x.items()})
        return x["paper"]


def create_dataloader(dataset, itemset, num_workers, shuffle):
    datapipe = gb.ItemSampler(itemset, batch_size=64, shuffle=shuffle)
    datapipe = datapipe.sample_neighbor(dataset.graph, [torch.tensor([3, 4, 5]), torch.tensor([3, 4, 5])])
    datapipe = datapipe.fetch_feature(dataset.feature, node_feature_keys={"paper": ["feat"], "author": ["feat"]})
    return gb.DataLoader(datapipe.copy_to("cpu"), num_workers=num_workers)


def predict(model, minibatch):
    x = {ntype: h for (ntype, _), h in minibatch.node_features.items()}
    return model(minibatch.blocks, x), minibatch.labels["paper"].long()


def main(folder, num_workers):
    torch.manual_seed(1)
    dataset = gb.OnDiskDataset(folder).load()
    task = dataset.tasks[0]
    model = RGCN(["writes", "by", "cites"], [8, 32, task.metadata["num_classes"]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(6):
        for minibatch in create_dataloader(dataset, task.train_set, num_workers, True):
            loss = F.cross_entropy(*predict(model, minibatch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = []
    for minibatch in create_dataloader(dataset, task.test_set, num_workers, False):
        with torch.no_grad():
            y_hat, y = predict(model, minibatch)
        right.append(y_hat.argmax(dim=1) == y)
    return torch.cat(right).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main(sys.argv[1], int(sys.argv[2])):.3f}")
