"""Libraries that make loaders of their own out of ours: Accelerate, Ray Train."""

import pytest
import torch
from ray_run import run_on_two
from torch.utils.data import DataLoader

from manyhop.errors import InputError
from manyhop_pyg import NeighborLoader


def test_a_loader_made_of_its_dataset_is_refused(data):
    """As Ray Train makes it: its batches would be samples without features, of keys of their own."""
    loader = NeighborLoader(data, [3, 2], batch_size=8)
    assert list(loader.dataset[2:4]) == [2, 3]
    with pytest.raises(InputError, match=r"prepare_data_loader.*distributed=True.*without a sampler"):
        next(iter(DataLoader(loader.dataset, batch_size=8, collate_fn=loader.collate_fn)))


@pytest.mark.slow
def test_accelerate_leaves_a_single_rank_as_it_is(data):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=5)
    loader = NeighborLoader(data, [3, 2], batch_size=8, num_workers=1)
    try:
        assert accelerator.prepare(loader) is loader
        states = []
        for _ in range(2):
            states.append([accelerator.gradient_state.end_of_dataloader for _ in loader])
        assert states == [[False] * 7 + [True]] * 2
        assert not accelerator.gradient_state.in_dataloader
        for _ in loader:
            break
        assert not accelerator.gradient_state.in_dataloader
        with pytest.raises(InputError, match="load_state_dict"):
            next(iter(accelerate.skip_first_batches(loader, 2)))
    finally:
        accelerator.free_memory()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


@pytest.mark.slow
def test_accelerate_saves_the_state_of_a_registered_loader(data, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    try:
        loader = accelerator.prepare(NeighborLoader(data, [3, 2], batch_size=8, shuffle=True))
        accelerator.register_for_checkpointing(loader)
        batches = iter(loader)
        _ = next(batches), next(batches)
        accelerator.save_state(tmp_path)
        rest = [batch.n_id.tolist() for batch in batches]
        del batches  # which Accelerate's state knows
        accelerator.free_memory()
        accelerator._custom_objects.clear()
        again = accelerator.prepare(NeighborLoader(data, [3, 2], batch_size=8, shuffle=True))
        accelerator.register_for_checkpointing(again)
        accelerator.load_state(tmp_path)
        assert [batch.n_id.tolist() for batch in again] == rest
    finally:
        accelerator.free_memory()
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


def train(config):
    import ray.train.torch
    from torch_geometric.data import Data

    data = Data(edge_index=torch.randint(0, 60, (2, 300), generator=torch.Generator().manual_seed(1)), num_nodes=60)
    rank = ray.train.get_context().get_world_rank()
    by_kind = {}
    with pytest.raises(InputError, match="distributed=True"):
        next(iter(ray.train.torch.prepare_data_loader(NeighborLoader(data, [3, 2], batch_size=7))))
    for kind in ("distributed=True", "uneven", "by hand", "a sampler"):
        options = {"batch_size": 7, "shuffle": True, "seed": 1}
        if kind == "by hand":
            loader = NeighborLoader(data, [3, 2], torch.arange(60).chunk(2)[rank], **options)
        elif kind == "a sampler":
            sampler = torch.utils.data.DistributedSampler(range(60))
            loader = NeighborLoader(data, [3, 2], sampler=sampler, batch_size=7)
        else:
            uneven = "drop" if kind == "uneven" else None
            loader = NeighborLoader(data, [3, 2], distributed=True, uneven=uneven, **options)
        loader = ray.train.torch.prepare_data_loader(loader, add_dist_sampler=kind != "by hand")
        epochs = []
        for epoch in range(2):
            if kind not in ("by hand", "a sampler"):
                loader.sampler.set_epoch(epoch)
            ids = []
            for batch in loader:
                seeds = batch.n_id[: batch.batch_size]
                ids.append(seeds[~batch.is_padding] if "is_padding" in batch else seeds)
            epochs.append([part.tolist() for part in ids])
        by_kind[kind] = len(loader), epochs
    torch.save(by_kind, f"{config['folder']}/{rank}.pt")


@pytest.mark.filterwarnings("ignore")
def test_ray_train(tmp_path):
    ranks = run_on_two(train, tmp_path)
    for kind, number, left in (
        ("distributed=True", 5, 60),
        ("uneven", 4, 56),
        ("by hand", 5, 60),
        ("a sampler", 5, 60),
    ):
        for epoch in range(2):
            lengths, parts = zip(*[(rank[kind][0], rank[kind][1][epoch]) for rank in ranks], strict=True)
            seeds = [seed for part in parts for batch in part for seed in batch]
            assert lengths == (number, number)
            assert len(seeds) == len(set(seeds)) == left
        assert ranks[0][kind][1][0] != ranks[0][kind][1][1] or kind == "a sampler"
