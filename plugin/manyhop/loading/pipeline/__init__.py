"""Prefetches batches for training steps: plan, schedule of ranks, threads, streams, statistics."""

from manyhop.loading.pipeline.block_sizes import Counts, PadSizes, pad_sizes
from manyhop.loading.pipeline.padding import Padded, PaddedRows, Padder, clear_rows
from manyhop.loading.pipeline.parts import ItemParts, check_num_parts, parts_of
from manyhop.loading.pipeline.pipeline import Pipeline
from manyhop.loading.pipeline.plan import BatchPlan, RankBatch, RankSchedule, Uneven, UnevenRule, permute
from manyhop.loading.pipeline.stats import Stage, Stats, StatsReport
from manyhop.loading.pipeline.streams import OnStream, Streams, tensors_in
from manyhop.loading.pipeline.timeline import merge_traces, save_timeline
from manyhop.loading.pipeline.workers import Groups, WorkerPool, WorkerThreads, end_workers

__all__ = [
    "BatchPlan",
    "Counts",
    "Groups",
    "ItemParts",
    "OnStream",
    "PadSizes",
    "Padded",
    "PaddedRows",
    "Padder",
    "Pipeline",
    "RankBatch",
    "RankSchedule",
    "Stage",
    "Stats",
    "StatsReport",
    "Streams",
    "Uneven",
    "UnevenRule",
    "WorkerPool",
    "WorkerThreads",
    "check_num_parts",
    "clear_rows",
    "end_workers",
    "merge_traces",
    "pad_sizes",
    "parts_of",
    "permute",
    "save_timeline",
    "tensors_in",
]
