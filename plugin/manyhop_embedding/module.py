"""The module: forward gathers rows, backward keeps their gradients for the optimizer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import closing
from os import PathLike
from typing import Any, NamedTuple, NoReturn, SupportsIndex, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from manyhop.arguments import integer, real
from manyhop.errors import FeatureError, InputError
from manyhop.features import Checks, RowRequest
from manyhop.memory.places import Place
from manyhop.sampling.random import Use, make_key
from manyhop.system.progress import Progress
from manyhop_embedding.ahead import RowsAhead, Versions
from manyhop_embedding.gradients import Gradients
from manyhop_embedding.place import TablePlace, require_ids
from manyhop_embedding.saved import load_tables, save_tables
from manyhop_embedding.updating import sort_ids

InitialRows: TypeAlias = Callable[[range], Tensor]
"""``init(rows)`` returns rows by their numbers, ``[len(rows), width]``."""

_PIECE_BYTES = 32 << 20  # of rows that are initialised at the same time


def filler(init: float | InitialRows | None, width: int, seed: int) -> Callable[[range, Tensor], None]:
    """Return a function that writes initial rows to the table, a piece at a time.

    Args:
        init: a function; or the bound ``b`` of a uniform distribution in ``[-b, b)``; ``None``: ``1 / sqrt(width)``.
        width: numbers of a row.
        seed: any integer.

    Raises:
        InputError: no function and no number.
    """
    bound = 0.0
    if not callable(init):
        value = 1 / math.sqrt(width) if init is None else init
        bound = real("init", value, "units of the embedding, or as a function of a range of rows")
    key, step = make_key(Use.EMBEDDING, seed), max(1, _PIECE_BYTES // (4 * width))

    def uniform(rows: range) -> Tensor:
        from manyhop_embedding.cpu_kernels import fill_uniform

        out = torch.empty(len(rows), width, device="cpu")
        fill_uniform(out.data_ptr(), rows.start, len(rows), width, key, bound)
        return out

    def fill(rows: range, out: Tensor) -> None:
        with closing(Progress("Making initial rows", out.nbytes)) as bar:
            for begin in range(0, len(rows), step):
                piece = rows[begin : begin + step]
                made: Any = init(piece) if callable(init) else uniform(piece)
                if not isinstance(made, Tensor) or tuple(made.shape) != (len(piece), width):
                    got = list(made.shape) if isinstance(made, Tensor) else f"a {type(made).__name__}"
                    raise FeatureError(
                        f"Expected init({piece}) to return a tensor of shape {[len(piece), width]}, got {got}. Return "
                        "a row for each number of the range."
                    )
                target = out[begin : begin + len(piece)]
                target.copy_(made.detach())
                bar.add(target.nbytes)

    return fill


_DTYPES = (torch.float32, torch.bfloat16)


class Embedding(nn.Module):
    """A trainable table ``[num_rows, width]``, of which a batch reads and updates some rows. All ranks create it.

    ``embedding(ids)`` returns rows, and ``backward`` keeps their gradients until an optimizer of :mod:`manyhop.optim`
    applies them. The table is no ``Parameter``: DDP does not reduce it, other optimizers do not see it, ``to()`` does
    not move it, and ``state_dict()`` does not have it: :meth:`save` writes it.

    Args:
        num_rows: of the table, for ids in ``[0, num_rows)``.
        width: numbers of a row.
        dtype: ``torch.float32``; or ``torch.bfloat16``, updated in float32 and rounded.
        placement: where the table and the optimizer's states reside. ``shared``: host memory, once per node.
            ``process``: host memory, of a run of one process. ``pinned``: host memory that GPUs read and update.
            ``device``: on each GPU. ``sharded``: over the nodes' host memory or, with a device, over the GPUs of each
            node. ``distributed``: over the GPUs of all nodes.
        device: this rank's GPU; ``None``: the current GPU if the place needs one, otherwise host memory.
        init: initial values: a bound ``b`` for uniform ones in ``[-b, b)``, the same on any number of ranks;
            ``None``: ``1 / sqrt(width)``; or a function that returns the rows of a ``range``, ``[len(range), width]``.
        seed: of the initial values; the same on all ranks.
        name: for errors.
        rank_timeout: seconds to wait for other ranks; ``None``: 600.

    Raises:
        CapacityError: there is not enough memory.
        InputError: arguments that do not make sense.
        RankError: ranks make different tables, or are late.
    """

    not_captured = "it reads a manyhop.Embedding, whose gradients the host collects. Read its rows before the step"

    def __init__(
        self,
        num_rows: int,
        width: int,
        *,
        dtype: torch.dtype = torch.float32,
        placement: Place = "shared",
        device: torch.device | str | None = None,
        init: float | InitialRows | None = None,
        seed: int = 0,
        name: str = "embedding",
        rank_timeout: float | None = None,
    ) -> None:
        super().__init__()
        self.num_rows, self.width = integer("num_rows", num_rows, 1), integer("width", width, 1)
        if dtype not in _DTYPES:
            raise InputError(f"Expected dtype to be torch.float32 or torch.bfloat16, got {dtype!r}. Pass one of them.")
        fill = filler(init, self.width, integer("seed", seed))
        self.dtype, self.name = dtype, name
        self.place = TablePlace(placement, device, rank_timeout)
        facts = {
            "num_rows": self.num_rows, "width": self.width, "dtype": str(dtype), "placement": placement, "seed": seed,
            "init": "a function" if callable(init) else init,
        }  # fmt: skip
        self.place.agree(f"the embedding {name}", facts)
        self.table = self.place.make(self.num_rows, self.width, dtype, name, fill)
        self.handle = torch.empty(0, requires_grad=True, device="cpu")
        """Stands for the table in autograd's graph, and in optimizers."""
        self.versions = Versions(self.place, self.table, name)
        self.sorts_early = self.place.device.type == "cuda"
        """Whether ids are sorted in the forward, where a GPU's host has time."""
        self._forwards = itertools.count()
        self._checks = Checks()
        self._pending: list[_Pending] = []

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of some ids.

        Where other nodes or ranks hold rows (``sharded`` over nodes, ``distributed``), all ranks call it.

        Args:
            ids: int64 or int32 of any shape, on the CPU or a GPU. Ids may be repeated.

        Returns:
            ``[*ids.shape, width]``.

        Raises:
            FeatureError: ids that are out of range; for ids that a GPU checks, ``step()`` raises it.
        """
        flat = require_ids(ids, self.name)
        rows = (
            self._rows(flat, None) if torch.is_grad_enabled() else self.place.gather(self.table, flat, self.name, None)
        )
        return rows if ids.dim() == 1 else rows.view(*ids.shape, self.width)

    def begin(self, ids: Tensor, device: torch.device) -> tuple[RowsAhead, RowRequest | None]:
        """Begin to read the rows of a prefetched batch, in any thread.

        Args:
            ids: ``[count]`` int64 or int32, where the batch is.
            device: where that is.

        Returns:
            What :meth:`finish` takes; and the rows to gather for it: set its ``rows`` to them. ``None``: other ranks or
            the host have to read them, which :meth:`finish` does.
        """
        if not (self.versions.stamps is not None and device.type == self.place.device.type):
            return RowsAhead(self.finish, ids, None), None
        source, latest = self.table.source, self.versions.latest()
        return RowsAhead(self.finish, ids, latest), RowRequest(source, ids, name=self.name, changes=True)

    def finish(self, ahead: RowsAhead) -> Tensor:
        """Return ``[count, width]`` rows as :meth:`forward` would: those updated since are read again.

        Where other nodes or ranks hold rows, all ranks call it.
        """
        if ahead.rows is None or ahead.latest is None:
            return self(ahead.ids)  # type: ignore[no-any-return]
        self.versions.refresh(ahead.ids, ahead.latest, ahead.rows)
        return self._rows(ahead.ids, ahead.rows) if torch.is_grad_enabled() else ahead.rows

    def _rows(self, ids: Tensor, gathered: Tensor | None) -> Tensor:
        rows: Tensor = _Rows.apply(self.handle, self, ids, gathered)  # type: ignore[no-untyped-call]
        return rows

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse to be copied or pickled: a table is in memory that all ranks share, and is created once."""
        raise InputError(
            f"Expected {self.name} in place, got a copy or a pickle of it. Write it with save(folder), "
            "load(folder) reads it; of a model, copy or pickle state_dict(), which has all except the table."
        )

    def extra_repr(self) -> str:
        """Return size and place, for ``print``."""
        return f"{self.num_rows}, {self.width}, dtype={self.dtype}, on {self.place.device}"

    @property
    def weight(self) -> Tensor:
        """Return ``[rows, width]``: the rows that this rank owns, where they reside: of a run of one process, all of
        them.

        Changes in place are seen by all ranks that share the memory.
        """
        return self.table.own

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the table to a new folder that all nodes see, each rank its own rows. All ranks call it.

        ``manyhop.files.open(f"{folder}/weight.json")`` reads it as well.

        Raises:
            CapacityError: the disk is full.
            InputError: the folder exists, or cannot be written.
            RankError: another rank failed.
        """
        save_tables(folder, {"weight": self.table})

    def load(self, folder: str | PathLike[str]) -> None:
        """Read a table that any number of ranks, in any placement, has saved. All ranks call it.

        Raises:
            InputError: no such folder; a file that is missing or damaged.
            RankError: another rank failed.
            StateError: a table of a different shape or dtype.
        """
        self.versions.outdate()
        load_tables(folder, {"weight": self.table})
        self.versions.updated()

    def take_gradients(self) -> Gradients | None:
        """Return the gradients since the last call, and drop them; ``None``: there was no ``backward``.

        Those of a row are in the order of the forwards.

        Raises:
            FeatureError: ids that are out of range.
        """
        pending, self._pending = self._pending, []
        on_gpu = self.place.device.type == "cuda"
        if not on_gpu:
            self._checks.ask(wait=True)  # for the gathers of forwards, not for later work
        found = self._sorted(pending) if pending else None
        if on_gpu:
            self._checks.ask(wait=True)  # while the GPU sorts, if it has not done so
        return found

    def forget_gradients(self) -> None:
        """Forget the gradients since the last call of :meth:`take_gradients`, without waiting for a GPU.

        Raises:
            FeatureError: ids that are known to be out of range.
        """
        self._pending = []
        self._checks.ask()

    def _sorted(self, pending: list[_Pending]) -> Gradients:
        if len(pending) == 1:
            _, ids, grads, ids_sorted = pending[0]
            return Gradients(*(ids_sorted or sort_ids(ids, self.num_rows)), grads)
        pending.sort(key=lambda one: one.forward)
        ids, grads = torch.cat([one.ids for one in pending]), torch.cat([one.grads for one in pending])
        return Gradients(*sort_ids(ids, self.num_rows), grads)


class _Pending(NamedTuple):
    """The gradients of a forward."""

    forward: int
    """Its number."""
    ids: Tensor
    grads: Tensor
    ids_sorted: tuple[Tensor, Tensor] | None
    """The ids in ascending order, and their positions before; ``None``: not sorted yet."""


class _Rows(torch.autograd.Function):
    """The rows of some ids, whose gradients are added to the embedding."""

    @staticmethod
    def forward(ctx: Any, handle: Tensor, embedding: Embedding, flat: Tensor, gathered: Tensor | None) -> Tensor:
        place = embedding.place
        rows = place.gather(embedding.table, flat, embedding.name, embedding._checks) if gathered is None else gathered
        ctx.embedding, ctx.number = embedding, next(embedding._forwards)
        ctx.save_for_backward(flat)
        is_early = embedding.sorts_early and flat.device == place.device
        ctx.ids_sorted = sort_ids(flat, embedding.num_rows) if is_early else None
        return rows

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[None, None, None, None]:
        (ids,) = ctx.saved_tensors
        embedding, device = ctx.embedding, ctx.embedding.place.device
        values = grads.to(device, embedding.dtype).resolve_neg().contiguous()
        embedding._pending.append(_Pending(ctx.number, ids.to(device), values, ctx.ids_sorted))
        return None, None, None, None
