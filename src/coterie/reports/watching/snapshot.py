"""How a run stands: each system and seed, its last test result, what is left to do and who failed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from coterie.evaluation import RunKey, System, gain_scale, macro, metric_of, title_of
from coterie.evaluation.reported import of_whoever_came
from coterie.evaluation.tables import RUN
from coterie.reports.opened import OpenedRun
from coterie.reports.series import curves
from coterie.reports.watching.folds import Folds
from coterie.reports.words import counted, duration, gain_over
from coterie.runs import Record
from coterie.runs.guard import unguarded

State = Literal["waiting", "running", "finished", "failed"]
Condition = Literal["waiting", "running", "stale", "finished"]

STALE_SECONDS, STALE_ROUNDS = 300.0, 3
"""Without a write for so long, and for so many rounds at its pace, a run may be dead."""

RECENT = 10
"""The pace is the mean over so many rounds."""


@dataclass(frozen=True)
class Standing:
    """One system with one seed; what is not known is None.

    Attributes
    ----------
    seed : int
    state : str
        ``waiting`` (nothing written yet), ``running``, ``finished``, or ``failed``: over before its last round.
    round : int
        The last round that is over.
    evaluated : int, optional
        The last round with test results.
    value : float, optional
        Mean test result over clients at that round.
    gain : float, optional
        Mean over clients of what they gain over LOCAL, with the same seed, at that round: percentage points of
        a share such as accuracy, the error saved, or what is gained in the metric, such as R².
    seconds_per_round, seconds_left : float, optional
        The pace of the last rounds, and what it means for those that are left.
    reason : str
        Why it failed.
    """

    seed: int
    state: State
    round: int
    evaluated: int | None = None
    value: float | None = None
    gain: float | None = None
    seconds_per_round: float | None = None
    seconds_left: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Curve:
    """The mean test result by evaluated round, with the deviation over seeds."""

    round: tuple[int, ...] = ()
    mean: tuple[float | None, ...] = ()
    std: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Line:
    """One system over its seeds.

    Attributes
    ----------
    label : str
        The name to print.
    algorithm, variant : str
        What it is called in the tables.
    runs : tuple of Standing
        One a seed.
    curve : Curve
    """

    label: str
    algorithm: str
    variant: str
    runs: tuple[Standing, ...]
    curve: Curve

    @property
    def state(self) -> State:
        """What is most worth knowing of its runs: one that failed, then one that goes on."""
        states = {run.state for run in self.runs}
        ranked: tuple[State, ...] = ("failed", "running", "waiting")
        return next((state for state in ranked if state in states), "finished")

    @property
    def over(self) -> int:
        """How many of its runs are over."""
        return sum(run.state in ("finished", "failed") for run in self.runs)

    @property
    def round(self) -> int:
        """The round of the run that goes on, the slowest of them; else the furthest."""
        going = [run.round for run in self.runs if run.state == "running"]
        return min(going) if going else max((run.round for run in self.runs), default=0)

    @property
    def value(self) -> float | None:
        """Mean over seeds of the last test results."""
        return _mean(run.value for run in self.runs)

    @property
    def gain(self) -> float | None:
        """Mean over seeds of the gain."""
        return _mean(run.gain for run in self.runs)

    @property
    def seconds_per_round(self) -> float | None:
        """Mean over seeds of the pace."""
        return _mean(run.seconds_per_round for run in self.runs)

    @property
    def seconds_left(self) -> float | None:
        """For all its rounds that are left, one after the other."""
        left = [run.seconds_left for run in self.runs if run.seconds_left is not None]
        return sum(left) if left else None


@dataclass(frozen=True)
class Failed:
    """Clients that could not finish rounds of a run, alike.

    Attributes
    ----------
    clients : tuple of str
    label : str
    seed : int
    times : int
        Rounds without each of them.
    round : int
        The last such round.
    reason : str
        Why, in that round.
    """

    clients: tuple[str, ...]
    label: str
    seed: int
    times: int
    round: int
    reason: str


@dataclass(frozen=True)
class Snapshot:
    """A whole run at one moment.

    Attributes
    ----------
    name : str
        The experiment's name.
    directory : Path
    metric : str
        In which results are reported.
    larger_is_better : bool
    rounds : int
        How many each run shall have.
    lines : tuple of Line
        The systems in the order of the experiment.
    failures : tuple of Failed
        Those of runs that go on first, late rounds before early ones.
    notes : tuple of str
        Files that cannot be read.
    seconds_left : float, optional
        An estimate for the whole run; None while there is no pace to judge by, and when all is over.
    written : float
        When a file was last written (seconds since the epoch).
    now : float
        When this was seen.
    at_work : bool
        Whether a process of this machine is seen to hold the run.
    again : str
        The command that continues it.
    guard : str
        What a guard does, or will do; empty where there is none, and once it has decided.
    """

    name: str
    directory: Path
    metric: str
    larger_is_better: bool
    rounds: int
    lines: tuple[Line, ...]
    failures: tuple[Failed, ...]
    notes: tuple[str, ...]
    seconds_left: float | None
    written: float
    now: float
    at_work: bool
    again: str
    guard: str = ""

    @property
    def age(self) -> float:
        """Seconds since the last write."""
        return max(0.0, self.now - self.written)

    @property
    def states(self) -> dict[State, int]:
        """How many runs are in each state."""
        counts: Counter[State] = Counter(run.state for line in self.lines for run in line.runs)
        return {state: counts[state] for state in ("running", "finished", "failed", "waiting")}

    @property
    def condition(self) -> Condition:
        """How the whole stands."""
        counts = self.states
        if self.lines and not counts["running"] and not counts["waiting"] and not self.guard:
            return "finished"
        pace = [run.seconds_per_round or 0.0 for line in self.lines for run in line.runs if run.state == "running"]
        if not self.at_work and self.age > max(STALE_SECONDS, STALE_ROUNDS * max(pace, default=0.0)):
            return "stale"
        return "waiting" if counts["waiting"] == sum(counts.values()) else "running"

    @property
    def sentence(self) -> str:
        """The condition in words; it changes only when something happens."""
        if self.condition == "stale":
            return f"No writes for {duration(self.age)}; if its process is gone, `{self.again}` continues it."
        if self.condition == "waiting":
            return "No results yet: they come with the first checkpoint, after about 30 s, or when a first run ends."
        counts = self.states
        total = counted(sum(counts.values()), "run")
        parts = [f"{number} {state}" for state, number in counts.items() if number]
        return f"{total}: {', '.join(parts)}.{f' {self.guard}' if self.guard else ''}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them; what is not known is None."""
        systems = []
        for line in self.lines:
            means = {name: getattr(line, name) for name in ("state", "over", "round", "value", "gain")}
            means |= {name: getattr(line, name) for name in ("seconds_per_round", "seconds_left")}
            systems.append({**asdict(line), **means})
        return {
            "name": self.name,
            "directory": str(self.directory),
            "condition": self.condition,
            "sentence": self.sentence,
            "metric": self.metric,
            "title": title_of(self.metric),
            "larger_is_better": self.larger_is_better,
            "in_points": metric_of(self.metric).is_share,
            "gain_title": gain_over(self.metric, "training alone"),
            "rounds": self.rounds,
            "guard": self.guard,
            "seconds_since_write": self.age,
            "seconds_left": self.seconds_left,
            "at_work": self.at_work,
            "systems": systems,
            "failures": [asdict(failed) for failed in self.failures],
            "notes": list(self.notes),
        }


