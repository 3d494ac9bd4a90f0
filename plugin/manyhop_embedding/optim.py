"""Optimizers of :class:`manyhop.Embedding`: lazy, they touch only the rows that a batch has read.

They are ``torch.optim.Optimizer``: their ``param_groups``, one per embedding, have the learning rates, which torch's
schedulers change.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, overload

import torch

from manyhop.arguments import real
from manyhop.errors import InputError, StateError
from manyhop_embedding import Embedding
from manyhop_embedding.exchange import GradientExchange
from manyhop_embedding.gradients import Change, Kind, Rule
from manyhop_embedding.place import Table
from manyhop_embedding.saved import load_facts, load_tables, save_tables
from manyhop_embedding.updating import update


class Optimizer(torch.optim.Optimizer):
    """What all of them share. All ranks create it, and call :meth:`step` equally often.

    Gradients are summed over the rows that a batch reads several times, and over the forwards since the last step; of
    several ranks, the mean is taken, as DDP does. The owner of a row applies it once. States are float32, in memory of
    the same kind as the table.

    Args:
        embeddings: one or several.
        defaults: hyperparameters of all of them.

    Raises:
        CapacityError: there is no memory for the states.
        InputError: arguments that do not make sense.
        RankError: other ranks failed, or are late.
    """

    states: tuple[str, ...] = ()
    """Names of the states of each number of a row."""

    def __init__(self, embeddings: Embedding | Iterable[Embedding], defaults: dict[str, Any]) -> None:
        self.embeddings = list(embeddings) if isinstance(embeddings, Iterable) else [embeddings]
        for embedding in self.embeddings:
            if not isinstance(embedding, Embedding):
                raise InputError(
                    f"Expected manyhop.Embedding, got a {type(embedding).__name__}. Pass parameters to an optimizer of "
                    "torch.optim, in addition to this one."
                )
        if len(set(map(id, self.embeddings))) < max(1, len(self.embeddings)):
            raise InputError(
                f"Expected at least one manyhop.Embedding, each once, got {len(self.embeddings)}. Pass the embeddings "
                "themselves, as in Adam([users, items]): they have no parameters()."
            )
        facts = {"optimizer": type(self).__name__, **defaults, "embeddings": [each.name for each in self.embeddings]}
        for embedding in self.embeddings:
            embedding.place.agree(f"the optimizer of {embedding.name}", facts)
        super().__init__([{"params": [embedding.handle], "step": 0} for embedding in self.embeddings], defaults)
        self.tables = [
            [e.place.make(e.num_rows, e.width, torch.float32, f"{name} of {e.name}") for name in self.states]
            for e in self.embeddings
        ]
        """Per embedding: its states, in the order of ``states``."""
        self._exchanges: dict[torch.device, GradientExchange] = {}
        for place, name in ((e.place, e.name) for e in self.embeddings if not e.table.owners.world.is_alone):
            if place.device not in self._exchanges:
                self._exchanges[place.device] = GradientExchange(place.device, f"step() of {name}", place.timeout)

    @abstractmethod
    def _rule(self, group: dict[str, Any]) -> Rule:
        """Return the update of a group's step."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Apply the gradients since the last step, and drop them. All ranks call it.

        When it returns, rows gathered on this rank are current; on GPUs, those gathered on the current stream.

        Raises:
            FeatureError: ids on a GPU were out of range.
            RankError: another rank is lost or late.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group, embedding, states in zip(self.param_groups, self.embeddings, self.tables, strict=True):
            self._step(group, embedding, states)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: an optimizer gets all of its embeddings when it is made.

        Raises:
            InputError: always, from then on.
        """
        if len(self.param_groups) == len(self.embeddings):
            raise InputError(
                "Expected all embeddings at the creation of the optimizer, got another group. Pass a list of "
                "embeddings, or create an optimizer for each."
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients since the last step."""
        for embedding in self.embeddings:
            embedding.forget_gradients()

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the states of all rows, numbers of steps and hyperparameters to a new folder. All ranks call it.

        Raises:
            CapacityError: the disk is full.
            InputError: the folder exists, or cannot be written.
            RankError: another rank failed.
        """
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        save_tables(folder, self._named(), {"optimizer": type(self).__name__, "groups": groups})

    def load(self, folder: str | PathLike[str]) -> None:
        """Read what :meth:`save` has written, on any number of ranks, in any placement. All ranks call it.

        Raises:
            InputError: no such folder; a file that is missing or damaged.
            RankError: another rank failed.
            StateError: states of another optimizer, or of other embeddings.
        """
        facts = load_facts(folder)
        if (facts["optimizer"], len(facts["groups"])) != (type(self).__name__, len(self.param_groups)):
            raise StateError(
                f"Expected {folder} with the states of {type(self).__name__} for {len(self.param_groups)} embeddings, "
                f"got {facts}. Make the optimizer as it was saved."
            )
        load_tables(folder, self._named())
        for group, saved in zip(self.param_groups, facts["groups"], strict=True):
            group.update(saved)

    def _named(self) -> dict[str, Table]:
        """Return the states of all embeddings, by their names in a folder."""
        each = enumerate(self.tables)
        return {f"{name}.{k}": table for k, tables in each for name, table in zip(self.states, tables, strict=True)}

    def _step(self, group: dict[str, Any], embedding: Embedding, states: list[Table]) -> None:
        owners, gradients = embedding.table.owners, embedding.take_gradients()
        exchange = self._exchanges.get(embedding.place.device)  # of several ranks
        if exchange is not None:
            gradients = exchange.send(gradients, owners, embedding.width)
        if gradients is None:
            return
        group["step"] += 1
        table, scale, stamps = embedding.table, 1 / owners.world.world_size, embedding.versions.next()
        owned = [state.own for state in states]
        update(gradients, Change(self._rule(group), table.own, owned, table.rows.start, scale, stamps))
        if exchange is not None and owners.share_memory:
            exchange.wait()
        embedding.versions.updated()


class SGD(Optimizer):
    """Stochastic gradient descent, as ``torch.optim.SGD`` with sparse gradients.

    Args:
        embeddings: one or several.
        lr: learning rate.
    """

    def __init__(self, embeddings: Embedding | Iterable[Embedding], lr: float = 1e-3) -> None:
        super().__init__(embeddings, {"lr": _rate(lr)})

    def _rule(self, group: dict[str, Any]) -> Rule:
        return Rule(Kind.SGD, group["lr"])


class Adam(Optimizer):
    """Lazy Adam, as ``torch.optim.SparseAdam``: moments of rows without a gradient do not change.

    Args:
        embeddings: one or several.
        lr: learning rate.
        betas: decay of the two moments.
        eps: is added to the root of the second moment.
    """

    states = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        embeddings: Embedding | Iterable[Embedding],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        decays = tuple(_decay(f"betas[{k}]", beta) for k, beta in enumerate(betas))
        if len(decays) != 2:
            raise InputError(f"Expected two betas, got {betas!r}. Pass a pair, as in (0.9, 0.999).")
        super().__init__(embeddings, {"lr": _rate(lr), "betas": decays, "eps": real("eps", eps, "units of gradients")})

    def _rule(self, group: dict[str, Any]) -> Rule:
        (beta1, beta2), step = group["betas"], group["step"]
        size = group["lr"] * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        return Rule(Kind.ADAM, size, 1 - beta1, 1 - beta2, group["eps"])


class AdaGrad(Optimizer):
    """Adagrad, as ``torch.optim.Adagrad`` with sparse gradients.

    Args:
        embeddings: one or several.
        lr: learning rate.
        eps: is added to the root of the sum.
    """

    states = ("sum",)

    def __init__(self, embeddings: Embedding | Iterable[Embedding], lr: float = 1e-2, *, eps: float = 1e-10) -> None:
        super().__init__(embeddings, {"lr": _rate(lr), "eps": real("eps", eps, "units of gradients")})

    def _rule(self, group: dict[str, Any]) -> Rule:
        return Rule(Kind.ADAGRAD, group["lr"], h3=group["eps"])


class RMSProp(Optimizer):
    """Lazy RMSProp, as ``torch.optim.RMSprop`` on the rows that have a gradient.

    Args:
        embeddings: one or several.
        lr: learning rate.
        alpha: decay of the mean of squares.
        eps: is added to the root of the mean.
    """

    states = ("square_avg",)

    def __init__(
        self, embeddings: Embedding | Iterable[Embedding], lr: float = 1e-2, *, alpha: float = 0.99, eps: float = 1e-8
    ) -> None:
        defaults = {"lr": _rate(lr), "alpha": _decay("alpha", alpha), "eps": real("eps", eps, "units of gradients")}
        super().__init__(embeddings, defaults)

    def _rule(self, group: dict[str, Any]) -> Rule:
        return Rule(Kind.RMSPROP, group["lr"], 1 - group["alpha"], h3=group["eps"])


def _rate(lr: Any) -> float:
    return real("lr", lr, "units of the embedding")


def _decay(name: str, value: Any) -> float:
    number = real(name, value, "steps")
    if number >= 1:
        raise InputError(f"Expected {name} in [0, 1), got {value!r}. Pass such a number.")
    return number
