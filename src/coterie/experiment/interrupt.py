"""Stop between two rounds when a person or a scheduler asks for it, never in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class StopRequest:
    """Which signal asked for a stop; None while nobody did."""

    number: int | None = None


@contextmanager
def listening(notice: Callable[[], None]) -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM instead of dying; a second Ctrl-C stops at once.

    Signals can be caught in the main thread only: elsewhere nothing is changed.

    Parameters
    ----------
    notice : callable
        Called at the first signal, to tell the person that the round is being finished.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.number is not None:
            raise KeyboardInterrupt
        request.number = number
        notice()

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
