"""Threads in turns: who is served when, and that no mishap leaves one behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coterie.engines.meeting import Meeting, Seat, Wish

PATIENCE = 10.0


def held(functions: Sequence[Callable[[Seat[Any]], Any]], serve: Callable[[list[Wish]], Sequence[Any]]) -> list[Any]:
    """What the functions returned; no thread is left, whatever happens."""
    meeting = Meeting(functions, serve)
    outcome: list[Any] = []
    error: list[BaseException] = []

    def hold() -> None:
        try:
            outcome.extend(meeting.hold())
        except BaseException as problem:
            error.append(problem)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the meeting hangs"
    deadline = time.monotonic() + PATIENCE
    while any(thread.name == "coterie-seat" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a run was left behind"
        time.sleep(0.01)
    if error:
        raise error[0]
    return outcome


def test_equal_wishes_are_served_together_and_those_behind_first() -> None:
    served: list[list[Any]] = []

    def serve(wishes: list[Wish]) -> list[Any]:
        served.append([wish.content for wish in wishes])
        return [10 * wish.content for wish in wishes]

    def from_round(first: int, kind: str = "") -> Callable[[Seat[int]], int]:
        def run(seat: Seat[int]) -> int:
            return sum(seat.wish((round,), kind, round) for round in range(first, 4))

        return run

    assert held([from_round(2), from_round(0), from_round(2), from_round(3, "other")], serve) == [50, 60, 50, 30]
    assert served == [[0], [1], [2, 2, 2], [3, 3, 3], [3]]


def test_one_thread_goes_on_at_a_time() -> None:
    running, most = [0], [0]

    def run(seat: Seat[None]) -> None:
        for round in range(5):
            running[0] += 1
            most[0] = max(most[0], running[0])
            time.sleep(0.001)
            running[0] -= 1
            seat.wish((round,), None, None)

    held([run] * 4, lambda wishes: [None] * len(wishes))
    assert most == [1]


def test_an_error_lets_the_others_end_and_is_raised_then() -> None:
    ended = []

    def run(seat: Seat[None]) -> None:
        for round in range(5):
            if seat.wish((round,), None, None):
                break
        ended.append(round)

    def fails(seat: Seat[None]) -> None:
        seat.wish((1,), None, None)
        raise ValueError("at fault")

    meeting: list[Meeting[None]] = []

    def seen(seat: Seat[None]) -> None:
        meeting.append(seat.meeting)
        run(seat)

    with pytest.raises(ValueError, match="at fault"):
        held([run, fails, seen], lambda wishes: [meeting[0].failed] * len(wishes))
    assert ended == [2, 2]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_whatever_breaks_a_meeting_up_ends_all(error: type[BaseException]) -> None:
    """An error of the meeting itself, or one that is no failure of a run but an end of the program."""
    cleaned = []

    def run(seat: Seat[None]) -> None:
        try:
            for round in range(10**9):
                seat.wish((round,), None, None)
        except Exception:
            cleaned.append("taken for a failure")
        finally:
            cleaned.append("left")

    def ends(seat: Seat[None]) -> None:
        seat.wish((3,), None, None)
        raise error("the end")

    def serve(wishes: list[Wish]) -> list[None]:
        if error is ValueError and wishes[0].stage == (3,):
            raise error("the end")
        return [None] * len(wishes)

    with pytest.raises(error, match="the end"):
        held([run, ends, run] if error is not ValueError else [run, run], serve)
    assert cleaned == ["left", "left"]


def test_time_is_divided_among_those_served_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent = [7.0], list[float]()
    monkeypatch.setattr("coterie.engines.meeting.perf_counter", lambda: now[0])

    def run(seat: Seat[None]) -> None:
        begin = seat.clock()
        seat.wish((0,), None, None)
        spent.append(seat.clock() - begin)

    def serve(wishes: list[Wish]) -> list[None]:
        now[0] += 0.2
        return [None] * len(wishes)

    held([run, run], serve)
    assert spent == pytest.approx([0.1, 0.1])
