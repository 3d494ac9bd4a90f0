"""Links: seed edges with drawn negatives, left out of what is sampled. Names of DGL 2.1 and of later versions."""

import sys
from functools import partial

import dgl.graphbolt as gb
import dgl.nn as dglnn
import torch
import torch.nn.functional as F


class SAGE(torch.nn.Module):
    def __init__(self, in_size, hidden_size):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [dglnn.SAGEConv(in_size, hidden_size, "mean"), dglnn.SAGEConv(hidden_size, hidden_size, "mean")]
        )
        self.predictor = torch.nn.Linear(hidden_size, 1)

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x if i == 0 else F.relu(x))
        return x


def create_dataloader(graph, features, itemset, num_workers, is_train):
    datapipe = gb.ItemSampler(itemset, batch_size=64, shuffle=is_train)
    datapipe = datapipe.sample_uniform_negative(graph, 2)
    datapipe = datapipe.sample_neighbor(graph, [10, 10])
    datapipe = datapipe.transform(partial(gb.exclude_seed_edges, include_reverse_edges=True))
    datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
    return gb.DataLoader(datapipe.copy_to("cpu"), num_workers=num_workers)


def scores(model, minibatch):
    y = model(minibatch.blocks, minibatch.node_features["feat"])
    (src, dst), labels = minibatch.node_pairs_with_labels
    return model.predictor(y[src] * y[dst]).squeeze(), labels.float()


def main(folder, num_workers):
    torch.manual_seed(1)
    dataset = gb.OnDiskDataset(folder).load()
    graph, features, task = dataset.graph, dataset.feature, dataset.tasks[1]
    model = SAGE(8, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(15):
        for minibatch in create_dataloader(graph, features, task.train_set, num_workers, True):
            loss = F.binary_cross_entropy_with_logits(*scores(model, minibatch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = []
    for minibatch in create_dataloader(graph, features, task.test_set, num_workers, False):
        with torch.no_grad():
            score, labels = scores(model, minibatch)
        positive, negative = score[labels == 1], score[labels == 0]
        right.append((positive[:, None] > negative).float().mean())
    return torch.stack(right).mean().item()


if __name__ == "__main__":
    print(f"accuracy {main(sys.argv[1], int(sys.argv[2])):.3f}")
