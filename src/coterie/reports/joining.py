"""Several runs joined into one table: who is the same system, who is not, and how they are then called."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coterie.errors import CoterieError
from coterie.evaluation import Report, Reported, RunKey, System, Tables, default_label, reported, summarise
from coterie.evaluation.tables import RUN
from coterie.reports.opened import OpenedRun
from coterie.reports.settings import Settings, check_key, read_config, settings_of, short_names, text_of, value_at
from coterie.runs.guard import unguarded

TELLING_KEYS = 3
"""Rows are told apart by the keys that differ, if these are so few; else by the names of their runs."""

Group = tuple[Any, ...]
"""The values of the keys by which runs are grouped."""


@dataclass(frozen=True)
class Part:
    """What one run knows of a system: ``results`` and those of training ``alone``, both by seed, and their settings."""

    run: OpenedRun
    run_name: str
    system: System
    report: Report
    settings: Settings | None
    settings_alone: Settings | None
    group: Group
    results: dict[int, Reported]
    alone: dict[int, Reported]

    @property
    def label(self) -> str:
        """The name that the run itself prints."""
        return self.run.about.label(self.system)

    @property
    def kind(self) -> str:
        """Equal for parts that are one system computed alike, whatever the seeds; as JSON."""
        told = {"run": str(self.run.directory.path)} if self.settings is None else self.settings
        return json.dumps([self.system, self.label, told], sort_keys=True, default=str)

    @property
    def federation(self) -> str:
        """Equal for parts that saw the same clients with the same seed; as JSON."""
        if self.settings is None:
            return str(self.run.directory.path)
        told = {key: value for key, value in self.settings.items() if key.startswith("federation.")}
        return json.dumps(told, sort_keys=True, default=str)


@dataclass(frozen=True)
class Standing:
    """One row of the joined table: a system in one group of runs, over the seeds of all its parts.

    ``parts`` hold no seed twice.
    """

    label: str
    group: Group
    parts: tuple[Part, ...]

    @property
    def is_reference(self) -> bool:
        """Whether it is training alone."""
        return self.parts[0].system == self.parts[0].run.about.reference

    def summary(self) -> dict[str, Any]:
        """The row of `summarise`, over all seeds."""
        first = self.parts[0]
        system, reference = first.system, first.run.about.reference
        results: dict[RunKey, Reported] = {}
        for part in self.parts:
            results |= {(*system, seed): result for seed, result in part.results.items()}
            results |= {(*reference, seed): result for seed, result in part.alone.items()}
        rows = summarise(
            self._tables(),
            task=first.run.about.task,
            report=first.report,
            targets=first.run.about.targets,
            reference=reference,
            labels={system: self.label},
            results=results,
            metric=first.run.about.chosen,
        )
        return next(row for row in rows if (row["algorithm"], row["variant"] or "") == system)

    def _tables(self) -> Tables:
        """What the parts' runs cost; the results are known."""
        names = ("history", "timings", "failures")
        frames: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
        for part in self.parts:
            for name in names:
                frame: pd.DataFrame = getattr(part.run.tables, name)
                algorithm, variant, seed = (frame[column] for column in RUN)
                own = (algorithm == part.system[0]) & (variant == part.system[1]) & seed.isin(list(part.results))
                frames[name].append(frame[own])
        history, timings, failures = (
            pd.concat([frame for frame in frames[name] if len(frame)] or frames[name][:1], ignore_index=True)
            for name in names
        )
        return Tables(history, self.parts[0].run.tables.clients.iloc[:0], timings, failures)