def snapshot(
    run: OpenedRun,
    record: Record | None,
    *,
    written: float,
    now: float,
    at_work: bool = False,
    share: int = 1,
    again: str = "coterie resume",
    folds: Folds | None = None,
) -> Snapshot:
    """How a run stands.

    What a guard reports of its systems is shown once it has decided; before, one sentence tells of its folds.

    Parameters
    ----------
    run : OpenedRun
        Its tables, read after the record, so that they are never behind it.
    record : Record, optional
        Which runs are over; without, those that have come to the last round.
    written, now : float
        When a file was last written, and the time, in seconds since the epoch.
    at_work : bool
        Whether a process is known to be at work.
    share : int
        Seeds that train in one stack, whose seconds add up.
    again : str
        The command that continues it, without the directory.
    folds : Folds, optional
        How far those of a guard have come.
    """
    about = run.about
    paces, rounds, results = _paces(run), _rounds(run), _results(run)
    usual = _mean(paces.values())
    over = None if record is None else set(record.finished)
    reasons = {} if record is None else _reasons(record)
    shown = {row["label"]: row for row in _curves(run)}
    lines = []
    guarded = {system: base for system in about.labels if (base := unguarded(system)) is not None}
    for system, label in about.labels.items():
        if system in guarded:
            continue
        pace = _mean(value for key, value in paces.items() if key[:2] == system)
        standings = []
        for seed in about.seeds:
            key = (*system, seed)
            round = rounds.get(key, 0)
            done = round >= about.rounds if over is None else key in over
            reason = reasons.get((label, seed), "") if done else ""
            own = paces.get(key, pace if pace is not None else usual)
            state: State = "failed" if reason else "finished" if done else "running" if key in rounds else "waiting"
            left = None if done or own is None else own * max(0, about.rounds - round)
            evaluated, value, gain = results.get(key, (None, None, None))
            standings.append(Standing(seed, state, round, evaluated, value, gain, paces.get(key), left, reason))
        lines.append(Line(label, *system, tuple(standings), shown.get(label, {}).get("curve", Curve())))
    others_left = any(run.state in ("running", "waiting") for line in lines for run in line.runs)
    guard = ""
    if guarded and (others_left or not _decided(run, rounds, guarded)):
        guard = (folds or Folds(0)).sentence(others_left)
    elif guarded:
        lines = _with_guarded(run, lines, guarded, results)
    going = {(line.label, run.seed) for line in lines for run in line.runs if run.state == "running"}
    failures = sorted(_failures(run), key=lambda one: ((one.label, one.seed) not in going, -one.round))
    notes = tuple(sentence for sentence in run.missing if " is damaged" in sentence)
    return Snapshot(
        about.name,
        run.directory.path,
        run.metric,
        run.larger_is_better,
        about.rounds,
        tuple(lines),
        tuple(failures),
        notes,
        None if guard else _left(lines, share),
        written,
        now,
        at_work,
        f"{again} {run.directory.path}",
        guard,
    )


