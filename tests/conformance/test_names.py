"""The names of loaders are those of the framework, of torch's ``DataLoader``, and those in the documentation."""

import inspect

import pytest
from torch.utils.data import DataLoader

OURS = {"batch", "epoch", "placement", "replay", "stats", "timeline", "state_dict", "load_state_dict", "remainder"}
OURS |= {"distributed", "end_of_dataloader", "engine", "pad", "rank_timeout", "seed", "seed_parts", "uneven"}
THEIRS = {
    "PyG": "node_sampler input_data",
    "DGL": "attach_data cpu_affinity_enabled enable_cpu_affinity is_distributed other_storages",
    "GraphBolt": "",
}


def public(of: object) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


@pytest.mark.without("toy")
def test_a_loader_shows_what_it_loads(harness):
    assert repr(harness.loader(num_workers=1)).endswith(
        "(50 seeds, fanouts [3, 2], batch size 8, 7 batches, cpu: 1 thread)"
    )


@pytest.mark.without("toy")
def test_an_unknown_argument_is_named(harness):
    with pytest.raises(TypeError, match=r"Loader got an unknown argument 'num_worker'\. Did you mean 'num_workers'\?"):
        harness.loader(num_worker=1)


@pytest.mark.without("toy")
def test_loaders_show_no_names_of_their_own_parts(harness):
    loader = harness.loader(num_workers=1)
    list(loader)
    known = public(DataLoader([])) | OURS | set(THEIRS[harness.name].split())
    for cls in type(loader).__mro__:
        known |= set(inspect.signature(cls).parameters)
        if not cls.__module__.startswith("manyhop"):
            known |= public(cls)
    assert public(loader) <= known
    assert public(loader) >= OURS
