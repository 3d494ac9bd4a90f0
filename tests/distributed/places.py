"""What stores in every place that GPUs read are filled with."""

import torch

ENV = {"TRITON_INTERPRET": "1"}
PLACES = [("pinned", None), ("device", None), ("sharded", "cuda"), ("distributed", None)]
NUM_NODES = 301


def tensors():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_NODES, 12, generator=generator)
    return {"x": x, "y": torch.arange(NUM_NODES), "edges": torch.randint(0, NUM_NODES, (2, 3000), generator=generator)}