def join(
    runs: Sequence[OpenedRun], by: Sequence[str] = (), report: Report | None = None
) -> tuple[list[Standing], list[str]]:
    """One standing for each system and group of runs, and sentences about what is missing or was left out.

    Parts whose settings are equal but for the seed are one system; a seed that several runs have is taken from the
    first. Other parts of the same name are told apart by the settings in which they differ, or by their runs' names.

    Raises
    ------
    CoterieError
        No configuration has a key of ``by``, a round cannot be chosen by ``report``, or tasks or metrics differ.
    """
    tasks = {run.about.task: run.directory.path for run in runs}
    if len(tasks) > 1:
        places = " and ".join(f"{path} ({task})" for task, path in tasks.items())
        raise CoterieError(f"Runs of one task can be compared, not {places}; compare them one task at a time.")
    metrics = {run.metric: run.directory.path for run in runs}
    if len(metrics) > 1:
        places = " and ".join(f"{path} ({metric})" for metric, path in metrics.items())
        raise CoterieError(f"Runs that are reported in one metric can be compared, not {places}; compare them apart.")
    notes: list[str] = []
    configs = [_config(run, notes) for run in runs]
    for key in by:
        check_key(key, [config for config in configs if config is not None])
    names = run_names(runs)
    parts = [
        part
        for run, name, config in zip(runs, names, configs, strict=True)
        for part in _parts(run, name, config, by, report, notes)
    ]
    protocols = dict.fromkeys(part.report for part in parts)
    if len(protocols) > 1:
        notes.append(f"Runs report by {' and '.join(protocols)}; choose one for all with --report.")
    return _standings(parts, notes), notes


def run_names(runs: Sequence[OpenedRun]) -> list[str]:
    """The runs by the names of their directories, or by the whole paths where a name stands for several."""
    paths = [run.directory.path for run in runs]
    last = [path.resolve().name for path in paths]
    places: dict[str, set[Path]] = {}
    for path, name in zip(paths, last, strict=True):
        places.setdefault(name, set()).add(path.resolve())
    return [name if len(places[name]) == 1 else str(path) for path, name in zip(paths, last, strict=True)]


def _config(run: OpenedRun, notes: list[str]) -> Mapping[str, Any] | None:
    try:
        return read_config(run)
    except CoterieError as error:
        notes.append(f"{error} So its results are told apart by its name, and compared with no other run's.")
        return None


def _parts(
    run: OpenedRun,
    name: str,
    config: Mapping[str, Any] | None,
    by: Sequence[str],
    report: Report | None,
    notes: list[str],
) -> list[Part]:
    """What a run knows of each system that has results."""
    path = run.directory.path
    chosen = report or run.about.report
    try:
        results = (
            run.results
            if chosen == run.about.report
            else reported(run.tables.clients, run.metric, chosen, run.tables.undefined)
        )
    except CoterieError as error:
        raise CoterieError(f"{path}: {error}") from error
    if not results:
        first = sorted(run.missing, key=lambda sentence: not sentence.startswith("clients.parquet"))[:1]
        why = first[0] if first else "Nothing has been evaluated yet."
        raise CoterieError(f"{path} has no results to compare. {why}")
    lost = [sentence for sentence in run.missing if not sentence.startswith("federation.json")]
    if lost:
        more = f" And {len(lost) - 3} more such." if len(lost) > 3 else ""
        notes.append(f"{path}: {' '.join(lost[:3])}{more}")
    settings = None if config is None else settings_of(run, config)
    group = tuple(None if config is None else value_at(config, key) for key in by)
    found = []
    its_alone = None if settings is None else dict(settings.get(run.about.reference, {}))
    for system in run.systems:
        if chosen != run.about.report and unguarded(system) is not None:
            notes.append(
                f"{path}: {run.about.label(system)} is left out, since the guard decides for the round of report: "
                f"{run.about.report} alone."
            )
            continue
        own = None if settings is None else dict(settings.get(system, {}))
        for told in (own, its_alone) if report is not None else ():
            (told or {}).pop("report", None)  # whatever it was, another one is applied
        seeds = run.seeds(system)
        alone = {
            seed: results[(*run.about.reference, seed)] for seed in seeds if (*run.about.reference, seed) in results
        }
        mine = {seed: results[(*system, seed)] for seed in seeds if (*system, seed) in results}
        found.append(Part(run, name, system, chosen, own, its_alone, group, mine, alone))
    return found


