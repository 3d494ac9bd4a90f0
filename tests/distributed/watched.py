"""A loader without a graph: only what the watch sees of one; and what the watch of a rank has heard."""

import time

from manyhop.ranks.watch import Watch, monitor


class Loader:
    """Hands out numbers, as a loader hands out batches."""

    def __init__(self, batches, timeout=6.0, fail_at=None, first_takes=0.0, under_way=False):
        self._batches, self._fail_at, self._first_takes = batches, fail_at, first_takes
        self._watch = Watch("Loader", timeout=timeout)
        self._epoch, self._under_way = 0, under_way

    def rows_under_way(self):
        return self._under_way

    def __iter__(self):
        iteration = self._watch.begin(self._epoch, rows_under_way=self.rows_under_way)
        return Batches(iteration, self._batches, self._fail_at, self._first_takes)


class Batches:
    def __init__(self, iteration, batches, fail_at, first_takes):
        self._iteration, self._batches, self._fail_at, self._next = iteration, batches, fail_at, 0
        self._first_takes = first_takes

    def __iter__(self):
        return self

    def __next__(self):
        if self._next == self._batches:
            self._iteration.ended()
            raise StopIteration
        self._iteration.requested()
        if self._next == 0:
            time.sleep(self._first_takes)
        if self._next == self._fail_at:
            error = ValueError("row 7 is broken")
            self._iteration.failed(error)
            raise error
        self._next += 1
        self._iteration.received()
        return self._next - 1

    def __del__(self):
        self._iteration.left()


def wait_until_left(rank):
    """Wait until this rank has heard that another one left an iteration of the first loader early."""
    while (heartbeat := monitor.of_run()._detector.heartbeats[rank]) is None or not heartbeat.loops[0].ends:
        time.sleep(0.01)
