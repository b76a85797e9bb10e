"""A tuned experiment as a file to keep."""

from __future__ import annotations

from pathlib import Path

from coterie.errors import CoterieError
from coterie.runs.atomic import write_text
from coterie.runs.directory import make_folder
from coterie.tuning.result import Tuned
from coterie.yamltext import write_yaml


def write_tuned(tuned: Tuned, path: Path) -> None:
    """Write the experiment with the best settings, headed by how they were found.

    Raises
    ------
    CoterieError
        No trial succeeded, or the file cannot be written.
    """
    if not tuned.best:
        raise CoterieError(f"{path} is not written: no trial succeeded.")
    count = {method: sum(row["method"] == method for row in tuned.rows) for method in tuned.best}
    lines = [
        f"# {tuned.config.name}, tuned by {tuned.metric.replace('_', ' ')} alone.",
        *(
            f"# {method}: best of {count[method]} settings of {', '.join(values)}."
            for method, values in tuned.best.items()
        ),
        *(f"# {remark}" for remark in tuned.remarks),
    ]
    make_folder(path.parent)
    write_text(path, "\n".join(lines) + "\n\n" + write_yaml(tuned.config.as_dict()))
