"""What an experiment gives back."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from coterie.errors import CoterieError
from coterie.runs import newcomers_table, result_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from coterie.reports import OpenedRun


@dataclass(frozen=True)
class Result:
    """What an experiment gave.

    Attributes
    ----------
    directory : Path
        The run directory.
    rows : list of dict
        One row a system, as in ``summary.json``.
    name : str
        The experiment's name.
    diverged : tuple of str
        Runs in which every client failed; their rounds before that are kept.
    newcomers : list of dict
        One row a system and a way of joining, as in ``newcomers/summary.json``; empty where nobody was held out.
    remarks : tuple of str
        What could not be done for newcomers, or not be reported, and why.
    """

    directory: Path
    rows: list[dict[str, Any]]
    name: str
    diverged: tuple[str, ...] = ()
    newcomers: list[dict[str, Any]] = field(default_factory=list)
    remarks: tuple[str, ...] = ()

    @property
    def summary(self) -> pd.DataFrame:
        """``rows`` as a frame, one row a system."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def clients(self) -> pd.DataFrame:
        """One value a client, round and metric; ``n`` is how many examples the client has.

        Raises
        ------
        CoterieError
            The run directory is no longer there.
        """
        return self._opened().tables.clients

    @property
    def history(self) -> pd.DataFrame:
        """One value a round and metric, over all clients.

        Raises
        ------
        CoterieError
            The run directory is no longer there.
        """
        return self._opened().tables.history

    def plot(self, kind: str = "gain", **choice: Any) -> Figure:
        """Draw one of the figures of ``coterie plot``; a notebook shows what is returned.

        Parameters
        ----------
        kind : str
            ``curves``, ``gain``, ``accuracy``, ``scatter``, ``relations``, ``data`` or ``ranks``.
        **choice
            What to show, such as ``systems=("fedora",)``, ``seed=0`` or ``order="n"``: the fields of
            `coterie.reports.figures.choice.Choice`.

        Raises
        ------
        CoterieError
            Matplotlib is not installed, an unknown kind or choice, or the run lacks what this kind shows.
        """
        try:
            from coterie.reports.figures.choice import Choice
            from coterie.reports.figures.kinds import KINDS, draw
        except ImportError as error:
            raise CoterieError("A figure needs matplotlib: pip install 'coterie[plot]'.") from error
        options = [option.name for option in fields(Choice)]
        for word, known in ((kind, list(KINDS)), *((key, options) for key in choice)):
            if word not in known:
                raise CoterieError(f"result.plot knows no {word!r}: choose one of {', '.join(known)}.")
        return draw(kind, [self._opened()], Choice(**choice))

    def _opened(self) -> OpenedRun:
        from coterie.reports import open_run

        return open_run(self.directory)

    def table(self) -> Table:
        """The rows as a table for a terminal."""
        return result_table(self.rows, title=self.name)

    def newcomers_table(self) -> Table:
        """The rows of the newcomers as a table for a terminal."""
        return newcomers_table(self.newcomers)
