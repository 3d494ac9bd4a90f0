"""A store of torch.distributed's kind in this process, which counts what is asked of it."""

import threading
from collections import Counter


class CountingStore:
    """What ``control`` and the watch use of a store; for threads that stand for ranks."""

    def __init__(self):
        self.operations, self.keys = Counter(), Counter()
        self.values, self._lock = {}, threading.Lock()

    def _count(self, name, keys=1):
        self.operations[name] += 1
        self.keys[name] += keys

    def set(self, key, value):
        with self._lock:
            self._count("set")
            self.values[key] = value.encode() if isinstance(value, str) else value

    def add(self, key, amount):
        with self._lock:
            self._count("add")
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def get(self, key):
        with self._lock:
            self._count("get")
            return self.values[key]

    def multi_get(self, keys):
        with self._lock:
            self._count("multi_get", len(keys))
            return [self.values[key] for key in keys]

    def check(self, keys):
        with self._lock:
            self._count("check", len(keys))
            return all(key in self.values for key in keys)

    def clone(self):
        return self

    def set_timeout(self, timeout):
        pass
