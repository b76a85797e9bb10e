"""A user's own tables, one a client."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.datasets.files import contents
from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples
from coterie.federation.frames import read_frame
from coterie.federation.places import Origin, located_all, sha256_of
from coterie.federation.table_options import TableOptions
from coterie.federation.tables import examples_of

ENDINGS = (".csv", ".csv.gz", ".parquet")


class FilesSource(TableOptions):
    """Options of the source ``files``."""

    path: str = Field(description="folder of .csv, .csv.gz or .parquet files, or a pattern such as wards/*.csv")


@register_source("files", "your own tables, one a client, named as its file", "<path>", options=FilesSource)
def files(data_dir: Path | None, options: FilesSource) -> Examples:
    """The rows of all files. Natural groups: ``client``, the file's name without its ending.

    Raises:
        CoterieError: no such file, two of one name, or one that lacks a column of the others or has another.
    """
    paths = [path for path in located_all(options.path, data_dir) if path.name.lower().endswith(ENDINGS)]
    if not paths:
        folder = Path(options.path)
        found = contents(folder) if folder.is_dir() else f"{options.path} names none"
        raise CoterieError(f"federation.path should lead to files {', '.join(ENDINGS)}, but {found}: correct the path.")
    names = [_stem(path) for path in paths]
    if twice := next((name for name in names if names.count(name) > 1), None):
        same = [str(path) for path, name in zip(paths, names, strict=True) if name == twice]
        raise CoterieError(f"{' and '.join(same)} would be one client, {twice!r}: rename or remove one.")
    tables = {path: read_frame(path) for path in paths}
    first = next(iter(tables))
    for path, table in tables.items():
        if odd := sorted(set(table.columns) ^ set(tables[first].columns)):
            lacking, having = (path, first) if odd[0] in tables[first].columns else (first, path)
            raise CoterieError(
                f"{lacking} has no column {odd[0]!r}, which {having} has: all clients need the same columns."
            )
    columns = list(tables[first].columns)
    joined = pd.concat([table[columns] for table in tables.values()], ignore_index=True)
    clients = [name for name, table in zip(names, tables.values(), strict=True) for _ in range(len(table))]
    where = Origin.of(options.path, {path: len(table) for path, table in tables.items()})
    found_examples = examples_of("files", joined, clients, options, where=where)
    return found_examples.of_files({str(path): sha256_of(path) for path in paths})


def _stem(path: Path) -> str:
    name = path.name.lower()
    return path.name[: -len(next(end for end in reversed(ENDINGS) if name.endswith(end)))]
