"""Embeddings that ranks train together: the table of torch's optimizer on the mean of their losses, in every place."""

import sys
from pathlib import Path

import pytest
import torch

import manyhop
from manyhop.errors import InputError, RankError

sys.path.insert(0, str(Path(__file__).parents[1]))  # also of ranks
from embedding_training import NUM_ROWS, OURS, WIDTH, batch, loss_of, train, trained_by_torch

ONE_NODE, TWO_NODES = [0, 0, 0, 0], [0, 0, 1, 1]
ENV = {"TRITON_INTERPRET": "1"}
PLACES = [
    ("shared", None),
    ("sharded", None),
    ("pinned", None),
    ("device", None),
    ("sharded", "cuda"),
    ("distributed", None),
]


def whole_table(embedding):
    """All rows, as a forward returns them."""
    with torch.no_grad():
        return embedding(torch.arange(NUM_ROWS)).clone()


def train_together(placement, device, name, num_steps):
    import whole_graph_stand_in

    whole_graph_stand_in.install()
    world = manyhop.init()
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, placement=placement, device=device, seed=3, rank_timeout=60.0)
    start = whole_table(embedding)
    train(embedding, OURS[name](embedding), range(num_steps), world.rank)
    return start, whole_table(embedding), embedding.table.rows, len(embedding.weight)


@pytest.fixture(scope="module", params=[ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def trained(request, launcher, two_nodes):
    """The node of each rank; what the ranks have trained, by place."""
    nodes = two_nodes if request.param is TWO_NODES else ()
    cases = [(*place, "Adam", 3) for place in PLACES]
    found = launcher.run_each(train_together, cases, node_of=request.param, nodes=nodes, env=ENV)
    return request.param, dict(zip(PLACES, found, strict=True))


@pytest.mark.parametrize(("placement", "device"), PLACES, ids=str)
def test_every_place(trained, placement, device):
    node_of, found = trained[0], trained[1][placement, device]
    start = manyhop.Embedding(NUM_ROWS, WIDTH, seed=3).weight
    expected = trained_by_torch(start, "Adam", range(3), world_size=4)
    for before, after, own, held in found:
        assert torch.equal(before, start)
        assert torch.equal(after, found[0][1])
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)
        assert held == len(own)
    owned = sum(len(own) for _, _, own, _ in found)
    copies = (
        4
        if placement == "device"
        else len(set(node_of))
        if (placement, device) in (PLACES[0], PLACES[2], PLACES[4])
        else 1
    )
    assert owned == copies * NUM_ROWS


def train_with_each():
    return {name: train_together("shared", None, name, 5)[1] for name in OURS}


def test_every_optimizer(launcher):
    start = manyhop.Embedding(NUM_ROWS, WIDTH, seed=3).weight
    for found in launcher.run(train_with_each):
        for name, after in found.items():
            expected = trained_by_torch(start, name, range(5), world_size=2)
            torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-6)


def train_unevenly():
    """Rank 1 has no backward in the first step, no rank in the second one."""
    world = manyhop.init()
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, seed=3)
    optimizer = OURS["Adam"](embedding)
    for step in range(3):
        if step == 2 or (step == 0 and world.rank == 0):
            loss_of(embedding(batch(step)[0]), batch(step)[1]).backward()
        optimizer.step()
    return whole_table(embedding), optimizer.param_groups[0]["step"]


def test_ranks_without_gradients(launcher):
    (first, steps), (second, other_steps) = launcher.run(train_unevenly)
    assert steps == other_steps == 2
    assert torch.equal(first, second)


def train_in_ddp():
    """An embedding inside of a model that DDP wraps, which sees its other parameters only."""
    world = manyhop.init()
    torch.manual_seed(0)
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(embedding, torch.nn.Linear(WIDTH, 3)))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), manyhop.optim.Adam(embedding, lr=0.1)]
    losses = []
    for _ in range(10):
        ids, _ = batch(0, world.rank)
        loss = torch.nn.functional.cross_entropy(model(ids), ids % 3)
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses, whole_table(embedding), model.module[1].weight.detach()


def test_in_a_model_under_ddp(launcher):
    (losses, *first), (_, *second) = launcher.run(train_in_ddp)
    assert losses[-1] < 0.9 * losses[0]
    for ours, theirs in zip(first, second, strict=True):
        assert torch.equal(ours, theirs)


def fail(what):
    rank = manyhop.init().rank
    try:
        if what == "process":
            manyhop.Embedding(10, 4, placement="process")
        elif what == "seed":
            manyhop.Embedding(10, 4, seed=rank, rank_timeout=100.0)
        elif what == "size":
            manyhop.Embedding(10 + rank, 4, rank_timeout=100.0)
        else:
            embedding = manyhop.Embedding(10, 4, rank_timeout=8.0)
            optimizer = OURS["SGD"](embedding)
            if rank == 0:
                optimizer.step()
    except (InputError, RankError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


FAILURES = {
    "process": "InputError: Expected placement='process' in a run of one process, got 2",
    "seed": "expected the same seed on all ranks",
    "size": "expected the same num_rows on all ranks",
    "step": "RankError: step() of embedding: gradients could not be exchanged",  # after which ranks cannot go on
}


def test_failures(launcher):
    found = launcher.run_each(fail, [(what,) for what in FAILURES])
    for said, errors in zip(FAILURES.values(), found, strict=True):
        assert said in errors[0]


def train_and_save(folder, steps):
    rank = manyhop.init().rank
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH)
    optimizer = OURS["Adam"](embedding)
    train(embedding, optimizer, range(steps), rank)
    embedding.save(f"{folder}/table-{steps}")
    optimizer.save(f"{folder}/Adam-{steps}")
    return whole_table(embedding)


PLACES_AND_NODES = [
    ("sharded", None, TWO_NODES),
    ("distributed", None, ONE_NODE),
    ("device", None, [0, 0]),
    ("shared", None, [0]),
]


def test_restart_with_other_ranks_in_another_place(launcher, two_nodes, tmp_path):
    straight, _ = launcher.run(train_and_save, str(tmp_path), 4, world_size=2)
    launcher.run(train_and_save, str(tmp_path), 2, world_size=2)
    for number, (placement, device, node_of) in enumerate(PLACES_AND_NODES):
        nodes = two_nodes if node_of is TWO_NODES else ()
        args = placement, device, str(tmp_path), number
        launcher.run(pass_on, *args, node_of=node_of, nodes=nodes, env=ENV)
    found = launcher.run(finish, str(tmp_path), len(PLACES_AND_NODES), world_size=2)
    for table in found:
        assert torch.equal(table, straight)


def pass_on(placement, device, folder, number):
    """Load what others have saved, and save it again."""
    import whole_graph_stand_in

    whole_graph_stand_in.install()
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH, placement=placement, device=device)
    optimizer = OURS["Adam"](embedding)
    source = "2" if number == 0 else f"passed-{number - 1}"
    embedding.load(f"{folder}/table-{source}")
    optimizer.load(f"{folder}/Adam-{source}")
    embedding.save(f"{folder}/table-passed-{number}")
    optimizer.save(f"{folder}/Adam-passed-{number}")


def finish(folder, number):
    rank = manyhop.init().rank
    embedding = manyhop.Embedding(NUM_ROWS, WIDTH)
    optimizer = OURS["Adam"](embedding)
    embedding.load(f"{folder}/table-passed-{number - 1}")
    optimizer.load(f"{folder}/Adam-passed-{number - 1}")
    train(embedding, optimizer, range(2, 4), rank)
    return whole_table(embedding)
