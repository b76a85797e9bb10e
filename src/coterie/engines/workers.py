"""Worker threads, one core each: torch works outside the interpreter's lock, so chunks of clients run side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")

# torch's own choice, which follows OMP_NUM_THREADS, before any run changes it
MACHINE_THREADS = torch.get_num_threads()


class Workers:
    """Runs a function on many items, ``count`` at a time, and gives the results in the order of the items.

    Threads inside one operation wait for one another at each of its ends, which costs most of a small model's step and
    far more on a busy machine; threads that each train other clients do not.
    """

    def __init__(self, count: int, threads: int) -> None:
        self.count = count
        torch.set_num_threads(max(1, threads // count))
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """``function`` of each item, in order; at most ``count + 1`` results wait, so that memory stays bounded."""
        waiting: deque[Future[B]] = deque()
        todo = list(items)
        if self.count == 1 or len(todo) == 1:
            yield from map(function, todo)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, "coterie", initializer=torch.set_num_threads, initargs=(1,))
        try:
            for item in todo:
                waiting.append(self._pool.submit(function, item))
                if len(waiting) > self.count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # an error or a stop: nothing may change state after we have left
                future.cancel()
            for future in waiting:
                if not future.cancelled():
                    future.exception()
