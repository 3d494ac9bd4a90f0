"""Classes of nodes: a model trained on minibatches, evaluated layer by layer on the whole graph. Names of DGL 2.1."""

import sys

import dgl.graphbolt as gb
import dgl.nn as dglnn
import torch
import torch.nn.functional as F


class SAGE(torch.nn.Module):
    def __init__(self, in_size, hidden_size, out_size):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [dglnn.SAGEConv(in_size, hidden_size, "mean"), dglnn.SAGEConv(hidden_size, out_size, "mean")]
        )

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x if i == 0 else F.relu(x))
        return x


def create_dataloader(graph, features, itemset, fanout, batch_size, device, num_workers, shuffle=True):
    datapipe = gb.ItemSampler(itemset, batch_size=batch_size, shuffle=shuffle)
    datapipe = datapipe.sample_neighbor(graph, fanout)
    if features is not None:
        datapipe = datapipe.fetch_feature(features, node_feature_keys=["feat"])
    datapipe = datapipe.copy_to(device=device)
    return gb.DataLoader(datapipe, num_workers=num_workers)


@torch.no_grad()
def layerwise_infer(graph, features, all_nodes_set, model, num_workers):
    x = features.read("node", None, "feat")
    dataloader = create_dataloader(graph, None, all_nodes_set, [-1], 256, "cpu", num_workers, shuffle=False)
    for i, layer in enumerate(model.layers):
        y = torch.empty(graph.total_num_nodes, layer.fc_neigh.out_features)
        for minibatch in dataloader:
            h = layer(minibatch.blocks[0], x[minibatch.input_nodes])
            y[minibatch.seed_nodes] = F.relu(h) if i == 0 else h
        x = y
    return x


def main(folder, num_workers):
    torch.manual_seed(1)
    dataset = gb.OnDiskDataset(folder).load()
    graph, features, task = dataset.graph, dataset.feature, dataset.tasks[0]
    model = SAGE(8, 32, task.metadata["num_classes"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    dataloader = create_dataloader(graph, features, task.train_set, [5, 5], 64, "cpu", num_workers)
    for _ in range(8):
        model.train()
        for minibatch in dataloader:
            y_hat = model(minibatch.blocks, minibatch.node_features["feat"])
            loss = F.cross_entropy(y_hat, minibatch.labels.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    out = layerwise_infer(graph, features, dataset.all_nodes_set, model.eval(), num_workers)
    nodes, labels = task.test_set[:]
    return (out[nodes].argmax(dim=1) == labels).float().mean().item()


if __name__ == "__main__":
    print(f"accuracy {main(sys.argv[1], int(sys.argv[2])):.3f}")
