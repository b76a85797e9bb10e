"""Files that are either the old one or the new one, never half of either."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError


@contextmanager
def atomic_path(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to; at the end it replaces ``path`` in one step.

    After an error, or a kill, ``path`` is what it was before. The temporary name is always the same, so
    what a killed process leaves is overwritten by the next one.

    Args:
        path: the file to write; its folder must exist.
        sync: wait until the data is on the disk, so that a power cut cannot leave an empty file.

    Raises:
        CoterieError: the file cannot be written (permission, disk full).

    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        yield temporary
        if sync:
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise CoterieError(
            f"Cannot write {path}: {error.strerror or error}; free some space or choose another --output."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` in one step; raises CoterieError when it cannot be written."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON to ``path`` in one step.

    Raises:
        CoterieError: the file cannot be written.
        ValueError: ``value`` holds NaN or an infinity, which JSON does not know; use None.

    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