def _decided(run: OpenedRun, rounds: Mapping[RunKey, int], guarded: Mapping[System, System]) -> bool:
    """Whether the results under a guard are in the tables, of those systems that have any."""
    wanted = [(*system, seed) for system, own in guarded.items() for seed in run.about.seeds if (*own, seed) in rounds]
    return run.directory.guard.exists() and any(key in rounds for key in wanted)


def _with_guarded(
    run: OpenedRun,
    lines: Sequence[Line],
    guarded: Mapping[System, System],
    results: Mapping[RunKey, tuple[int, float | None, float | None]],
) -> list[Line]:
    """The lines, each followed by what the guard reports of its system: no pace, and no curve."""
    of = {own: system for system, own in guarded.items()}
    found = []
    for line in lines:
        found.append(line)
        if (system := of.get((line.algorithm, line.variant))) is not None:
            runs = []
            for one in line.runs:
                evaluated, value, gain = results.get((*system, one.seed), (None, None, None))
                runs.append(Standing(one.seed, one.state, one.round, evaluated, value, gain, reason=one.reason))
            found.append(Line(run.about.label(system), *system, tuple(runs), Curve()))
    return found


def _rounds(run: OpenedRun) -> dict[RunKey, int]:
    """The last round of each run that has begun."""
    found: dict[RunKey, int] = {}
    for table in (run.tables.timings, run.tables.history):
        for key, round in table.groupby(list(RUN), observed=True)["round"].max().items():
            name = _run_key(key)
            found[name] = max(int(round), found.get(name, 0))
    return found


