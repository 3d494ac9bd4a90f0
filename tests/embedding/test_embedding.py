"""Embeddings and their optimizers in one process: equal to torch's for sparse gradients."""

import copy
import pickle

import pytest
import torch
from embedding_training import NUM_ROWS, OURS, WIDTH, batch, loss_of, train, trained_by_torch

import manyhop
from manyhop import optim
from manyhop.errors import CapacityError, FeatureError, InputError
from manyhop_embedding.gradients import Gradients
from manyhop_embedding.updating import distinct_rows, sort_ids, sum_by_row


def make(**options):
    return manyhop.Embedding(NUM_ROWS, WIDTH, **options)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("placement", ["shared", "process"])
def test_equals_torch(name, placement):
    embedding = make(placement=placement, seed=3)
    start = embedding.weight.clone()
    train(embedding, OURS[name](embedding), range(5))
    expected = trained_by_torch(start, name, range(5))
    assert not torch.equal(expected, start)
    torch.testing.assert_close(embedding.weight, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_bfloat16_is_float32_rounded_at_each_step(name):
    embedding, wide = make(dtype=torch.bfloat16, seed=3), make(seed=3)
    optimizers = OURS[name](embedding), OURS[name](wide)
    assert torch.equal(embedding.weight, wide.weight.bfloat16())
    for step in range(4):
        ids, factors = batch(step)
        wide.weight.copy_(embedding.weight.float())
        rows = embedding(ids)
        assert rows.dtype == torch.bfloat16
        loss_of(rows, factors).backward()
        rounded = rows.detach().float().requires_grad_()
        grads = torch.autograd.grad(loss_of(rounded, factors), rounded)[0].bfloat16().float()
        wide(ids).backward(grads)
        for optimizer in optimizers:
            optimizer.step()
        assert torch.equal(embedding.weight, wide.weight.bfloat16())


def test_ids_of_any_shape_and_dtype():
    embedding = make()
    ids = torch.randint(0, NUM_ROWS, (3, 4), dtype=torch.int32)
    rows = embedding(ids)
    assert torch.equal(rows, embedding.weight[ids.long()])
    assert rows.requires_grad
    with torch.no_grad():
        assert not embedding(ids).requires_grad
    assert embedding(ids[:0]).shape == (0, 4, WIDTH)
    assert embedding(torch.tensor(7)).shape == (WIDTH,)


def test_forwards_since_the_last_step_are_summed_whatever_the_order_of_backward():
    found = []
    for order in ([0, 1, 2], [2, 0, 1]):
        embedding = make(seed=1)
        optimizer = optim.SGD(embedding, lr=1.0)
        losses = [loss_of(embedding(ids), factors) for ids, factors in map(batch, range(3))]
        for k in order:
            losses[k].backward()
        optimizer.step()
        found.append(embedding.weight.clone())
    assert torch.equal(*found)
    expected = make(seed=1).weight.clone()
    gradients = torch.zeros_like(expected)
    for ids, factors in map(batch, range(3)):
        gradients.index_add_(0, ids, factors + 2 * expected[ids])
    torch.testing.assert_close(found[0], expected - gradients)


def test_ids_that_are_sorted_early_change_nothing():
    """As a GPU sorts them, in the forward: of one or several forwards, one of them with two backwards."""
    found = []
    for early in (False, True):
        embedding = make(seed=1)
        embedding.sorts_early = early
        optimizer = optim.Adam(embedding)
        for step in range(3):
            losses = [loss_of(embedding(ids), factors) for ids, factors in map(batch, range(1 + step % 2))]
            losses[0].backward(retain_graph=True)
            for loss in losses[1 - step // 2 :]:
                loss.backward()
            optimizer.step()
        found.append(embedding.weight.clone())
    assert torch.equal(*found)


def test_steps_forget_gradients_and_without_any_nothing_changes():
    embedding = make()
    optimizer = optim.Adam(embedding)
    ids, factors = batch(0)
    loss_of(embedding(ids), factors).backward()
    optimizer.zero_grad()
    before = embedding.weight.clone()
    optimizer.step()
    assert torch.equal(embedding.weight, before)
    assert optimizer.param_groups[0]["step"] == 0
    loss_of(embedding(ids), factors).backward()
    optimizer.step()
    after = embedding.weight.clone()
    assert not torch.equal(after, before)
    optimizer.step()
    assert torch.equal(embedding.weight, after)
    assert optimizer.param_groups[0]["step"] == 1


def test_a_gradient_that_torch_has_not_negated_yet():
    found = []
    for grads in (torch.ones(4, WIDTH), torch._neg_view(-torch.ones(4, WIDTH))):
        embedding = make(seed=1)
        embedding(torch.tensor([3, 1, 3, 2])).backward(grads)
        optim.SGD(embedding, lr=1.0).step()
        found.append(embedding.weight.clone())
    assert torch.equal(*found)


def test_several_embeddings_and_a_schedule():
    first, second = make(seed=0), manyhop.Embedding(7, 3, init=lambda rows: torch.ones(len(rows), 3))
    optimizer = optim.SGD([first, second], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    ids = torch.tensor([2, 2, 5])
    for _ in range(2):
        second(ids).sum().backward()
        optimizer.step()
        schedule.step()
    expected = torch.ones(7, 3)
    expected[2], expected[5] = 1 - 2 - 1, 1 - 1 - 0.5
    assert torch.equal(second.weight, expected)


def test_initial_rows_are_a_function_of_seed_and_row():
    whole = make(seed=5)
    assert torch.equal(whole.weight, make(seed=5).weight)
    assert not torch.equal(whole.weight, make(seed=6).weight)
    assert torch.equal(manyhop.Embedding(11, WIDTH, seed=5).weight, whole.weight[:11])
    large = manyhop.Embedding(2000, 50, init=0.5).weight
    assert -0.5 <= large.min() < -0.499
    assert 0.499 < large.max() < 0.5
    assert abs(large.mean().item()) < 0.01
    assert abs(large.var().item() - 1 / 12) < 0.001
    assert manyhop.Embedding(5, 4, init=0.0).weight.count_nonzero() == 0


def test_initial_rows_of_a_function_come_in_pieces():
    pretrained, asked = torch.randn(9 << 20, 1), []
    table = manyhop.Embedding(9 << 20, 1, init=lambda rows: asked.append(rows) or pretrained[rows.start : rows.stop])
    assert torch.equal(table.weight, pretrained)
    assert len(asked) > 1


def test_threads_do_not_change_a_bit(monkeypatch):
    monkeypatch.setattr("manyhop_embedding.updating._ROWS_OF_A_THREAD", 16)
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        embedding = make()
        train(embedding, optim.Adam(embedding), range(3))
        found.append(embedding.weight.clone())
    assert torch.equal(*found)


@pytest.mark.parametrize("num_rows", [1, 2, 2048, 2049, 1 << 21, 1 << 31, 1 << 32, 1 << 40])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_gradients_are_sorted_by_row_and_keep_their_order(num_rows, count):
    ids = torch.randint(0, num_rows, (count,))
    ids[count // 2 :] = ids[: count - count // 2]  # some come twice
    if count:
        ids[count // 3] = num_rows - 1
    for found, expected in zip(sort_ids(ids, num_rows), torch.sort(ids, stable=True), strict=True):
        assert torch.equal(found, expected)


def test_sums_by_row():
    ids = torch.tensor([9, 1, 9, 4, 9, 1])
    values = torch.randn(6, 5)
    gradients = Gradients(*sort_ids(ids, 10), values)
    before, rows = distinct_rows(gradients.ids)
    assert before.tolist() == [0, 1, 1, 2, 3, 3, 3]
    sums = torch.zeros(4, 5)
    sum_by_row(gradients, before, sums)
    assert rows[:3].tolist() == [1, 4, 9]
    expected = torch.stack([values[1] + values[5], values[3], values[0] + values[2] + values[4], torch.zeros(5)])
    assert torch.equal(sums, expected)
    nothing = Gradients(*sort_ids(ids[:0], 10), values[:0])
    before, rows = distinct_rows(nothing.ids)
    assert before.tolist() == [0]
    assert rows.shape == (0,)
    sum_by_row(nothing, before, sums)
    assert torch.equal(sums, expected)


def test_the_table_is_no_parameter():
    model = torch.nn.Sequential(make(), torch.nn.Linear(WIDTH, 2))
    assert len(list(model.parameters())) == 2
    model[0].train()
    assert "101, 12, dtype=torch.float32" in repr(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_rows": 0}, "num_rows to be an integer of at least 1, got 0"),
        ({"width": 1.5}, "width to be an integer of at least 1, got 1.5"),
        ({"dtype": torch.float16}, "torch.float32 or torch.bfloat16, got torch.float16"),
        ({"placement": "mapped"}, "'distributed'], got 'mapped'. Use 'shared'"),
        ({"placement": "nowhere"}, "'distributed'], got 'nowhere'"),
        ({"placement": "process", "rank_timeout": 5.0}, "rank_timeout only if ranks share"),
        ({"device": "cuda"}, "device='cuda' with placement="),
        ({"init": -1.0}, "init .*, got -1.0"),
        ({"init": "zeros"}, "init .*, got 'zeros'"),
        ({"init": lambda rows: torch.zeros(2)}, "to return a tensor of shape"),
        ({"seed": "x"}, "seed to be an integer, got 'x'"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_wrong_arguments(options, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        manyhop.Embedding(**{"num_rows": 10, "width": 4} | options)


@pytest.mark.parametrize("ids", [torch.tensor([0, NUM_ROWS]), torch.tensor([-1])], ids=["high", "negative"])
def test_ids_out_of_range(ids):
    with pytest.raises(FeatureError, match=f"indices in \\[0, {NUM_ROWS}\\) for people"):
        make(name="people")(ids)


@pytest.mark.parametrize("ids", [torch.tensor([1.0]), [1, 2]], ids=["float", "list"])
def test_ids_that_are_none(ids):
    with pytest.raises(FeatureError, match="Expected ids of embedding as a tensor of int64 or int32"):
        make()(ids)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda e: optim.SGD(e, lr=-1), "lr in units of the embedding, at least 0, got -1"),
        (lambda e: optim.Adam(e, betas=(0.9, 1.0)), r"betas\[1\] in \[0, 1\), got 1.0"),
        (lambda e: optim.Adam(e, betas=(0.9,)), "two betas"),
        (lambda e: optim.RMSProp(e, alpha=2), "alpha"),
        (lambda e: optim.SGD([torch.nn.Linear(2, 2)]), "Expected manyhop.Embedding, got a Linear"),
        (lambda e: optim.SGD(torch.nn.Linear(2, 2)), "Expected manyhop.Embedding, got a Linear"),
        (lambda e: optim.SGD(e.parameters()), "at least one manyhop.Embedding, each once, got 0. Pass the embeddings"),
        (lambda e: optim.SGD([e, e]), "each once, got 2"),
        (lambda e: optim.SGD(e).add_param_group({"params": [e.handle]}), "Expected all embeddings at the creation"),
    ],
    ids=["lr", "beta", "one beta", "alpha", "modules", "module", "parameters", "twice", "group"],
)
def test_wrong_arguments_of_optimizers(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong(make())


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle.dumps], ids=["deepcopy", "copy", "pickle"])
def test_a_table_is_not_copied(copied):
    with pytest.raises(InputError, match="Expected people in place"):
        copied(make(name="people"))


def test_a_table_that_is_too_large():
    with pytest.raises(CapacityError, match=r"people needs about .* GiB"):
        manyhop.Embedding(1 << 40, 128, name="people")
