"""Training scripts as GraphBolt's users write them, and datasets on disk for them. Run by the tests, also as ranks."""

import sys
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
import yaml

import manyhop_dgl  # noqa: F401  # makes dgl importable
import manyhop_dgl.graphbolt as gb

NUM_CLASSES = 3


def communities(num_nodes, generator, edges_per_node=8, stay=0.85):
    """Nodes in three groups, and edges that mostly stay inside of one. Returns groups and ``[2, num_edges]``."""
    group = torch.randint(0, NUM_CLASSES, (num_nodes,), generator=generator)
    members = [(group == k).nonzero().view(-1) for k in range(NUM_CLASSES)]
    dst = torch.arange(num_nodes).repeat_interleave(edges_per_node)
    stays = torch.rand(dst.numel(), generator=generator) < stay
    anywhere = torch.randint(0, num_nodes, (dst.numel(),), generator=generator)
    at_home = torch.stack(
        [members[k][torch.randint(0, len(members[k]), (1,), generator=generator)][0] for k in group[dst]]
    )
    return group, torch.stack([torch.where(stays, at_home, anywhere), dst])


def noisy(group, generator, noise=1.5):
    """Features from which alone the group is hard to tell."""
    return F.one_hot(group, NUM_CLASSES).float() + noise * torch.randn(len(group), NUM_CLASSES, generator=generator)


def write_homogeneous(folder, num_nodes=600):
    """One node type; tasks: classes of nodes, and links."""
    generator = torch.Generator().manual_seed(0)
    group, edges = communities(num_nodes, generator)
    folder.mkdir(parents=True, exist_ok=True)
    np.savetxt(folder / "edges.csv", edges.T.numpy(), fmt="%d", delimiter=",")
    np.save(folder / "feat.npy", noisy(group, generator).numpy())
    np.save(folder / "edge_feat.npy", np.arange(edges.size(1)))
    order = torch.randperm(num_nodes, generator=generator)
    nodes, links = {"name": "node_classification", "num_classes": NUM_CLASSES}, {"name": "link_prediction"}
    pairs = edges.T[torch.randperm(edges.size(1), generator=generator)]
    for k, part in enumerate(("train", "validation", "test")):
        ids, some = order[k * 200 : (k + 1) * 200], pairs[k * 400 : (k + 1) * 400]
        np.save(folder / f"{part}_seeds.npy", ids.numpy())
        np.save(folder / f"{part}_labels.npy", group[ids].numpy())
        np.save(folder / f"{part}_pairs.npy", some.numpy())
        nodes[f"{part}_set"] = [
            {"data": [{"name": name, "format": "numpy", "path": f"{part}_{name}.npy"} for name in ("seeds", "labels")]}
        ]
        links[f"{part}_set"] = [{"data": [{"name": "node_pairs", "format": "numpy", "path": f"{part}_pairs.npy"}]}]
    write_description(
        folder,
        {"nodes": [{"num": num_nodes}], "edges": [{"format": "csv", "path": "edges.csv"}]},
        [
            {"domain": "node", "name": "feat", "format": "numpy", "path": "feat.npy", "in_memory": False},
            {"domain": "edge", "name": "number", "format": "numpy", "path": "edge_feat.npy"},
        ],
        [nodes, links],
    )


def write_description(folder, graph, features, tasks):
    config = {"dataset_name": folder.name, "graph": graph, "feature_data": features, "tasks": tasks}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(config))


class SAGE(torch.nn.Module):
    """GraphSAGE of as many layers as there are blocks."""

    def __init__(self, in_size, hidden, out_size, num_layers=2):
        from dgl.nn import SAGEConv

        super().__init__()
        sizes = [in_size, *[hidden] * (num_layers - 1), out_size]
        self.layers = torch.nn.ModuleList(SAGEConv(a, b, "mean") for a, b in pairwise(sizes))

    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if i < len(self.layers) - 1:
                x = F.relu(x)
        return x


def node_loader(dataset, items, shuffle, *, num_workers=0, method="sample_neighbor", sampler=gb.ItemSampler):
    datapipe = sampler(items, batch_size=32, shuffle=shuffle)
    datapipe = datapipe.copy_to("cpu", extra_attrs=["seed_nodes"])
    datapipe = getattr(datapipe, method)(dataset.graph, [5, 5])
    datapipe = datapipe.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    return gb.DataLoader(datapipe, num_workers=num_workers)


@torch.no_grad()
def accuracy(model, loader):
    right = total = 0
    for data in loader:
        y = model(data.blocks, data.node_features["feat"])
        right, total = right + int((y.argmax(1) == data.labels).sum()), total + len(y)
    return right / total


def train_nodes(dataset, *, epochs=4, **options):
    """Returns the accuracy on the test set."""
    task = dataset.tasks[0]
    train = node_loader(dataset, task.train_set, True, **options)
    model = SAGE(dataset.feature.size("node", None, "feat")[0], 16, task.metadata["num_classes"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(epochs):
        for data in train:
            loss = F.cross_entropy(model(data.blocks, data.node_features["feat"]), data.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return accuracy(model, node_loader(dataset, task.test_set, False))


def rank_of_ddp(rank, world_size, port, folder, out):
    """Trains with DistributedDataParallel, and notes which batches this rank had."""
    dist = torch.distributed
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    try:
        dataset = gb.OnDiskDataset(folder, include_original_edge_id=True).load("node_classification")
        task = dataset.tasks[0]
        torch.manual_seed(100 + rank)  # the seed of the batches is that of rank 0

        def sampler(items, **options):
            return gb.DistributedItemSampler(items, drop_uneven_inputs=True, **options)

        loader = node_loader(dataset, task.train_set, True, sampler=sampler, num_workers=1)
        model = torch.nn.parallel.DistributedDataParallel(SAGE(3, 8, NUM_CLASSES))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        seen = []
        for _ in range(2):
            for data in loader:
                loss = F.cross_entropy(model(data.blocks, data.node_features["feat"]), data.labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen.append((tuple(data.key), data.seeds.tolist(), data.input_nodes.tolist()))
        torch.save({"seen": seen, "weights": model.module.state_dict()}, f"{out}.{rank}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    rank_of_ddp(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
