"""PyTorch Lightning, where it is installed: training, and loaders that it makes anew."""

import pytest
import torch
from helpers_pyg import all_same, stores_of
from torch.utils.data.distributed import DistributedSampler
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

import manyhop_pyg
from manyhop.errors import InputError

lightning = pytest.importorskip("pytorch_lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


def mark(batch):
    batch.marked = True
    return batch


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("NeighborLoader", ([2],), dict(batch_size=7)),
        ("LinkNeighborLoader", ([2],), dict(batch_size=7, neg_sampling="binary")),
        ("ShaDowKHopSampler", (2, 3), dict(batch_size=7, replace=True)),
        ("PPRLoader", (4,), dict(batch_size=7, eps=1e-4)),
        ("RandomNodeLoader", (6,), dict()),
        ("ClusterLoader", (), dict(batch_size=2)),
        ("GraphSAINTNodeSampler", (1,), dict(num_steps=6)),
        ("GraphSAINTEdgeSampler", (10,), dict(num_steps=6, sample_coverage=2, log=False)),
        ("GraphSAINTRandomWalkSampler", (10, 2), dict(num_steps=6)),
    ],
)
def test_every_loader_is_made_again_with_all_its_arguments(data, name, arguments, options):
    from pytorch_lightning.utilities.data import _update_dataloader

    given = manyhop_pyg.ClusterData(data, 6, cluster=torch.arange(60) % 6) if name == "ClusterLoader" else data
    loader = getattr(manyhop_pyg, name)(given, *arguments, **options, transform=mark, seed=5, num_workers=1)
    whole = list(loader)
    assert len(loader) == len(whole)
    sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=0, shuffle=False)
    for made in (loader, _update_dataloader(loader, sampler)):
        again = _update_dataloader(made, sampler)
        found = list(again)
        assert type(again) is type(loader)
        assert len(again) == len(found) == -(-len(whole) // 2)
        assert all(batch.marked for batch in found)
        if "NeighborLoader" in name:
            assert torch.cat([batch.input_id for batch in found]).tolist() == list(sampler)
        assert (again.seed, again.num_workers) == (5, 1)
        if "GraphSAINT" in name:  # a batch depends on its number alone
            assert [b.n_id.tolist() for b in whole[: len(found)]] == [b.n_id.tolist() for b in found]
            assert ("node_norm" in found[0]) == ("sample_coverage" in options)


def init_thread(worker_id):
    pass


SEEDS = torch.tensor([3, 1, 2, 5, 8, 13])
PAIRS = torch.randint(0, 60, (2, 12), generator=torch.Generator().manual_seed(1))
OF_TORCH = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "worker_init_fn": init_thread}
OF_ALL = {"seed": 5, "transform": mark, "transform_sampler_output": lambda out: out, "filter_per_worker": False}
OF_ALL |= {"batch_size": 4, "placement": "pinned", **OF_TORCH}
OF_NEIGHBORS = {"replace": True, "subgraph_type": "induced", "disjoint": True}
OF_LINKS = {"edge_label_index": PAIRS, "edge_label": torch.arange(12) + 1, "input_id": torch.arange(12) + 7}
OF_LINKS |= {
    "neg_sampling": NegativeSampling("binary", 2),
    "exclude_true_negatives": True,
    "exclude_seed_edges": "reverse_id",
}
TIMES = {"time_attr": "time", "temporal_strategy": "last", "time_window": 5.0}


class OwnData(Data):
    pass


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("NeighborLoader", {"num_neighbors": [3, 2], "input_nodes": SEEDS, "input_id": SEEDS + 1, **OF_NEIGHBORS}),
        ("NeighborLoader", {"num_neighbors": [3], "input_nodes": SEEDS, "input_time": SEEDS + 20, **TIMES}),
        ("NodeLoader", {"node_sampler": [3, 2], "input_nodes": SEEDS, "custom_cls": OwnData}),
        ("NeighborLoader", {"num_neighbors": [2], "input_nodes": SEEDS, "custom_cls": OwnData}),
        ("LinkNeighborLoader", {"num_neighbors": [3, 2], **OF_NEIGHBORS, **OF_LINKS}),
        ("LinkNeighborLoader", {"num_neighbors": [3], "edge_label_index": PAIRS, "neg_sampling_ratio": 2.0}),
        ("LinkLoader", {"link_sampler": [3, 2], "custom_cls": OwnData, **OF_LINKS}),
        (
            "HGTLoader",
            {"num_samples": [4, 2], "input_nodes": ("paper", SEEDS), "input_id": SEEDS + 1, "max_neighbors": 7},
        ),
    ],
)
def test_no_argument_is_lost_where_lightning_makes_a_loader_again(data, hetero, name, arguments):
    from pytorch_lightning.utilities.data import _update_dataloader

    cls = getattr(manyhop_pyg, name)
    given = hetero if name == "HGTLoader" else stores_of(data) if "custom_cls" in arguments else data
    arguments = OF_ALL | arguments
    for kind in ("node_sampler", "link_sampler"):
        if kind in arguments:
            arguments[kind] = manyhop_pyg.NeighborSampler(given, arguments[kind])
    loader = cls(given, **arguments)
    again = _update_dataloader(_update_dataloader(loader, loader.sampler), loader.sampler)
    assert type(again) is cls
    for argument in arguments.keys() - {"neg_sampling_ratio"}:
        wanted, found = arguments[argument], vars(again)[argument]
        assert wanted is found or (not isinstance(wanted, torch.Tensor) and wanted == found), argument
    with pytest.raises(InputError, match="a GPU in use for placement='pinned'"):
        iter(again)
    plain = cls(given, **arguments | {"placement": None})
    again = _update_dataloader(plain, plain.sampler)
    assert all_same(list(plain), list(again))
