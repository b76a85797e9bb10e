"""Signals that wait until something has been done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_held(*numbers: signal.Signals) -> Iterator[None]:
    """Let none of these signals reach this thread, nor a process that it starts, before the end.

    An interruption in the midst of an import, or between the start of a process and its being known, may get lost.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
