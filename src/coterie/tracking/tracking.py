"""All trackers of a run; none of them can hold it up or stop it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from coterie.errors import describe
from coterie.runs import Measured
from coterie.tracking.naming import metric_name
from coterie.tracking.subject import Outcome, Sink, Subject, Track


class Tracking:
    """Passes what the history gets on to every sink; a context manager, at whose end everything is written.

    Parameters
    ----------
    sinks : sequence of Sink
        The trackers; none is fine.
    warn : callable
        Is told in one sentence that a sink has failed; that sink gets nothing more.
    """

    def __init__(self, sinks: Sequence[Sink], warn: Callable[[str], None]) -> None:
        self.sinks = tuple(sinks)
        self._channels = [_Channel(sink, warn) for sink in sinks]

    def begin(self, key: Hashable, subject: Subject, past: Iterable[Measured] = ()) -> None:
        """A run starts, or goes on after what the history has of it."""
        rounds = list(past)
        for channel in self._channels:
            channel.do(channel.begin, key, subject)
        self.note(key, rounds)

    def note(self, key: Hashable, rows: Iterable[Measured]) -> None:
        """Numbers of a run, mostly those of one round."""
        if not self._channels:
            return
        rounds: dict[int, dict[str, float]] = {}
        for row in rows:
            rounds.setdefault(row.round, {})[metric_name(row.phase, row.split, row.metric)] = row.value
        for channel in self._channels:
            channel.do(channel.log, key, rounds)

    def end(self, key: Hashable, outcome: Outcome) -> None:
        """A run is over; one that has ended already may end again."""
        for channel in self._channels:
            channel.do(channel.end, key, outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for channel in self._channels:
            channel.do(channel.end_all)
        for channel in self._channels:
            channel.close()


class _Channel:
    """One sink and its thread: training does not wait for a slow disk or server."""

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink, self._warn = sink, warn
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"tracking-{sink.name}")
        self._tracks: dict[Hashable, Track] = {}
        self._failed = False

    def do(self, action: Callable[..., None], *arguments: object) -> None:
        """Carry out one of the actions below, after those before."""
        self._thread.submit(self._try, action, *arguments)

    def _try(self, action: Callable[..., None], *arguments: object) -> None:
        if self._failed:
            return
        try:
            action(*arguments)
        except (Exception, SystemExit) as error:  # whatever a tracker's library may raise
            self._failed = True
            self._warn(f"{self._sink.name} gets nothing more of this run, which goes on: {_brief(error)}")

    def begin(self, key: Hashable, subject: Subject) -> None:
        self._tracks[key] = self._sink.begin(subject)

    def log(self, key: Hashable, rounds: dict[int, dict[str, float]]) -> None:
        for round, values in rounds.items():
            self._tracks[key].log(round, values)

    def end(self, key: Hashable, outcome: Outcome) -> None:
        track = self._tracks.pop(key, None)
        if track is not None:
            track.end(outcome)

    def end_all(self) -> None:
        for key in list(self._tracks):
            self.end(key, "stopped")

    def close(self) -> None:
        """Wait until all is done; a second Ctrl-C gives that up."""
        try:
            self._thread.shutdown()
        except KeyboardInterrupt:
            self._thread.shutdown(wait=False, cancel_futures=True)
            raise


def _brief(error: BaseException) -> str:
    text = describe(error)
    return text if len(text) <= 200 else f"{text[:197]}..."
