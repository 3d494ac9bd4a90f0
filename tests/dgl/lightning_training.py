"""Training by PyTorch Lightning, and the figures of loaders that it logs."""

from typing import Any

import pytorch_lightning as lightning

from manyhop.lightning import LoaderStatsMonitor


class _Logger(lightning.loggers.logger.DummyLogger):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.seen.append(metrics)


def fit(net: lightning.LightningModule, loaders: Any) -> list[dict[str, float]]:
    """Train two epochs on the CPU. Return what was logged of each."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=2,
        logger=(logger := _Logger()),
        callbacks=[LoaderStatsMonitor(all_metrics=True)],
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(net, loaders)
    return logger.seen
