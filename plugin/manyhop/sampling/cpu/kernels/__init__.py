"""Kernels of the CPU backend. Importing a module of this package imports numba."""

from __future__ import annotations

from manyhop.sampling.cpu.tables import BATCH_NODES, FOUND_EDGES, LABOR, MODE, STORED_EDGES
from manyhop.system.numba_kernels import records

edges_type = records(STORED_EDGES)
nodes_type = records(BATCH_NODES)
found_type = records(FOUND_EDGES)
mode_type = records(MODE)
labor_type = records(LABOR)
