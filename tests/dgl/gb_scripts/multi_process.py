"""Classes of nodes, trained by several processes."""

import sys

import dgl.graphbolt as gb
import dgl.nn as dglnn
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


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


def create_dataloader(dataset, itemset, num_workers, **options):
    datapipe = gb.DistributedItemSampler(itemset, batch_size=32, **options)
    datapipe = datapipe.sample_neighbor(dataset.graph, [5, 5])
    datapipe = datapipe.fetch_feature(dataset.feature, node_feature_keys=["feat"])
    return gb.DataLoader(datapipe.copy_to("cpu"), num_workers=num_workers)


def run(rank, world_size, folder, init_file, num_workers, outcome):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=world_size)
    torch.manual_seed(1)
    dataset = gb.OnDiskDataset(folder).load()
    task = dataset.tasks[0]
    model = DistributedDataParallel(SAGE(8, 32, task.metadata["num_classes"]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(8):
        for minibatch in create_dataloader(
            dataset, task.train_set, num_workers, shuffle=True, drop_last=True, drop_uneven_inputs=True
        ):
            y_hat = model(minibatch.blocks, minibatch.node_features["feat"])
            loss = F.cross_entropy(y_hat, minibatch.labels.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    counts = torch.zeros(2)
    for minibatch in create_dataloader(dataset, task.test_set, num_workers):
        with torch.no_grad():
            y_hat = model.module(minibatch.blocks, minibatch.node_features["feat"])
        counts += torch.tensor([(y_hat.argmax(dim=1) == minibatch.labels).sum(), len(y_hat)])
    dist.all_reduce(counts)
    outcome[rank] = counts
    dist.destroy_process_group()


def main(folder, num_workers):
    outcome = torch.zeros(2, 2).share_memory_()
    mp.spawn(run, args=(2, folder, folder + "/rendezvous", num_workers, outcome), nprocs=2)
    assert outcome[0, 1] == 600
    return (outcome[0, 0] / outcome[0, 1]).item()


if __name__ == "__main__":
    print(f"accuracy {main(sys.argv[1], int(sys.argv[2])):.3f}")
