"""The kind of figure that shows who learns from whom: matrices, graphs, or single clients' weights by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from coterie.errors import CoterieError
from coterie.reports.figures.choice import Choice
from coterie.reports.figures.facts import described, groups, places, similar_places
from coterie.reports.figures.gathered import Names, meant, wanted, without
from coterie.reports.figures.graph import draw_graphs
from coterie.reports.figures.heatmap import Panel, draw_heatmaps
from coterie.reports.figures.weights import draw_weights
from coterie.reports.opened import OpenedRun
from coterie.reports.relations import Relations, relations


@dataclass(frozen=True)
class _Found:
    """What one system of one run has stored, and the name to print of it."""

    run: OpenedRun
    label: str
    stored: Relations


def related(runs: Sequence[OpenedRun], choice: Choice) -> Figure:
    """Draw the relations of all systems that have any.

    Raises
    ------
    CoterieError
        Nothing is stored, or not what is asked for.
    """
    names = Names.of(runs)
    stored = [
        (run, relations(run, system, choice.seed, choice.matrix)) for run in runs for system in wanted(run, choice)
    ]
    found = [_Found(run, names(run, each.label), each) for run, each in stored if each is not None]
    if not found:
        whose = f" of {', '.join(choice.systems)}" if choice.systems else ""
        remedy = "methods that relate clients, such as fedora, store them unless save_relations is none"
        raise without(runs, f"no relations{whose} are stored", remedy)
    if choice.shape == "weights":
        return _weights(found, choice)
    panels = _panels(found, choice)
    fitting = 2 if choice.width < 5 else 4
    columns = min(len(choice.rounds), fitting + 1) if len(choice.rounds) > 1 else fitting
    if choice.shape == "graph":
        return draw_graphs(panels, columns, choice.width, _common_groups(found))
    similarities = {each.stored.name for each in found} == {"similarity"}
    name = "similarity" if similarities else "weight"
    return draw_heatmaps(panels, columns, choice.width, name, one_scale=len(found) == 1)


def _common_groups(found: Sequence[_Found]) -> dict[str, float] | None:
    """The group of each client, where it is the same in all panels."""
    first, *others = (groups(each.run, each.stored.seed) for each in found)
    return first if all(other == first for other in others) else None


def _panels(found: Sequence[_Found], choice: Choice) -> list[Panel]:
    panels = []
    for each in found:
        for number in _rounds(each, choice.rounds):
            several = [each.label] if len(found) > 1 else []
            title = "\n".join([*several, f"round {number}"])
            panels.append((title, _ordered(each, number, choice.order)))
    return panels


def _weights(found: Sequence[_Found], choice: Choice) -> Figure:
    if len(found) > 1:
        labels = ", ".join(each.label for each in found)
        raise CoterieError(f"--as weights draws one system; choose by --system one of {labels}.")
    (one,) = found
    rounds = one.stored.rounds
    known = list(map(str, next(iter(rounds.values())).index))
    for client in choice.clients:
        if client not in known:
            raise CoterieError(f"--client {client}: there is no such client{meant(client, known) or '.'}")
    numbers = _rounds(one, choice.rounds) if choice.rounds else list(rounds)
    if len(numbers) < 2:
        raise without(
            [one.run],
            f"relations of {one.label} are stored for one round only",
            "save_relations: every_round stores all",
        )
    shown = {number: rounds[number] for number in numbers}
    return draw_weights(shown, choice.clients or known[:4], choice.width, groups=_common_groups(found))


def _rounds(one: _Found, asked: Sequence[int]) -> list[int]:
    there = list(one.stored.rounds)
    for number in asked:
        if number not in there:
            shown = ", ".join(map(str, there if len(there) <= 12 else [*there[:6], "...", *there[-3:]]))
            raise CoterieError(
                f"--round {number}: {one.label} has relations of round {shown}; save_relations: every_round stores all."
            )
    return list(asked) or [max(there)]


def _ordered(one: _Found, number: int, order: str | None) -> pd.DataFrame:
    """The matrix of a round; clients in the same order in every round."""
    frame = one.stored.rounds[number]
    if order == "similar":
        chosen = similar_places(one.stored.rounds[max(one.stored.rounds)])
    else:
        given = one.stored.rounds[max(one.stored.rounds)].to_numpy(float, copy=True)
        np.fill_diagonal(given, 0.0)
        names = list(map(str, frame.index))
        if order not in (None, "client", "value"):
            described(one.run, one.stored.seed)
        chosen = places(names, dict(zip(names, np.nansum(given, axis=0), strict=True)), one.run, order)
    return frame.iloc[chosen, chosen]