def _paces(run: OpenedRun) -> dict[RunKey, float]:
    """Seconds a round of each run, evaluation included, mean over the last ones."""
    timings = run.tables.timings
    by_round = timings[timings["round"] > 0].groupby([*RUN, "round"], observed=True)["seconds"].sum()
    recent = by_round.groupby(list(RUN)).tail(RECENT).groupby(list(RUN)).mean()
    return {_run_key(key): float(value) for key, value in recent.items()}


def _results(run: OpenedRun) -> dict[RunKey, tuple[int, float | None, float | None]]:
    """Of each run the last evaluated round, the mean test result there, and the gain over LOCAL."""
    clients = run.tables.clients
    rows = clients[(clients["phase"] == "evaluate") & (clients["split"] == "test") & (clients["metric"] == run.metric)]
    if rows.empty:
        return {}
    by_run = {
        _run_key(key): frame for key, frame in of_whoever_came(rows).groupby(list(RUN), sort=False, observed=True)
    }
    found: dict[RunKey, tuple[int, float | None, float | None]] = {}
    for key, frame in by_run.items():
        round, own = _at(frame, math.inf)
        alone = by_run.get((*run.about.reference, key[2]))
        gain = None
        if alone is not None and key[:2] != run.about.reference and int(alone["round"].min()) <= round:
            difference = macro(own - _at(alone, round)[1].reindex(own.index))
            gain = _defined(gain_scale(run.metric) * difference)
        found[key] = (round, _defined(macro(own)), gain)
    return found


def _run_key(key: Any) -> RunKey:
    """A key of pandas' grouping in plain types."""
    algorithm, variant, seed = key
    return str(algorithm), str(variant), int(seed)


def _at(rows: pd.DataFrame, latest: float) -> tuple[int, pd.Series[float]]:
    """The last evaluated round up to ``latest``, and the values by client there."""
    round = int(rows.loc[rows["round"] <= latest, "round"].max())
    chosen = rows[rows["round"] == round]
    return round, pd.Series(chosen["value"].to_numpy(), index=chosen["client"].astype(str))


def _curves(run: OpenedRun) -> list[dict[str, Any]]:
    """The curve of each system that has one."""
    return [
        {
            "label": label,
            "curve": Curve(
                tuple(map(int, rows["round"])),
                tuple(map(_defined, rows["mean"].to_numpy())),
                tuple(map(_defined, rows["std"].to_numpy())),
            ),
        }
        for label, rows in curves(run).groupby("label", sort=False)
    ]


def _failures(run: OpenedRun) -> list[Failed]:
    """Who failed in each run, those together to whom the same happened."""
    table = run.tables.failures.sort_values("round", kind="stable")
    clients = table.groupby([*RUN, "client"], sort=False).agg(
        times=("round", "nunique"), round=("round", "last"), reason=("reason", "last")
    )
    alike: dict[tuple[str, int, int, int, str], list[str]] = {}
    rows: Iterable[Any] = clients.reset_index().itertuples(index=False)
    for row in rows:
        label = run.about.label((str(row.algorithm), str(row.variant)))
        key = (label, int(row.seed), int(row.times), int(row.round), str(row.reason))
        alike.setdefault(key, []).append(str(row.client))
    return [Failed(tuple(names), *key) for key, names in alike.items()]


def _reasons(record: Record) -> dict[tuple[str, int], str]:
    """By label and seed, why a run did not reach its last round (``fedora seed 0, round 3: the loss is NaN``)."""
    found = {}
    for text in record.diverged:
        who, _, what = text.partition(", round ")
        label, _, seed = who.rpartition(" seed ")
        if seed.isdecimal():
            found[(label, int(seed))] = what.partition(": ")[2]
    return found


def _left(lines: Iterable[Line], share: int) -> float | None:
    """Seconds until the end, if as many runs go on at a time as now; seeds that share a stack count as one."""
    left = [(line, place, run) for line in lines for place, run in enumerate(line.runs) if run.seconds_left is not None]
    if not left:
        return None
    groups = {(line.algorithm, line.variant, place // share) for line, place, run in left if run.state == "running"}
    return sum(run.seconds_left or 0.0 for _, _, run in left) / max(1, len(groups))


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _defined(value: float) -> float | None:
    """A number, or None for one that is not finite."""
    return float(value) if math.isfinite(value) else None
