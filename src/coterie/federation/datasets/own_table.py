"""A user's own table, in which a column says whose each row is."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from coterie.federation.datasets.registry import register_source
from coterie.federation.examples import Examples
from coterie.federation.frames import read_frame
from coterie.federation.places import Origin, located, sha256_of
from coterie.federation.table_options import TableOptions
from coterie.federation.tables import examples_of, full_texts, require


class TableSource(TableOptions):
    """Options of the source ``table``."""

    path: str = Field(description="the file: .csv, .csv.gz or .parquet; as given, or below the data directory")
    client: str = Field(description="column that says whose a row is")


@register_source("table", "your own table with a column for the client", "<path>", options=TableSource)
def table(data_dir: Path | None, options: TableSource) -> Examples:
    """The rows of the file. Natural groups: ``client``.

    Raises:
        CoterieError: no such file or column, or a column that is not what it should be.
    """
    path = located(options.path, data_dir)
    frame = read_frame(path)
    where = Origin.of(str(path), {path: len(frame)})
    require(frame, options.client, "client", where)
    clients = full_texts(frame, options.client, "client", where)
    found = examples_of("table", frame, clients.tolist(), options, where=where, besides=[options.client])
    return found.of_files({str(path): sha256_of(path)})
