"""The cuGraph backend: a graph whose edges are spread over the GPUs of all ranks, sampled together. No Dask.

The engine loads this package by :func:`manyhop.sampling.engines.collective_backend`.
"""

from manyhop_cugraph.engine import CuGraphSampler as make_sampler  # noqa: N813
from manyhop_cugraph.graph import SpreadGraph as spread  # noqa: N813
from manyhop_cugraph.graph import build_bytes
from manyhop_cugraph.scheduler import drain

__all__ = ["build_bytes", "drain", "make_sampler", "spread"]
