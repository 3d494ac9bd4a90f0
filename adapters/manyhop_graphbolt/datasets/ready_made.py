"""GraphBolt's ready-made datasets, in existing folders."""

from __future__ import annotations

from pathlib import Path

import torch

from manyhop.errors import InputError
from manyhop.memory.places import Place
from manyhop_graphbolt.datasets.dataset import OnDiskDataset


class BuiltinDataset(OnDiskDataset):
    """One of GraphBolt's ready-made datasets, in ``root/name-seeds`` (of later versions than DGL 2.1) or ``root/name``.

    Nothing is downloaded.

    Args:
        name: of the dataset.
        root: the folder that it is in.
        placement: as of :class:`OnDiskDataset`.
        device: as of :class:`OnDiskDataset`.

    Raises:
        InputError: a missing dataset.
    """

    _NAMES = (
        "cora",
        "igb-het-medium",
        "igb-het-small",
        "igb-het-tiny",
        "igb-hom",
        "igb-hom-large",
        "igb-hom-medium",
        "igb-hom-small",
        "igb-hom-tiny",
        "ogbl-citation2",
        "ogb-lsc-mag240m",
        "ogbn-arxiv",
        "ogbn-mag",
        "ogbn-papers100M",
        "ogbn-products",
    )

    def __init__(
        self,
        name: str,
        root: str | Path = "datasets",
        *,
        placement: Place = "process",
        device: torch.device | str | None = None,
    ) -> None:
        own = name.removesuffix("-seeds")
        folders = [Path(root) / f"{own}-seeds", *([] if name.endswith("-seeds") else [Path(root) / own])]
        folder = next((path for path in folders if path.exists()), None)
        if folder is None:
            raise InputError(
                f"Expected the dataset '{name}' in {' or '.join(map(str, folders))}, found none. "
                + (
                    f"This package downloads nothing. Download {own}-seeds.zip from DGL's page of GraphBolt datasets "
                    f"(https://data.dgl.ai/dataset/graphbolt/{own}-seeds.zip) and unpack it into {Path(root)}."
                    if own in self._NAMES
                    else f"Available datasets are {list(self._NAMES)}; for your own, use OnDiskDataset(folder)."
                )
            )
        super().__init__(folder, placement=placement, device=device)
