"""Makes batches ahead of the training step: plan, threads, statistics, resume."""

from manyhop.loading.pipeline.block_sizes import Counts, PadSizes, pad_sizes
from manyhop.loading.pipeline.lockstep import Lockstep, Steps, current_exchange, exchanging
from manyhop.loading.pipeline.padding import Padded, PaddedRows, Padder, clear_rows
from manyhop.loading.pipeline.parts import ItemParts, check_num_parts, parts_of
from manyhop.loading.pipeline.pipeline import Pipeline
from manyhop.loading.pipeline.plan import BatchPlan, permute
from manyhop.loading.pipeline.ranks import Deal, Dealing, Turn, Uneven
from manyhop.loading.pipeline.state import LoaderState
from manyhop.loading.pipeline.stats import Interval, Stage, Stats, StatsReport
from manyhop.loading.pipeline.streams import OnStream, Streams, tensors_in
from manyhop.loading.pipeline.tasks import Groups
from manyhop.loading.pipeline.timeline import save_timeline
from manyhop.loading.pipeline.trace import merge_traces
from manyhop.loading.pipeline.workers import Crew, WorkerPool, end_crews

__all__ = [
    "BatchPlan",
    "Counts",
    "Crew",
    "Deal",
    "Dealing",
    "Groups",
    "Interval",
    "ItemParts",
    "LoaderState",
    "Lockstep",
    "OnStream",
    "PadSizes",
    "Padded",
    "PaddedRows",
    "Padder",
    "Pipeline",
    "Stage",
    "Stats",
    "StatsReport",
    "Steps",
    "Streams",
    "Turn",
    "Uneven",
    "WorkerPool",
    "check_num_parts",
    "clear_rows",
    "current_exchange",
    "end_crews",
    "exchanging",
    "merge_traces",
    "pad_sizes",
    "parts_of",
    "permute",
    "save_timeline",
    "tensors_in",
]
