"""Runs in company: one thread goes on at a time, until it wishes for something that the others may wish for as well.

Each run has a thread of its own, so that its code reads as if it were alone; but threads take turns, as coroutines do.
So nothing that they share needs a lock, and what happens does not depend on who is faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Stage = tuple[int, ...]


class Abandoned(BaseException):
    """Ends a thread whose company has broken up; not an ``Exception``, so that nothing takes it for a failure."""


@dataclass(frozen=True, eq=False)
class Wish:
    """What a run waits for.

    Attributes
    ----------
    stage : tuple of int
        How far the run has come: those that are furthest behind are served first, so that they catch up.
    kind : hashable
        Wishes of one stage and one kind are served together.
    content : object
        What is wished for.
    """

    stage: Stage
    kind: Hashable
    content: Any


class Seat(Generic[T]):
    """The place of one run in a meeting."""

    def __init__(self, meeting: Meeting[T], function: Callable[[Seat[T]], T]) -> None:
        self.meeting = meeting
        self.pending: Wish | None = None
        self.result: T | None = None
        self.error: BaseException | None = None
        self._reply: Any = None
        self._turn = threading.Semaphore(0)
        self._spent, self._since = 0.0, perf_counter()
        self._thread = threading.Thread(target=self._live, args=(function,), name="coterie-seat", daemon=True)

    def wish(self, stage: Stage, kind: Hashable, content: Any) -> Any:
        """Wait for what ``serve`` of the meeting gives for this wish; to be called in the run's own thread.

        Raises
        ------
        Abandoned
            The meeting has broken up meanwhile.
        """
        self.pending = Wish(stage, kind, content)
        self._spent += perf_counter() - self._since
        self.meeting.hand_back()
        self._turn.acquire()
        self._since = perf_counter()
        if self.meeting.over:
            raise Abandoned
        reply, self._reply = self._reply, None
        return reply

    def clock(self) -> float:
        """Seconds that this run has taken: its own turns, and its share of what was served to several together."""
        return self._spent + perf_counter() - self._since

    @property
    def here(self) -> bool:
        """Whether the calling thread is the run's own."""
        return threading.current_thread() is self._thread

    # --- for the meeting -----------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin, until the first wish or the end."""
        self._since = perf_counter()
        self._thread.start()
        self.meeting.wait()

    def reply(self, value: Any, seconds: float) -> None:
        """Give what was wished for, which took ``seconds`` of this run's, and let the run go on to its next wish."""
        self.pending, self._reply = None, value
        self._spent += seconds
        self._turn.release()
        self.meeting.wait()

    def leave(self) -> None:
        """Wait for the end of the thread, which is woken once more where it waits for something."""
        if self._thread.is_alive():
            self._turn.release()
            self._thread.join()

    def _live(self, function: Callable[[Seat[T]], T]) -> None:
        try:
            self.result = function(self)
        except Abandoned:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.meeting.hand_back()


class Meeting(Generic[T]):
    """Runs ``functions``, each in its own thread and in turns, and serves what they wish for.

    Parameters
    ----------
    functions : sequence of callables
        The runs; each takes its seat.
    serve : callable
        Takes the wishes of one stage and kind, and gives a reply to each.
    """

    def __init__(
        self, functions: Sequence[Callable[[Seat[T]], T]], serve: Callable[[list[Wish]], Sequence[Any]]
    ) -> None:
        self.over = False
        self._serve = serve
        self._back = threading.Semaphore(0)
        self.seats = [Seat(self, function) for function in functions]

    @property
    def failed(self) -> bool:
        """Whether a run has ended with an error, so that the others should come to an end."""
        return any(seat.error is not None for seat in self.seats)

    def hold(self) -> list[T | None]:
        """Let all runs come to their end; what each returned.

        Raises
        ------
        BaseException
            The first error of a run, once the others have ended; at once where it is no ``Exception``, as is whatever
            interrupts this thread: the other runs are then abandoned at their next wish.
        """
        try:
            for seat in self.seats:
                seat.start()
                self._look_at(seat)
            while waiting := [seat for seat in self.seats if seat.pending is not None]:
                self._next(waiting)
        finally:
            self.over = True
            for seat in self.seats:
                seat.leave()
        for seat in self.seats:
            if seat.error is not None:
                raise seat.error
        return [seat.result for seat in self.seats]

    def _next(self, waiting: Sequence[Seat[T]]) -> None:
        """Serve those that are furthest behind, and let them go on."""
        stage = min(seat.pending.stage for seat in waiting if seat.pending is not None)
        kinds: dict[Hashable, list[Seat[T]]] = {}
        for seat in waiting:
            if seat.pending is not None and seat.pending.stage == stage:
                kinds.setdefault(seat.pending.kind, []).append(seat)
        for seats in kinds.values():
            begin = perf_counter()
            replies = self._serve([seat.pending for seat in seats if seat.pending is not None])
            seconds = (perf_counter() - begin) / len(seats)
            for seat, reply in zip(seats, replies, strict=True):
                seat.reply(reply, seconds)
                self._look_at(seat)

    def _look_at(self, seat: Seat[T]) -> None:
        if seat.error is not None and not isinstance(seat.error, Exception):
            raise seat.error

    # --- for the seats -------------------------------------------------------------------------------------------
    def hand_back(self) -> None:
        """Let the meeting go on, as the thread that had its turn waits or ends."""
        self._back.release()

    def wait(self) -> None:
        """Wait until the thread that was given its turn waits or ends."""
        self._back.acquire()
