"""Which stored model is meant: the place, the method, the seed and the client."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coterie.contract import available_algorithms
from coterie.errors import CoterieError, CoterieWarning
from coterie.experiment.plan import REFERENCE
from coterie.runs import About, RunDirectory, StoredModel, read_model, stored_clients, system_folder
from coterie.runs.directory import SITES

JOINED = ("labelled", "unlabelled")
"""Where the models of newcomers lie, in the order in which they are looked for."""
EVERYONE = "all"
GUARD = "guard"
"""Of a method without variants the folder is ``fedavg-guard``, of one with them ``fedora-released+guard``."""


class System(NamedTuple):
    """A method by name, and the label that the run prints."""

    algorithm: str
    label: str


@dataclass(frozen=True)
class Place:
    """Where models lie.

    Attributes
    ----------
    path : Path
        A folder that holds ``models/``.
    run : RunDirectory, optional
        The run directory that it is, or lies in.
    """

    path: Path
    run: RunDirectory | None

    @property
    def models(self) -> Path:
        """The folder with one folder a method."""
        return self.path / "models"

    def methods(self) -> dict[str, System]:
        """What the run knows of its methods, by the name of their folder; empty where it does not say."""
        with suppress(CoterieError):
            if self.run is not None:
                labels = About.read(self.run).labels
                return {system_folder(*key): System(key[0], label) for key, label in labels.items()}
        return {}


@dataclass(frozen=True)
class Chosen:
    """One stored model.

    Attributes
    ----------
    place : Place
        Where it lies.
    system, label : str
        Its method, as its folder and as the run's tables call it.
    seed : int
        The run's seed.
    client : str
        Whose it is.
    stored : StoredModel
        Tensors and facts.
    """

    place: Place
    system: str
    label: str
    seed: int
    client: str
    stored: StoredModel

    @property
    def facts(self) -> dict[str, Any]:
        """What the model's file says about itself."""
        return self.stored.facts


def choose(directory: str | Path, client: str | None, algorithm: str | None, seed: int | None) -> list[Chosen]:
    """The stored models that are meant: one, or those of all clients for the client ``all``.

    Parameters
    ----------
    directory : path
        A run directory, a folder that ``coterie adapt`` has made, or a real site's folder.
    client : str, optional
        The client's name; not needed where models of one client alone are kept, as at a real site.
    algorithm : str, optional
        A method by name, label or ``name-variant``; needed where the run has several besides LOCAL.
    seed : int, optional
        Default the first.

    Raises
    ------
    CoterieError
        No such place, method, seed or client, or no models were saved; the message names what there is.
    """
    place = _place(Path(directory))
    methods = place.methods()
    folders = sorted(path.name for path in place.models.iterdir() if path.is_dir())
    system = _system({name: methods.get(name, System(name, name)) for name in folders}, algorithm, place.path)
    found = _seed(place.models / system, seed)
    folder = place.models / system / f"seed{found}"
    clients = stored_clients(folder)
    if client is None and len(clients) != 1:
        raise CoterieError(f"{place.path} holds models of many clients: name a --client.")
    client = clients[0] if client is None else client
    wanted = clients if client == EVERYONE and EVERYONE not in clients else [known(client, clients, "client")]
    label = methods[system].label if system in methods else system
    models = [Chosen(place, system, label, found, name, read_model(folder, name)) for name in wanted]
    if place.run is not None and place.path == place.run.path and str(models[0].facts.get("round")) == "0":
        warnings.warn(
            f"{label}, seed {found}: the reported round is 0, so its models are the initial ones, which nobody has "
            "trained: see the run's table for why.",
            CoterieWarning,
            stacklevel=2,
        )
    return models


def known(name: str, names: Sequence[str], what: str) -> str:
    """``name``, if it is one of ``names``; raises CoterieError with the nearest otherwise."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    few = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    raise CoterieError(f"There is no {what} {name}: {f'did you mean {near[0]}?' if near else f'there are {few}.'}")


def _place(path: Path) -> Place:
    if not path.is_dir():
        raise CoterieError(
            f"There is no folder {path}: give a run directory, or a folder that coterie export has made."
        )
    run = next((RunDirectory(folder) for folder in _upwards(path) if (folder / "environment.json").is_file()), None)
    for folder in (path, *(path / name for name in JOINED)):
        if (folder / "models").is_dir() and any((folder / "models").iterdir()):
            return Place(folder, run)
    own = RunDirectory.open(path)  # it says so where this is no run at all
    if (path / SITES).is_file():
        raise CoterieError(
            f"{own.path} is a run of real sites, whose models stay there: give a site's folder, at the site."
        )
    reason = "it has not finished a method yet, or it ran with save_models: false"
    raise CoterieError(
        f"{own.path} holds no models: {reason}. Continue it with coterie resume, or run it again with "
        "save_models: true."
    )


def _upwards(path: Path) -> list[Path]:
    """The folder, and those above it that a run directory may be: ``RUN/adapted-1/labelled``."""
    return [path, *path.resolve().parents[:2]]


def _system(systems: Mapping[str, System], wanted: str | None, place: Path) -> str:
    """The folder of the method, of those by folder."""
    if wanted is None:
        found = [folder for folder in systems if folder != REFERENCE] or list(systems)
    else:
        found = [wanted] if wanted in systems else [folder for folder, names in systems.items() if wanted in names]
        found = found or [folder for folder in systems if folder.replace(f"-{GUARD}", f"+{GUARD}") == wanted]
        found = found or [folder for folder in systems if folder in _variants(wanted)]
    if len(found) == 1:
        return found[0]
    choices = ", ".join(found or systems)
    if wanted is None:
        raise CoterieError(f"{place} holds models of several methods: choose one by --algorithm: {choices}.")
    if found:
        raise CoterieError(f"--algorithm {wanted} may be {choices}: choose one.")
    near = difflib.get_close_matches(wanted, {*systems, *(name for names in systems.values() for name in names)}, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {choices}."
    raise CoterieError(f"--algorithm {wanted}: {place} holds no models of such a method: {hint}")


def _variants(wanted: str) -> list[str]:
    """The folders of a method's variants, or of those with a guard where ``wanted`` is ``fedora+guard``."""
    name, plus, end = wanted.partition("+")
    method = available_algorithms().get(name)
    return [] if method is None else [system_folder(name, variant) + plus + end for variant in method.variants]


def _seed(folder: Path, wanted: int | None) -> int:
    numbers = (path.name.removeprefix("seed") for path in folder.glob("seed*"))
    seeds = sorted(int(number) for number in numbers if number.isdecimal())
    if not seeds:
        raise CoterieError(f"{folder} holds no models: run the experiment again.")
    if wanted is None:
        return seeds[0]
    if wanted not in seeds:
        raise CoterieError(f"--seed {wanted}: there are models of the seeds {', '.join(map(str, seeds))}.")
    return wanted
