"""The run directory: where each file of a run lies, how the directory is made, and when it is refused."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError
from coterie.runs.atomic import write_json, write_text
from coterie.runs.environment import environment
from coterie.runs.lock import locked

SITES = "sites.json"
"""Who the sites of a deployed run are; their models stay with them."""

FILES = (
    SITES,
    "config.yaml",
    "environment.json",
    "about.json",
    "federation.json",
    "history.parquet",
    "history.csv",
    "clients.parquet",
    "timings.parquet",
    "failures.csv",
    "guard.csv",
    "evidence.json",
    "undefined.csv",
    "summary.json",
    "report.html",
    # of a search
    "tune.yaml",
    "trials.json",
    "trials.csv",
    "trials.parquet",
    "best.yaml",
)
FOLDERS = (
    "models", "schemas", "relations", "servers", "newcomers", "checkpoints", "tracking", "figures", "losses", "guard",
    "exports",
)  # fmt: skip

ADAPTED = "adapted"
"""What `coterie adapt` puts into a run directory lies in ``adapted-<n>``."""

_AGAIN = frozenset({"report.html", "figures", "exports"})
"""What a command makes again at any time; nothing else of a run is written over."""


def system_folder(algorithm: str, variant: str | None) -> str:
    """Return the folder name of a system: ``fedora-released``, or ``local`` where there is no variant."""
    return safe_name(f"{algorithm}-{variant}" if variant else algorithm)


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk. The properties say where its files lie; they need not exist yet.

    ``path`` is the directory. Make one with `create` or `open`, not by calling the class.
    """

    path: Path

    @classmethod
    def create(
        cls,
        path: Path | str | None,
        name: str,
        *,
        overwrite: bool = False,
        root: Path | str = "runs",
    ) -> "RunDirectory":
        """Make a new run directory and write ``environment.json``, which marks it as one.

        Args:
            path: where; None takes ``<root>/<name>-<n>`` with the next free n.
            name: the experiment's name, for the default path; ``fedora/rotated-mnist`` becomes
                ``fedora-rotated-mnist``.
            overwrite: clear an existing run directory. Files in it that no run writes stay.
            root: the folder of the default path.

        Raises:
            CoterieError: ``path`` exists and ``overwrite`` is off, it is no run directory, another process is at
                work in it, or it cannot be written.

        """
        try:
            folder = _next_free(Path(root), safe_name(name)) if path is None else _explicit(Path(path), overwrite)
            run = cls(folder)
            run.checkpoints.mkdir()
        except (OSError, ValueError) as error:  # ValueError: a name that no file system can have
            place, reason = path if path is not None else root, getattr(error, "strerror", None) or error
            raise CoterieError(f"Cannot write the run directory {place}: {reason}; choose another --output.") from error
        write_json(run.environment, environment())
        return run

    @classmethod
    def open(cls, path: Path | str) -> "RunDirectory":
        """Open an existing run directory.

        Raises:
            CoterieError: there is no such directory, or it is not one of a run.

        """
        folder = Path(path)
        if not folder.is_dir():
            raise CoterieError(f"There is no run directory {folder}; give the directory that `coterie run` printed.")
        if not _is_run(folder):
            raise CoterieError(
                f"{folder} is not a run directory (it has no environment.json of coterie); "
                "give the directory that `coterie run` printed."
            )
        return cls(folder)

    @property
    def config(self) -> Path:
        """The configuration as resolved, ``config.yaml``."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Versions and machine, ``environment.json``."""
        return self.path / "environment.json"

    @property
    def about(self) -> Path:
        """What the experiment is: its name, protocol, seeds and systems, ``about.json``."""
        return self.path / "about.json"

    @property
    def federation(self) -> Path:
        """A portrait of the clients' data, ``federation.json``."""
        return self.path / "federation.json"

    @property
    def history(self) -> Path:
        """One value a round, ``history.parquet``."""
        return self.path / "history.parquet"

    @property
    def history_csv(self) -> Path:
        """The same as text, ``history.csv``."""
        return self.path / "history.csv"

    @property
    def clients(self) -> Path:
        """One value a client and round, ``clients.parquet``."""
        return self.path / "clients.parquet"

    @property
    def timings(self) -> Path:
        """Seconds by phase and round, ``timings.parquet``."""
        return self.path / "timings.parquet"

    @property
    def failures(self) -> Path:
        """Clients that could not finish a round, and why, ``failures.csv``."""
        return self.path / "failures.csv"

    @property
    def undefined(self) -> Path:
        """Whose data do not define which metrics, and why, ``undefined.csv``; it is there if anybody's do not."""
        return self.path / "undefined.csv"

    @property
    def summary(self) -> Path:
        """One row a system, ``summary.json``."""
        return self.path / "summary.json"

    @property
    def report(self) -> Path:
        """The report for the browser, ``report.html``."""
        return self.path / "report.html"

    @property
    def models(self) -> Path:
        """The personalised models, ``models/<algorithm>-<variant>/seed<k>/<client>.safetensors``."""
        return self.path / "models"

    def schema(self, seed: int) -> Path:
        """Return the file ``schemas/seed<k>.json``: how the columns of a table became inputs."""
        return self.path / "schemas" / f"seed{seed}.json"

    def write_schema(self, seed: int, source: Mapping[str, Any]) -> None:
        """Write what a federation's ``source`` says of its schema, once a seed; nothing where it has none.

        ``{"schema": {...}}`` holds for all clients, ``{"clients": {name: {...}}}`` has one for each.

        Raises:
            CoterieError: it cannot be written.

        """
        found = {key: source[name] for key, name in (("schema", "schema"), ("clients", "schemas")) if name in source}
        if found and not self.schema(seed).exists():
            write_json(make_folder(self.path / "schemas") / f"seed{seed}.json", found)

    @property
    def relations(self) -> Path:
        """Who learnt from whom, ``relations/<algorithm>-<variant>/seed<k>/round<r>.npz``."""
        return self.path / "relations"

    @property
    def newcomers(self) -> Path:
        """What became of newcomers, ``newcomers/<algorithm>-<variant>/seed<k>.csv``."""
        return self.path / "newcomers"

    @property
    def tracking(self) -> Path:
        """What trackers keep on this machine, ``tracking/``."""
        return self.path / "tracking"

    @property
    def losses(self) -> Path:
        """Losses of single validation examples, ``losses/<algorithm>-<variant>/seed<k>.npz``."""
        return self.path / "losses"

    @property
    def guard(self) -> Path:
        """What each client decided under the guard, and why, ``guard.csv``."""
        return self.path / "guard.csv"

    def guard_fold(self, index: int) -> Path:
        """Return ``guard/fold<i>``, the run directory of one of the guard's folds."""
        return self.path / "guard" / f"fold{index}"

    @property
    def figures(self) -> Path:
        """What `coterie plot` has drawn, ``figures/``."""
        return self.path / "figures"

    @property
    def exports(self) -> Path:
        """What `coterie export` has written, ``exports/<algorithm>-<variant>-seed<k>-<client>/``."""
        return self.path / "exports"

    def server(self, algorithm: str, variant: str | None, seed: int) -> Path:
        """Return the file ``servers/<algorithm>-<variant>/seed<k>.pt``: what newcomers will need."""
        return self.path / "servers" / system_folder(algorithm, variant) / f"seed{seed}.pt"

    @property
    def checkpoints(self) -> Path:
        """Where the states lie from which a run is resumed, ``checkpoints/``."""
        return self.path / "checkpoints"

    def checkpoint(self, algorithm: str, variant: str | None, seed: int) -> Path:
        """Return the file ``checkpoints/<algorithm>-<variant>/seed<k>.pt`` of one run; makes its folder.

        Raises:
            CoterieError: the folder cannot be made.

        """
        return make_folder(self.checkpoints / system_folder(algorithm, variant)) / f"seed{seed}.pt"

    def write_config(self, text: str) -> None:
        """Write ``config.yaml`` in one step; raises CoterieError when it cannot be written."""
        write_text(self.config, text)

    def write_summary(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``summary.json`` as ``{"rows": [...]}`` in one step.

        Raises:
            CoterieError: it cannot be written.
            ValueError: a row holds NaN; undefined values are None.

        """
        write_json(self.summary, {"rows": [dict(row) for row in rows]})

    def read_summary(self) -> list[dict[str, Any]]:
        """Read the rows of ``summary.json``.

        Raises:
            CoterieError: the run has not finished, or the file is damaged.

        """
        if not self.summary.exists():
            raise CoterieError(
                f"{self.path} has no summary.json, so the run has not finished; continue it with "
                f"`coterie resume {self.path}`."
            )
        try:
            rows: list[dict[str, Any]] = json.loads(self.summary.read_text(encoding="utf-8"))["rows"]
        except (ValueError, KeyError, TypeError) as error:
            raise CoterieError(
                f"{self.summary} is damaged ({error}); `coterie resume {self.path}` writes it again."
            ) from error
        return rows


def make_folder(path: Path) -> Path:
    """Make a folder and those above it, and return it; raises CoterieError when that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CoterieError(
            f"Cannot make the folder {path}: {error.strerror or error}; choose another --output."
        ) from error
    return path


def refuse_results(output: Path) -> None:
    """Raise CoterieError where ``output`` would be a file of a run, or a search, that nothing but it can make.

    What else lies in a run directory, such as answers and comparisons, may be written and written again.
    """
    place = output.resolve()
    for folder in place.parents:
        if _is_run(folder) and _is_result(place.relative_to(folder).parts):
            raise CoterieError(f"{output} belongs to the results in {folder}; choose another --output.")


def _is_result(parts: Sequence[str]) -> bool:
    """Say whether the path ``parts`` below a run directory is one that a run, or `coterie adapt`, writes."""
    first, *rest = parts
    if first.startswith(f"{ADAPTED}-"):
        return len(rest) != 1 or rest[0] in ("summary.json", "newcomers.yaml")
    return first in {*FILES, *FOLDERS} - _AGAIN


def safe_name(name: str) -> str:
    """Return ``name`` as one path component: everything unusual becomes a hyphen."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "run"


def _next_free(root: Path, name: str) -> Path:
    """Make and return ``<root>/<name>-<n>``, n one more than the largest that exists."""
    root.mkdir(parents=True, exist_ok=True)
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    taken = [int(match[1]) for entry in root.iterdir() if (match := pattern.fullmatch(entry.name))]
    number = max(taken, default=0)
    while True:
        number += 1
        folder = root / f"{name}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:  # another run took it in the meantime
            continue
        return folder


def _explicit(path: Path, overwrite: bool) -> Path:
    """Make and return the directory that the user named, cleared where that is wanted."""
    if path.is_symlink() and not path.exists():
        raise CoterieError(f"{path} is a link that leads nowhere; choose another --output.")
    if not path.exists():
        path.mkdir(parents=True)
        return path
    if not path.is_dir():
        raise CoterieError(f"{path} is a file, not a directory; choose another --output.")
    if not overwrite:
        raise CoterieError(
            f"The directory {path} exists already; choose another --output, continue it with "
            f"`coterie resume {path}`, or add --overwrite."
        )
    if any(path.iterdir()) and not _is_run(path):
        raise CoterieError(f"{path} is not a run directory, so --overwrite does not touch it; choose another --output.")
    run = RunDirectory(path)
    if run.checkpoints.is_dir():
        with locked(run):  # nobody is at work there; a folder with an open file cannot be cleared everywhere
            pass
    _clear(path)
    return path


def _is_run(path: Path) -> bool:
    """Say whether ``path`` holds an ``environment.json`` that coterie wrote."""
    try:
        content = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "coterie" in content


def _clear(path: Path) -> None:
    """Remove what a run writes; the mark goes last, so that an interrupted clearing can be repeated."""
    for folder in [*(path / name for name in FOLDERS), *path.glob(f"{ADAPTED}-*")]:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
    for name in sorted(FILES, key=lambda name: name == "environment.json"):
        (path / name).unlink(missing_ok=True)
