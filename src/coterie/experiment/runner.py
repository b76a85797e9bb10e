"""Start an experiment, or go on with one, in one call."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.config import Config, load_config, parse_config
from coterie.errors import CoterieError
from coterie.experiment.experiment import Experiment
from coterie.experiment.given import section_of
from coterie.experiment.result import Result
from coterie.federation import Federation
from coterie.federation.datasets.files import ENVIRONMENT
from coterie.runs import RunDirectory
from coterie.yamltext import read_yaml


def run(
    source: str | Path | Mapping[str, Any] | Config | Federation = "quickstart",
    overrides: Sequence[str] = (),
    *,
    data_dir: str | Path | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    console: Console | None = None,
    **keys: Any,
) -> Result:
    """Run one experiment.

    Parameters
    ----------
    source : str, Path, mapping, Config or Federation
        A YAML file, the name of a preset such as ``pgfed/cifar10:fast``, the same tree in Python, or a federation in
        memory, which all seeds share.
    overrides : sequence of str
        ``key=value`` as after ``-s`` on the command line.
    data_dir : path, optional
        Where data files lie; default ``$COTERIE_DATA``, else the user's cache.
    output : path, optional
        The run directory; default ``runs/<name>-<n>``.
    overwrite : bool
        Replace an existing run directory.
    device : str, optional
        ``cpu``, ``cuda``, ``cuda:1`` or ``auto``.
    console : rich.console.Console, optional
        Where progress is shown; default nowhere.
    **keys
        Keys of the configuration, such as ``algorithms=["local", "fedora"]``, ``rounds=20`` or
        ``training={"epochs": 2}``, each instead of the whole of what ``source`` says.

    Returns
    -------
    Result
        Rows of the summary and the run directory.

    Raises
    ------
    CoterieError
        Wrong input; the message says what, where and what to do.
    Interrupted
        Stopped by Ctrl-C or SIGTERM; everything up to the last round is saved.

    Examples
    --------
    >>> result = run("quickstart", ["rounds=2", "seeds=[0]"], output="runs/trial")  # doctest: +SKIP
    """
    given = source if isinstance(source, Federation) else None
    if isinstance(source, Federation):
        source = {"name": "own-data", **keys, "federation": section_of(source)}
    elif keys:
        source = {**read_config(source).as_dict(), **keys}
    config = read_config(source, overrides, device)
    experiment = Experiment(config, data_dir=None if data_dir is None else Path(data_dir), federation=given)
    return experiment.run(output=None if output is None else Path(output), overwrite=overwrite, console=console)


def read_config(
    source: str | Path | Mapping[str, Any] | Config, overrides: Sequence[str] = (), device: str | None = None
) -> Config:
    """`load_config`, with ``device`` as one more override, and a ready configuration let through."""
    overrides = [*overrides, *([f"device={device}"] if device else [])]
    if isinstance(source, Config):
        return parse_config(source.as_dict(), overrides) if overrides else source
    return load_config(source, overrides)


def resume(
    directory: str | Path,
    *,
    data_dir: str | Path | None = None,
    console: Console | None = None,
    federation: Federation | None = None,
) -> Result:
    """Continue an interrupted experiment as if nothing had happened.

    Parameters
    ----------
    directory : path
        The run directory.
    data_dir : path, optional
        Where data files lie, as for `run`.
    console : rich.console.Console, optional
        Where progress is shown; default nowhere.
    federation : Federation, optional
        The same federation again, for a run that was given one.

    Raises
    ------
    CoterieError
        Not a run directory, a damaged file, or other data than before.
    Interrupted
        Stopped again.
    """
    found = RunDirectory.open(directory)
    config = parse_config(stored_config(found), where=str(found.config))
    experiment = Experiment(config, data_dir=None if data_dir is None else Path(data_dir), federation=federation)
    return experiment.resume(found, console=console)


def stored_config(directory: RunDirectory) -> Any:
    """The tree of ``config.yaml``; raises CoterieError when it cannot be read."""
    try:
        return read_yaml(directory.config.read_text(encoding="utf-8"), str(directory.config))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CoterieError(
            f"{directory.config} cannot be read ({reason}): without it the run cannot be continued."
        ) from error


def resume_command(directory: Path, data_dir: Path | None = None, command: Sequence[str] = ("resume",)) -> str:
    """What to type to continue; a folder of data that the environment names need not be repeated."""
    stated = data_dir is not None and data_dir != Path(os.environ.get(ENVIRONMENT, ""))
    words = ["coterie", *command, str(directory), *(["--data-dir", str(data_dir)] if stated else [])]
    return shlex.join(words)
