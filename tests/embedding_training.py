"""What embeddings are compared with: torch's optimizers for sparse gradients, and batches for both."""

import torch
from torch import Tensor

from manyhop import optim

NUM_ROWS, WIDTH = 101, 12

OURS = {
    "SGD": lambda e: optim.SGD(e, lr=0.3),
    "Adam": lambda e: optim.Adam(e, lr=0.02, betas=(0.8, 0.95), eps=1e-6),
    "AdaGrad": lambda e: optim.AdaGrad(e, lr=0.1, eps=1e-6),
    "RMSProp": lambda e: optim.RMSProp(e, lr=0.05, alpha=0.9, eps=1e-6),
}
THEIRS = {
    "SGD": lambda w: torch.optim.SGD(w, lr=0.3),
    "Adam": lambda w: torch.optim.SparseAdam(w, lr=0.02, betas=(0.8, 0.95), eps=1e-6),
    "AdaGrad": lambda w: torch.optim.Adagrad(w, lr=0.1, eps=1e-6),
    "RMSProp": lambda w: LazyRMSProp(w, lr=0.05, alpha=0.9, eps=1e-6),
}


class LazyRMSProp:
    """RMSProp of the rows that have a gradient, row by row, since torch's needs dense gradients."""

    def __init__(self, weights, lr, alpha, eps):
        (self.weight,) = weights
        self.lr, self.alpha, self.eps = lr, alpha, eps
        self.square_avg = torch.zeros_like(self.weight)

    def zero_grad(self):
        self.weight.grad = None

    @torch.no_grad()
    def step(self):
        grad = self.weight.grad.coalesce()
        for row, g in zip(grad.indices()[0].tolist(), grad.values(), strict=True):
            self.square_avg[row] = self.alpha * self.square_avg[row] + (1 - self.alpha) * g * g
            self.weight[row] -= self.lr * g / (self.square_avg[row].sqrt() + self.eps)


def batch(step: int, rank: int = 0) -> tuple[Tensor, Tensor]:
    """Ids with repetitions, of another number on each rank, and what their rows are multiplied by."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    ids = torch.randint(0, NUM_ROWS, (40 + 7 * rank,), generator=draw) // (1 + step % 3)
    return ids, torch.randn(len(ids), WIDTH, generator=draw)


def loss_of(rows: Tensor, factors: Tensor) -> Tensor:
    rows = rows.float()
    return (rows * factors).sum() + rows.square().sum()


def train(embedding, optimizer, steps, rank=0):
    """Train on the batches of one rank."""
    for step in steps:
        ids, factors = batch(step, rank)
        optimizer.zero_grad()
        loss_of(embedding(ids), factors).backward()
        optimizer.step()


@torch.sparse.check_sparse_tensor_invariants(enable=True)  # torch warns unless that is decided
def trained_by_torch(weight: Tensor, name: str, steps, world_size: int = 1) -> Tensor:
    """The table after steps of torch's optimizer, each on the mean of the losses of all ranks."""
    table = torch.nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=True)
    optimizer = THEIRS[name]([table.weight])
    for step in steps:
        optimizer.zero_grad()
        for rank in range(world_size):
            ids, factors = batch(step, rank)
            (loss_of(table(ids), factors) / world_size).backward()
        optimizer.step()
    return table.weight.detach()
