"""What the ranks of two simulated nodes do: run by torchrun, on CPUs or, with ``--device cuda``, on a GPU each.

Batches are written as digests, one file per rank and case, for the test to compare with those of one process.
"""

import argparse
import hashlib
import itertools
import json
import os
import signal
import time
from pathlib import Path

import torch
from torch_geometric.data import Data

import manyhop
import manyhop_dgl
import manyhop_pyg
from manyhop.errors import RankError

NUM_NODES, BATCH_SIZE = 200, 8
ON_CPU = ("shared", "sharded")
IN_STORE = "host-sharded"  # rows in the memory of nodes, which GPUs exchange
ON_GPU = ("cuda-cuda", "pinned-cuda", "cpu-cuda", "sharded", "distributed", IN_STORE)
DONE_BEFORE_STATE = 2  # batches of each rank


def make_data():
    generator = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(NUM_NODES, 16, generator=generator),
        edge_index=torch.randint(0, NUM_NODES, (2, 2000), generator=generator),
    )


def part(tensor, world):
    begin, end = (len(tensor) * r // world.world_size for r in (world.rank, world.rank + 1))
    return tensor[begin:end], begin, end


def pyg_stores(data, placement, world):
    """Features and edges of which each rank puts its part."""
    features = manyhop_pyg.FeatureStore(placement=placement)
    x, begin, end = part(data.x, world)
    features.put_tensor(x, group_name=None, attr_name="x", index=slice(begin, end))
    edges = manyhop_pyg.GraphStore(placement="shared")
    mine = part(data.edge_index.t(), world)[0].t().contiguous()
    edges.put_edge_index(mine, edge_type=None, layout="coo", size=(NUM_NODES, NUM_NODES))
    return features, edges


def pyg_loader(world=None, device="cpu", placement=None, data=None, **how):
    data = make_data() if data is None else data
    how = {"shuffle": True, "seed": 3, "batch_size": BATCH_SIZE} | how
    if world is None:
        return manyhop_pyg.NeighborLoader(data, [3, 2], **how)
    if device == "cuda":
        how |= {"device": device, "placement": None if placement == IN_STORE else placement}
    if device == "cpu" or placement == IN_STORE:
        data = pyg_stores(data, "sharded" if placement == IN_STORE else placement, world)
    return manyhop_pyg.NeighborLoader(data, [3, 2], distributed=True, **how)


def dgl_loader(world=None, device="cpu", placement=None, **how):
    data, on_host = make_data(), world is not None and (device == "cpu" or placement == IN_STORE)
    row, col = data.edge_index
    if on_host:
        place = "sharded" if placement == IN_STORE else placement
        g = manyhop_dgl.Graph((part(row, world)[0], part(col, world)[0]), NUM_NODES, placement=place)
        g.ndata["x"] = data.x
    else:
        g = manyhop_dgl.Graph((row, col), NUM_NODES)
        g.ndata["x"] = data.x
    sampler = manyhop_dgl.NeighborSampler([3, 2], prefetch_node_feats=["x"], seed=0)
    how = {"shuffle": True, "batch_size": BATCH_SIZE, "seed": 3, "output": "tensors"} | how
    if device == "cuda":
        how |= {"device": device, "placement": None if placement == IN_STORE else placement}
    return manyhop_dgl.DataLoader(g, torch.arange(NUM_NODES), sampler, use_ddp=world is not None, **how)


LOADERS = {"pyg": pyg_loader, "dgl": dgl_loader}


def digest(batch):
    """A checksum of a batch of either framework: equal where ids, edges and features are, bit for bit."""
    if isinstance(batch, Data):
        tensors = [batch.n_id, batch.e_id, batch.edge_index, batch.x]
    else:
        tensors = [batch.input_nodes, batch.output_nodes, batch.node_features["x"]]
        tensors += [part for block in batch.blocks for part in (block.indptr, block.indices, block.edge_ids)]
    out = hashlib.sha256()
    for tensor in tensors:
        out.update(f"{tensor.dtype} {list(tensor.shape)}".encode() + tensor.cpu().contiguous().numpy().tobytes())
    return out.hexdigest()


def placements(device):
    return ON_CPU if device == "cpu" else ON_GPU


def see_batches(world, args):
    """An epoch of every framework and placement; the state in the middle of each."""
    for framework, placement in itertools.product(LOADERS, placements(args.device)):
        loader = LOADERS[framework](world, args.device, placement, num_workers=1)
        iterator = iter(loader)
        seen = [digest(next(iterator)) for _ in range(DONE_BEFORE_STATE)]
        state = loader.state_dict()
        seen += map(digest, iterator)
        note(args, world, f"{framework} {placement}", seen)
        if world.rank == 0:
            (args.folder / f"{framework} {placement}.state").write_text(json.dumps(state))


def resume(world, args):
    """Go on from the states that other ranks have saved."""
    for framework, placement in itertools.product(LOADERS, placements(args.device)):
        loader = LOADERS[framework](world, args.device, placement)
        loader.load_state_dict(json.loads((args.folder / f"{framework} {placement}.state").read_text()))
        note(args, world, f"{framework} {placement} resumed", [digest(batch) for batch in loader])


def fail(world, args):
    """The last rank is killed in its second epoch. With ``--late``, node 1 is late before, in two ways."""
    how = {"rank_timeout": args.timeout, "num_workers": 1}
    if args.late:
        how["data"] = load_late(world, args)
    loader = LOADERS[args.framework](world, args.device, args.placement, **how)
    for epoch in range(1000):
        for number, _ in enumerate(loader):
            if (epoch, number, world.rank) == (1, 2, world.world_size - 1):
                print(f"rank {world.rank} is killed", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
        if epoch == 0:
            print(f"rank {world.rank} has {number + 1} batches", flush=True)
            if args.late:
                miss_a_loader(world, args, how["data"])


def load_late(world, args):
    """Node 1 takes longer to load than ranks wait for each other."""

    def load():
        time.sleep(1.5 * args.timeout * (world.node == 1))
        return make_data()

    begin = time.monotonic()
    data = manyhop_pyg.share(load)
    print(f"rank {world.rank} has data after {(time.monotonic() - begin) / args.timeout:.2f} timeouts", flush=True)
    return data


def miss_a_loader(world, args, data):
    """Node 1 makes no loader, while node 0 waits for it; all go on."""
    if world.node == 0:
        how = {"device": args.device} if args.device == "cuda" else {}
        try:
            manyhop_pyg.NeighborLoader(data, [3, 2], distributed=True, rank_timeout=args.timeout, **how)
        except RankError as error:
            print(f"rank {world.rank}: {error}", flush=True)
    torch.distributed.barrier()


def note(args, world, case, digests):
    (args.folder / f"{case}.{world.rank}").write_text(json.dumps(digests))
    if world.rank == 0:
        print(f"{case}: {len(digests)} batches on {world.num_nodes} nodes, {world.world_size} ranks", flush=True)


def dealt(folder, case, world_size):
    """The digests that ranks noted, in the order of global batches."""
    ranks = [json.loads((folder / f"{case}.{rank}").read_text()) for rank in range(world_size)]
    return [batch for together in zip(*ranks, strict=True) for batch in together]


def check_batches(folder, device, world_size, resumed_size):
    """Compare what ranks noted in ``see_batches`` and ``resume`` with one process. Returns the cases."""
    cases = []
    done = DONE_BEFORE_STATE * world_size
    for framework, make in LOADERS.items():
        alone = [digest(batch) for batch in make()]
        for placement in placements(device):
            case = f"{framework} {placement}"
            got = dealt(folder, case, world_size)
            assert got == (alone + alone)[: len(got)], case
            assert len(got) >= len(alone), case
            rest = dealt(folder, f"{case} resumed", resumed_size)
            assert rest == (alone[done:] + alone)[: len(rest)], f"{case} resumed"
            assert len(rest) >= len(alone) - done, f"{case} resumed"
            cases.append(case)
    return cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("see_batches", "resume", "fail"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--framework", default="pyg")
    parser.add_argument("--placement")
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--late", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    globals()[args.action](manyhop.init(), args)


if __name__ == "__main__":
    main()