def _standings(parts: Sequence[Part], notes: list[str]) -> list[Standing]:
    """The parts, pooled and named, in the order in which they come."""
    pools: dict[tuple[str, str], list[Part]] = {}  # by group and kind
    for part in parts:
        pools.setdefault((text_of(list(part.group)), part.kind), []).append(part)
    labels = _labels(pools)
    notes += _different_alone(list(pools.values()))
    return [
        Standing(labels[key], pool[0].group, _each_seed_once(labels[key], pool, notes)) for key, pool in pools.items()
    ]


def _different_alone(pools: Sequence[Sequence[Part]]) -> list[str]:
    """A sentence for parts of one system that are measured against LOCAL with other settings."""
    keys: dict[str, None] = {}
    for pool in pools:
        told = [part.settings_alone for part in pool if part.alone and part.settings_alone is not None]
        for key in dict.fromkeys(key for settings in told for key in settings):
            if len({text_of(settings.get(key)) for settings in told}) > 1:
                keys[key] = None
    if not keys:
        return []
    return [
        f"LOCAL itself was trained with other settings in some of the runs ({', '.join(keys)}): what is relative to "
        "it, such as R-Acc, PTR and gains, is over the LOCAL of the run that a result is from, and on no one scale."
    ]


def _each_seed_once(label: str, pool: Sequence[Part], notes: list[str]) -> tuple[Part, ...]:
    """The parts without the seeds that an earlier one has too; a note where the two differ."""
    kept: list[Part] = []
    for part in pool:
        fresh = dict(part.results)
        for earlier in kept:
            again = [seed for seed in fresh if seed in earlier.results]
            notes += [
                f"{label}, seed {seed}: {earlier.run.directory.path} and {part.run.directory.path} hold different "
                "results; the former is shown."
                for seed in again
                if not _equal(fresh[seed], earlier.results[seed])
            ]
            fresh = {seed: result for seed, result in fresh.items() if seed not in again}
        if fresh:
            alone = {seed: result for seed, result in part.alone.items() if seed in fresh}
            kept.append(replace(part, results=fresh, alone=alone))
    return tuple(kept)


def _labels(pools: Mapping[tuple[str, str], Sequence[Part]]) -> dict[tuple[str, str], str]:
    """A name for each pool, the same in every group, and no name twice in one group."""
    same: dict[str, list[tuple[str, str]]] = {}
    for key, pool in pools.items():
        same.setdefault(pool[0].label, []).append(key)
    names: dict[tuple[str, str], str] = {}
    for label, keys in same.items():
        groups: dict[str, list[Part]] = {}
        for key in keys:
            groups.setdefault(key[0], []).append(pools[key][0])
        if all(len(members) == 1 for members in groups.values()):
            names |= dict.fromkeys(keys, label)
            continue
        telling = _telling(groups.values())
        for key in keys:
            told = _told(pools[key], telling)
            names[key] = f"{label[:-1]}, {told})" if label.endswith(")") else f"{label} ({told})"
    return names


def _telling(groups: Iterable[Collection[Part]]) -> list[str] | None:
    """The few settings that tell parts of one name apart wherever they stand in one group; None if that cannot be."""
    keys: dict[str, None] = {}
    for members in groups:
        told = [part.settings for part in members]
        if len({part.system for part in members}) > 1 or None in told:
            return None
        every = dict.fromkeys(key for settings in told for key in settings or ())
        for key in every:
            if len({text_of((settings or {}).get(key)) for settings in told}) > 1:
                keys[key] = None
    return list(keys) if 0 < len(keys) <= TELLING_KEYS else None


def _told(pool: Sequence[Part], telling: list[str] | None) -> str:
    """What is added to a name."""
    if telling is not None:
        settings, short = pool[0].settings or {}, short_names(telling)
        return ", ".join(f"{short[key]}={text_of(settings.get(key))}" for key in telling)
    runs, own = ", ".join(dict.fromkeys(part.run_name for part in pool)), default_label(pool[0].system)
    return runs if pool[0].label == own else f"{own} in {runs}"


def _equal(one: Reported, other: Reported) -> bool:
    """Whether two results have the same clients and values."""
    names = set(one.values.index)
    if names != set(other.values.index):
        return False
    return np.array_equal(one.values.to_numpy(), other.values.reindex(one.values.index).to_numpy(), equal_nan=True)
