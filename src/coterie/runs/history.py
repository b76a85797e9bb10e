"""The history of a run: collected in memory while it goes on, written whole at every checkpoint."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow
from numpy.typing import ArrayLike, NDArray

from coterie.errors import CoterieError
from coterie.evaluation.catalogue import may_be_undefined
from coterie.evaluation.metrics import macro, weighted
from coterie.evaluation.summary import NOT_OF_THE_RUN
from coterie.evaluation.tables import CLIENTS, FAILURES, HISTORY, TIMINGS, UNDEFINED, Tables
from coterie.runs.atomic import atomic_path
from coterie.runs.directory import RunDirectory

WHOLE = ("seed", "round", "n")
REAL = ("value", "seconds")


class _Key(NamedTuple):
    """What one evaluation of all clients is about."""

    algorithm: str
    variant: str
    seed: int
    round: int
    phase: str
    split: str
    metric: str


@dataclass(frozen=True)
class _Block:
    """One metric of all clients at one time: K rows of the client table, kept as three columns."""

    names: tuple[str, ...]
    n: NDArray[np.int64]  # (K,)
    values: NDArray[np.float64]  # (K,)


Row = tuple[Any, ...]


class Measured(NamedTuple):
    """One number of a run, as it stands in the history; the seconds of a phase are its metric ``seconds``."""

    round: int
    phase: str
    split: str
    metric: str
    value: float


class History:
    """Every number that a run produces, by system, seed and round.

    The client table, by far the largest, is kept as one block of arrays for each metric and evaluation, so
    that adding costs the same for one client as for a thousand. Rows keep the order in which they were
    added. A variant of None is stored as the empty string.
    """

    def __init__(self) -> None:
        self._blocks: dict[_Key, _Block] = {}
        self._rosters: dict[tuple[str, ...], tuple[str, ...]] = {}  # equal tuples of names, kept once
        self._sizes: dict[tuple[int, str], NDArray[np.int64]] = {}  # the first by roster and split, mostly the only
        self._history: list[Row] = []
        self._timings: list[Row] = []
        self._failures: list[Row] = []
        self._undefined: dict[Row, str] = {}
        self.version = 0  # counts changes, so that what has not changed need not be written again

    def add_clients(
        self,
        algorithm: str,
        variant: str | None,
        seed: int,
        round: int,
        split: str,
        names: Sequence[str],
        n: ArrayLike,
        metric: str,
        values: ArrayLike,
        *,
        phase: str = "evaluate",
    ) -> None:
        """Add one metric of all clients.

        Of a split in the phase ``evaluate`` its means over clients go to the history too: ``<metric>``, where
        every client counts once, and ``<metric>:weighted``, by examples.

        Args:
            algorithm: the system's algorithm.
            variant: its variant, or None.
            seed: the seed.
            round: the round, 0 for the initial models.
            split: ``train``, ``validation`` or ``test``; empty where it means nothing.
            names: the K clients.
            n: their numbers of examples in the split, ``(K,)``.
            metric: for example ``accuracy``.
            values: the values, ``(K,)``; NaN where a client has none.
            phase: when it was measured.

        Raises:
            ValueError: lengths differ, or this evaluation is there already.

        """
        key = _Key(algorithm, variant or "", int(seed), int(round), phase, split, metric)
        roster = tuple(names)
        roster = self._rosters.setdefault(roster, roster)
        sizes = np.array(np.asarray(n), dtype=np.int64)  # a copy: the caller may go on with its array
        results = np.array(np.asarray(values), dtype=np.float64)
        if not sizes.shape == results.shape == (len(roster),):
            raise ValueError(f"{len(roster)} clients, but n {sizes.shape} and values {results.shape} for {key}")
        if key in self._blocks:
            raise ValueError(f"there are results for {key} already; is (algorithm, variant) unique?")
        self.version += 1
        self._blocks[key] = _Block(roster, self._kept(roster, split, sizes), results)
        if phase == "evaluate" and split:  # bytes of an evaluation belong to no split, and the ledger sums them
            owners = sizes > 0  # a client without examples has no metric, whatever stands in its place
            if not np.isfinite(results[owners]).any() and may_be_undefined(metric):
                return  # the data of no client define it, so that it has no mean
            self.add(algorithm, variant, seed, round, split, metric, macro(results[owners]))
            by_size = weighted(results[owners], sizes[owners])
            self.add(algorithm, variant, seed, round, split, f"{metric}:weighted", by_size)

    def add(
        self,
        algorithm: str,
        variant: str | None,
        seed: int,
        round: int,
        split: str,
        metric: str,
        value: float,
        *,
        phase: str = "evaluate",
    ) -> None:
        """Add one value to the history."""
        self.version += 1
        self._history.append((algorithm, variant or "", int(seed), int(round), phase, split, metric, float(value)))

    def add_ledger(
        self,
        algorithm: str,
        variant: str | None,
        seed: int,
        round: int,
        entries: Iterable[Mapping[str, Any]],
    ) -> None:
        """Add the bytes of one round to the history, as metrics like ``bytes_up:model``.

        ``entries`` have ``phase``, ``direction`` (``up``, ``down``, ``peer``), ``kind`` and ``bytes``,
        summed over all clients; equal ones are added up.
        """
        totals: dict[tuple[str, str], int] = {}
        for entry in entries:
            key = (str(entry["phase"]), f"bytes_{entry['direction']}:{entry['kind']}")
            totals[key] = totals.get(key, 0) + int(entry["bytes"])
        for (phase, metric), size in totals.items():
            self.add(algorithm, variant, seed, round, "", metric, size, phase=phase)

    def add_timing(
        self, algorithm: str, variant: str | None, seed: int, round: int, phase: str, seconds: float
    ) -> None:
        """Add the seconds that a phase of a round took."""
        self.version += 1
        self._timings.append((algorithm, variant or "", int(seed), int(round), phase, float(seconds)))

    def add_failure(self, algorithm: str, variant: str | None, seed: int, round: int, client: str, reason: str) -> None:
        """Add a client that could not finish a round, and why."""
        self.version += 1
        self._failures.append((algorithm, variant or "", int(seed), int(round), client, reason))

    def add_undefined(
        self, algorithm: str, variant: str | None, seed: int, split: str, metric: str, client: str, reason: str
    ) -> None:
        """Add that a client's data do not define a metric, and why; to say so again changes nothing.

        It is no fact of any round, so that `cut` leaves it.
        """
        self.version += 1
        self._undefined[(algorithm, variant or "", int(seed), split, metric, client)] = reason

    @property
    def lengths(self) -> tuple[int, int]:
        """How many rows the history and the timings have, for `measured` to look at what came afterwards."""
        return len(self._history), len(self._timings)

    def measured(
        self, algorithm: str, variant: str | None, seed: int, *, after: tuple[int, int] = (0, 0)
    ) -> list[Measured]:
        """Return the numbers of a run, or those that were added ``after`` the tables had these `lengths`."""
        run = (algorithm, variant or "", int(seed))
        history, timings = after
        numbers = [Measured(*row[3:]) for row in self._history[history:] if row[:3] == run]
        return numbers + [
            Measured(round, phase, "", "seconds", seconds)
            for *key, round, phase, seconds in self._timings[timings:]
            if tuple(key) == run
        ]

    def undefined(self, algorithm: str, variant: str | None, seed: int) -> Iterator[tuple[str, str, str, str]]:
        """Give what has no value in a run: split, metric, client and the reason."""
        run = (algorithm, variant or "", int(seed))
        for key, reason in list(self._undefined.items()):
            if key[:3] == run:
                yield str(key[3]), str(key[4]), str(key[5]), reason

    def cut(self, algorithm: str, variant: str | None, seed: int, round: int, *, owed: int | None = None) -> None:
        """Drop what a run (a system and seed) recorded after ``round``; -1 drops all of it.

        A resumed run first cuts to its checkpoint, since the history may be ahead of it. So may the evaluation of the
        round ``owed``, and the bytes by client, which are told once a run is over: both will come in anew.
        """
        self.version += 1
        run = (algorithm, variant or "", int(seed))

        def again(key: Row) -> bool:
            return bool(key[3] == owed and key[4] == "evaluate" and key[5])

        def kept(key: _Key) -> bool:
            return key.round <= round and not again(key) and not key.metric.startswith("bytes_")

        self._blocks = {key: block for key, block in self._blocks.items() if key[:3] != run or kept(key)}
        for rows in (self._history, self._timings, self._failures):
            rows[:] = [row for row in rows if row[:3] != run or row[3] <= round]
        self._history[:] = [row for row in self._history if row[:3] != run or not again(row)]

    def reaches(self, algorithm: str, variant: str | None, seed: int, round: int) -> bool:
        """Whether every table knows a run from its first round to ``round``.

        A run may have no evaluations at all: real sites need not tell theirs.
        """
        run = (algorithm, variant or "", int(seed))
        known = {row[3] for row in self._timings if row[:3] == run}
        evaluated = {row[3] for row in self._history if row[:3] == run and row[4] == "evaluate" and row[5]}
        clients = {key.round for key in self._blocks if key[:3] == run and key.phase == "evaluate"}
        return known >= set(range(round + 1)) and clients == evaluated

    def arrange(self, runs: Sequence[tuple[str, str, int]]) -> None:
        """Order all rows by run (algorithm, variant, seed); those of one run keep their order, others come last.

        Runs that went on side by side then leave the same files as runs one after the other.
        """
        place = {run: position for position, run in enumerate(runs)}
        last = len(place)
        self._blocks = dict(sorted(self._blocks.items(), key=lambda item: place.get(item[0][:3], last)))
        for rows in (self._history, self._timings, self._failures):
            rows.sort(key=lambda row: place.get(row[:3], last))
        self._undefined = dict(sorted(self._undefined.items(), key=lambda item: place.get(item[0][:3], last)))

    def latest(
        self,
        algorithm: str,
        variant: str | None,
        seed: int,
        split: str,
        metric: str,
        *,
        round: int | None = None,
    ) -> "pd.Series[float] | None":
        """Return the values by client at the last evaluated round, or at the last one up to ``round``.

        None when there is no such evaluation.
        """
        wanted = (algorithm, variant or "", int(seed), "evaluate", split, metric)
        keys = [key for key in self._blocks if (*key[:3], *key[4:]) == wanted and (round is None or key.round <= round)]
        if not keys:
            return None
        block = self._blocks[max(keys, key=lambda key: key.round)]
        return pd.Series(block.values.copy(), index=list(block.names))

    def evaluated(
        self, algorithm: str, variant: str | None, seed: int, round: int
    ) -> Iterator[tuple[str, str, tuple[str, ...], NDArray[np.int64], NDArray[np.float64]]]:
        """Give every evaluation of a round: split, metric, the clients, their examples and their values, ``(K,)``."""
        run = (algorithm, variant or "", int(seed), int(round), "evaluate")
        for key, block in list(self._blocks.items()):
            if key[:5] == run and key.split:
                yield key.split, key.metric, block.names, block.n, block.values

    def costs(self, algorithm: str, variant: str | None, seed: int) -> tuple[dict[str, int], float]:
        """Return the bytes of a run, evaluations left out, by metric such as ``bytes_up:model``, and its seconds."""
        run, sums = (algorithm, variant or "", int(seed)), dict[str, int]()
        for *key, phase, _, metric, size in self._history:
            if tuple(key[:3]) == run and metric.startswith("bytes_") and phase not in NOT_OF_THE_RUN:
                sums[metric] = sums.get(metric, 0) + int(size)
        return sums, sum(row[-1] for row in self._timings if row[:3] == run)

    def frames(self, runs: Sequence[tuple[str, str, int]] | None = None) -> Tables:
        """Return the four tables, of all runs or of some, rows in the order in which they were added."""
        kept = self if runs is None else self._only(set(runs))
        return Tables(
            _frame(kept._history, HISTORY),
            kept._client_frame(),
            _frame(kept._timings, TIMINGS),
            _frame(kept._failures, FAILURES),
            _frame([(*key, reason) for key, reason in kept._undefined.items()], UNDEFINED),
        )

    def _only(self, runs: set[tuple[str, str, int]]) -> "History":
        chosen = History()
        chosen._blocks = {key: block for key, block in self._blocks.items() if key[:3] in runs}
        chosen._history = [row for row in self._history if row[:3] in runs]
        chosen._timings = [row for row in self._timings if row[:3] in runs]
        chosen._failures = [row for row in self._failures if row[:3] in runs]
        chosen._undefined = {key: reason for key, reason in self._undefined.items() if key[:3] in runs}
        return chosen

    def write(self, run: RunDirectory) -> None:
        """Write all tables, each file in one step.

        Write the history before the checkpoint of the same round: then it is never behind one.

        Raises:
            CoterieError: a file cannot be written.

        """
        tables = self.frames()
        for frame, path in (
            (tables.history, run.history),
            (tables.clients, run.clients),
            (tables.timings, run.timings),
        ):
            with atomic_path(path) as temporary:
                frame.to_parquet(temporary, index=False, compression="zstd")
        texts = [(tables.history, run.history_csv), (tables.failures, run.failures)]
        texts += [(tables.undefined, run.undefined)] if len(tables.undefined) else []
        for frame, path in texts:
            with atomic_path(path) as temporary:
                frame.to_csv(temporary, index=False)

    @classmethod
    def read(cls, run: RunDirectory) -> "History":
        """Read what `write` wrote; a file that is not there yet counts as an empty table.

        Raises:
            CoterieError: a file is damaged.

        """
        history = cls()
        history._history = list(_rows(run.history, HISTORY))
        history._timings = list(_rows(run.timings, TIMINGS))
        history._failures = list(_rows(run.failures, FAILURES))
        history._undefined = {row[:-1]: row[-1] for row in _rows(run.undefined, UNDEFINED)}
        if run.clients.exists():
            history._read_clients(_read(run.clients, CLIENTS))
        return history

    def _client_frame(self) -> pd.DataFrame:
        """Return the blocks as one long table; texts become categories, built from a code a block."""
        lengths = np.array([len(block.names) for block in self._blocks.values()], dtype=np.int64)
        columns: dict[str, Any] = {}
        for position, name in enumerate(_Key._fields):
            cells = [key[position] for key in self._blocks]
            if name in WHOLE:
                columns[name] = np.repeat(np.array(cells, dtype=np.int64), lengths)
            else:
                columns[name] = _categories(cells, lengths)
        columns["client"] = self._client_column()
        columns["n"] = _joined([block.n for block in self._blocks.values()], np.int64)
        columns["value"] = _joined([block.values for block in self._blocks.values()], np.float64)
        return pd.DataFrame({name: columns[name] for name in CLIENTS})

    def _client_column(self) -> pd.Categorical:
        """Return the client names of all blocks as categories, in order of first appearance."""
        number: dict[str, int] = {}
        codes: dict[int, NDArray[np.int64]] = {}
        for block in self._blocks.values():
            if id(block.names) not in codes:
                codes[id(block.names)] = np.array(
                    [number.setdefault(name, len(number)) for name in block.names], dtype=np.int64
                )
        column = _joined([codes[id(block.names)] for block in self._blocks.values()], np.int64)
        return pd.Categorical.from_codes(column, categories=pd.Index(list(number), dtype=object))

    def _read_clients(self, frame: pd.DataFrame) -> None:
        """Cut a long client table into blocks again: a new one starts where a column of the key changes."""
        if frame.empty:
            return
        changed = np.zeros(len(frame), dtype=bool)
        changed[0] = True
        for name in _Key._fields:
            codes = pd.factorize(frame[name])[0]
            changed[1:] |= codes[1:] != codes[:-1]
        starts = np.flatnonzero(changed)
        heads = frame.iloc[starts]
        clients = frame["client"].astype(object).to_numpy()
        n, values = frame["n"].to_numpy(dtype=np.int64), frame["value"].to_numpy(dtype=np.float64)
        ends = [*starts[1:].tolist(), len(frame)]
        for head, start, end in zip(
            heads[list(_Key._fields)].itertuples(index=False), starts.tolist(), ends, strict=True
        ):
            roster = tuple(clients[start:end])
            roster = self._rosters.setdefault(roster, roster)
            key = _Key(*_plain(head))
            sizes = self._kept(roster, key.split, n[start:end].copy())
            self._blocks[key] = _Block(roster, sizes, values[start:end].copy())

    def _kept(self, roster: tuple[str, ...], split: str, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the array that holds these sizes already, or the new one."""
        known = self._sizes.setdefault((id(roster), split), sizes)
        return known if np.array_equal(known, sizes) else sizes


