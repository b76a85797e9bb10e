"""Rows are independent: how clients are stacked, chunked and executed changes nothing."""

from __future__ import annotations

from coterie.testing.recording import Mixed, RowCheck, RowCheckSingle
from coterie.testing.subject import Broken, Subject, played, predicted, require_equal
from coterie.testing.toys import RAGGED, classified


def rows(subject: Subject) -> None:
    """A client computes the same alone, in its stack, and among clients whose data are NaN."""
    federation = classified((7, 4, 1, 5))
    for dtype, engine in (("float64", RowCheck), ("float32", RowCheckSingle)):
        try:
            played(subject, federation, engine=engine, dtype=dtype, rounds=2)
        except Mixed as mixed:
            expected = f"a client's answers and state depend on its own data alone ({dtype})"
            hint = "client code sums, averages or normalises over the first axis, which is the axis of clients"
            raise Broken(expected, str(mixed), hint) from None


def chunks(subject: Subject) -> None:
    """Clients served one by one, in sevens, or all at once: the same models and the same bytes."""
    whole, reports = played(subject, RAGGED, chunk=8)
    for chunk in (1, 7):
        parts, others = played(subject, RAGGED, chunk=chunk)
        expected = f"chunks of {chunk} clients change nothing"
        hint = "client code depends on how many clients its site has"
        require_equal(predicted(parts), predicted(whole), whole.names, expected, hint)
        for ours, theirs in zip(reports, others, strict=True):
            if ours.ledger != theirs.ledger:
                raise Broken(f"{expected} in what travels", f"round {ours.round} booked other bytes", hint)


def executors(subject: Subject) -> None:
    """Stacked layers, torch.func.vmap and one model after the other, on two threads: the same models."""
    whole, _ = played(subject, RAGGED, rounds=2)
    for executor in ("stacked", "vmap", "loop"):
        other, _ = played(subject, RAGGED, executor=executor, threads=2, chunk=3, rounds=2)
        expected = f"the executor {executor} on two threads changes nothing"
        hint = "client code draws from torch's global generator, or keeps something between calls that is not state"
        require_equal(predicted(other), predicted(whole), whole.names, expected, hint, 1e-8)
