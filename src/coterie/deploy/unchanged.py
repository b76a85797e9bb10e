"""A site's data stay what they were when it began a run: their fingerprint lies beside what it keeps of that run.

The split at a site is drawn over the positions of its rows: other rows, or the same in another order, would put what a
model has learned from among what it is tested with, and no count would show it.
"""

from __future__ import annotations

from pathlib import Path

from coterie.engines.folder import run_folder
from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.privacy import Refused
from coterie.runs.atomic import write_text


class Changed(Refused):
    """The data of a site are no longer those of the run."""


def check_unchanged(state: Path, run: str, seed: int, federation: Federation) -> None:
    """Compare a site's data with those that it began a run with, or keep their fingerprint where it begins now.

    Parameters
    ----------
    state : Path
        Where the site keeps its state.
    run : str
        The run's own random name; each fold of a guard has one as well.
    seed : int
        Of the run, on which the split may depend.
    federation : Federation
        The one client of the site, encoded and split.

    Raises
    ------
    Changed
        They are others, or in another order, or split in another way.
    CoterieError
        The fingerprint cannot be read or written.
    """
    path = run_folder(state, run) / f"data-seed{seed}.sha256"
    try:
        if path.exists():
            if path.read_text(encoding="utf-8").strip() != federation.digest:
                raise Changed(
                    "its data, or their order, have changed since it began this run: put them back as they were, or "
                    "start a new run under another name"
                )
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, federation.digest + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CoterieError(
            f"{path} cannot be read or written ({error}): it is needed to tell whether the data have changed"
        ) from error
