"""A callback for Lightning's Trainer: figures of the loaders, to whatever loggers it has."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from manyhop.errors import MissingExtraError
from manyhop.loading import EpochLoader


def _callback() -> Any:
    """Lightning's base class of callbacks: of the package that the script has imported, if there are two."""
    names = sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules)
    for name in names:
        try:
            return importlib.import_module(f"{name}.callbacks").Callback
        except ImportError:
            continue
    raise MissingExtraError(
        "lightning", "", "manyhop.lightning", advice="Install it with: pip install lightning (or pytorch-lightning)"
    )


class LoaderStatsMonitor(_callback()):  # type: ignore[misc]  # the class is found at run time
    """Logs ``loader.stats().metrics()`` of manyhop's training loaders at the end of each epoch, for that epoch.

    Names are ``manyhop/waited_s`` and so on; ``manyhop/NAME/waited_s`` for a dictionary of loaders. With several ranks,
    the figures are those of rank 0.
    """

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the figures of the epoch."""
        for prefix, loader in _loaders(trainer.train_dataloader):
            pl_module.log_dict(loader.stats(since="epoch").metrics(prefix), on_step=False, on_epoch=True)


def _loaders(value: Any, prefix: str = "manyhop/") -> Iterator[tuple[str, EpochLoader]]:
    """manyhop's loaders among those of a Trainer, with prefixes of their figures."""
    if isinstance(value, EpochLoader):
        yield prefix, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _loaders(part, f"{prefix}{name}/")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _loaders(part, f"{prefix}{number}/")