def _categories(cells: Sequence[Hashable], lengths: NDArray[np.int64]) -> pd.Categorical:
    """Return a categorical column in which cell i is repeated ``lengths[i]`` times."""
    number: dict[Hashable, int] = {}
    codes = np.array([number.setdefault(cell, len(number)) for cell in cells], dtype=np.int64)
    return pd.Categorical.from_codes(np.repeat(codes, lengths), categories=pd.Index(list(number), dtype=object))


def _joined(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    """Concatenate arrays, none at all included."""
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)


def _frame(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """Return rows as a data frame with fixed types, empty or not."""
    cells: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(columns)
    return pd.DataFrame(
        {name: pd.Series(list(cell), dtype=_dtype(name)) for name, cell in zip(columns, cells, strict=True)}
    )


def _dtype(column: str) -> Any:
    """Return the type of a column."""
    return np.int64 if column in WHOLE else np.float64 if column in REAL else object


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read one table; raises CoterieError when the file is damaged."""
    try:
        if path.suffix == ".csv":
            # A client may be called "007" or "NA": names stay the texts that they are.
            types = {name: int if name in WHOLE else str for name in columns}
            return pd.read_csv(path, keep_default_na=False, dtype=types)[list(columns)]
        return pd.read_parquet(path)[list(columns)]
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        raise CoterieError(
            f"{path} is damaged ({str(error).splitlines()[0]}); start the run again with --overwrite."
        ) from error


def _rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Read one table as rows of plain Python values; nothing when the file is not there."""
    if path.exists():
        for row in _read(path, columns).itertuples(index=False, name=None):
            yield _plain(row)


def _plain(row: Iterable[Any]) -> Row:
    """Return the cells of a row as plain Python values."""
    return tuple(cell.item() if isinstance(cell, np.generic) else cell for cell in row)
