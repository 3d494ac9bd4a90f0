"""Training steps as CUDA graphs: captured once per size of a batch, replayed afterwards."""

from manyhop_train.capture.step import CapturedStep, Layout

__all__ = ["CapturedStep", "Layout"]
