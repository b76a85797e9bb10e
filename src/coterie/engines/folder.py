"""A site's own folder: its personal state of the last rounds, version by version, and the model that it keeps.

A version is written once, in one step, under a name that the server gives it and nobody gives again. Nothing is ever
changed in place: a repeated instruction writes the same version again, and one that is never acknowledged is never
named as the base of another.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from coterie.contract import Predictor
from coterie.engines import checkpoint
from coterie.errors import CoterieError
from coterie.models import Layout

KEPT_ROUNDS = 3
"""Of so many rounds, the newest ones, every version is kept; of earlier ones only what the server may still name."""

VERSION = re.compile(r"(\d{6,})-[0-9a-z]{1,32}-\d{5,}")


class NoSuchState(CoterieError):
    """The server names a version that this site does not have."""


class Unreadable(CoterieError):
    """The server names a version that the site may have, but cannot read now."""


def version_name(round: int, token: str, number: int) -> str:
    """The name of what exchange ``number`` of a server with this random ``token`` leaves at a site in a round."""
    return f"{round:06d}-{token}-{number:05d}"


def run_folder(root: Path, run: str) -> Path:
    """Where a site keeps what belongs to the run of that random name."""
    return root / f"run-{quote(run, safe='')}"


class SiteFolder:
    """The part of a site's folder that belongs to one run of one method with one seed.

    Parameters
    ----------
    root : Path
        Where the site keeps its state.
    run : str
        The run's own random name.
    job : tuple of (str, str, int)
        Algorithm, variant and seed.
    """

    def __init__(self, root: Path, run: str, job: tuple[str, str, int]) -> None:
        algorithm, variant, seed = job
        system = "-".join(quote(text, safe="") for text in (algorithm, variant) if text)
        self.path = run_folder(root, run) / system / f"seed{int(seed)}"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for other processes that work here; the system lets go when a process ends, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / ".lock").open("w") as file:
                try:
                    import fcntl

                    fcntl.flock(file, fcntl.LOCK_EX)
                except (ImportError, OSError):  # a system, or a file system, without such locks
                    pass
                yield
        except OSError as error:
            raise CoterieError(
                f"the state folder {self.path} cannot be written: {error.strerror or error}; free space, or name "
                "another one at state in site.yaml"
            ) from error

    # --- state ---------------------------------------------------------------------------------------------------
    def versions(self) -> dict[str, int]:
        """The names of all versions, and the round of each."""
        found = (VERSION.fullmatch(path.name.removesuffix(".state")) for path in self.path.glob("*.state"))
        return {match[0]: int(match[1]) for match in found if match}

    def state(self, version: str, layout: Layout) -> dict[str, Any]:
        """The clients' state of a version, as ``checkpoint.bank_state`` gives it.

        Raises
        ------
        NoSuchState
            There is no such version, or it is damaged.
        Unreadable
            The system does not let it be read.
        """
        try:
            saved = checkpoint.read(self._file(version), "cpu", what="the state")
            return {key: checkpoint.unpack(saved[key], layout) for key in ("bank", "shapes", "started")}
        except (checkpoint.Lost, LookupError, TypeError) as error:
            raise NoSuchState(f"it has no state {version}") from error
        except CoterieError as error:
            raise Unreadable(str(error)) from error

    def keep(self, version: str, state: Mapping[str, Any], *, named: Collection[str | None]) -> None:
        """Write a version, and drop those of earlier rounds that are not among the ``named``."""
        checkpoint.write(self._file(version), checkpoint.pack(dict(state)))
        rounds = self.versions()
        oldest = max(rounds.values()) - KEPT_ROUNDS + 1
        for other, round in rounds.items():
            if round < oldest and other != version and other not in named:
                self._file(other).unlink(missing_ok=True)
                self._file(other, ".answer").unlink(missing_ok=True)

    def say(self, version: str, values: Mapping[str, Any]) -> None:
        """Keep an answer, so that the same question gets the same one."""
        checkpoint.write(self._file(version, ".answer"), checkpoint.pack(dict(values)))

    def said(self, version: str, layout: Layout) -> dict[str, Any] | None:
        """The answer that was given in an exchange, if it was kept."""
        path = self._file(version, ".answer")
        return checkpoint.unpack(checkpoint.read(path, "cpu"), layout) if path.exists() else None

    def _file(self, version: str, ending: str = ".state") -> Path:
        if not VERSION.fullmatch(version):
            raise NoSuchState("it has no state of such a name")
        return self.path / f"{version}{ending}"

    # --- what the client predicts with ---------------------------------------------------------------------------
    def remember(self, round: int, predictor: Predictor) -> None:
        """Keep what the client predicts with after a round, beside that of the best round so far."""
        content = {"models": predictor.models, "weights": predictor.weights, "combine": predictor.combine}
        checkpoint.write(self._predictor(round), checkpoint.pack(content))

    def choose(self, best: int) -> None:
        """Forget what earlier rounds than the newest predict with, but for the best one."""
        rounds = self.predictors()
        for round in rounds[:-1]:
            if round != best:
                self._predictor(round).unlink(missing_ok=True)

    def predictors(self) -> list[int]:
        """The rounds of which it is known what the client predicts with, in ascending order."""
        found = (re.fullmatch(r"round(\d+)\.model", path.name) for path in self.path.glob("*.model"))
        return sorted(int(match[1]) for match in found if match)

    def nearest(self, round: int | None) -> int | None:
        """That round, or the newest of which it is known what the client predicts with; None where there is none."""
        rounds = self.predictors()
        return round if round in rounds else rounds[-1] if rounds else None

    def predictor(self, round: int, layout: Layout) -> Predictor:
        """What the client predicts with after a round; ``CoterieError`` where that was not kept."""
        saved = checkpoint.read(self._predictor(round), "cpu", what="the model", missing="it was not kept here")
        return Predictor(checkpoint.unpack(saved["models"], layout), saved["weights"], saved["combine"])

    def _predictor(self, round: int) -> Path:
        return self.path / f"round{round}.model"
