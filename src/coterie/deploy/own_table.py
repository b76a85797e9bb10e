"""A site's own table in a federation that prepares tables together: what is told of it, and how it becomes inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.deploy.data import split_rows
from coterie.deploy.reading import UNKNOWN, read_data
from coterie.deploy.sections import TableData
from coterie.deploy.sitefile import SiteFile
from coterie.errors import CoterieError
from coterie.federation import ClientData, Federation
from coterie.federation.build import parse
from coterie.federation.datasets.sites import AT_SITES, SitesSource
from coterie.federation.examples import Examples
from coterie.federation.folds import Fold, folded
from coterie.federation.frames import encode_target, texts
from coterie.federation.partition.rule import Division, Sizes
from coterie.federation.places import Origin
from coterie.federation.schema import Schema
from coterie.federation.sides import Official, read_parts
from coterie.federation.standardising import Columns
from coterie.federation.tables import columns_of, full_texts, require
from coterie.privacy import Policy, Refused
from coterie.runs.atomic import write_text
from coterie.yamltext import load_yaml, write_yaml

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[np.int64]


def prepared_together(config: Mapping[str, Any]) -> SitesSource | None:
    """What an experiment says of the sites' tables; None where these follow a schema that was agreed on beforehand.

    Raises
    ------
    CoterieError
        The section ``federation`` of the experiment is wrong.
    """
    section = config.get("federation")
    if not isinstance(section, Mapping) or section.get("source") != AT_SITES or not section.get("preprocessing"):
        return None
    options = parse(section).options
    assert isinstance(options, SitesSource)
    return options


def read_columns(path: Path) -> SitesSource:
    """What ``columns.yaml`` beside a site's file says of its table: the experiment's own words.

    Raises
    ------
    CoterieError
        It cannot be read, or a key or a value is wrong.
    """
    tree = load_yaml(path)
    options = prepared_together({"federation": {**tree, "source": AT_SITES}}) if isinstance(tree, Mapping) else None
    if options is None:
        raise CoterieError(f"{path} does not say preprocessing: federated and the target: copy it from the server.")
    return options


def write_columns(path: Path, options: SitesSource) -> None:
    """Write what the experiment says of the sites' tables, defaults left out."""
    write_text(path, write_yaml(options.model_dump(exclude_defaults=True)))


@dataclass(frozen=True, eq=False)
class OwnTable:
    """The table of a site, with its rows divided.

    Attributes
    ----------
    site : SiteFile
        Whose it is.
    options : SitesSource
        What the experiment says of its columns.
    table : DataFrame
        All rows, ``N``: those of further files come after those of the first.
    division : Division
        Which of them are for what.
    where : Origin
        Says where a row is, for messages that stay at the site.
    """

    site: SiteFile
    options: SitesSource
    table: pd.DataFrame
    division: Division
    where: Origin

    @classmethod
    def read(cls, site: SiteFile, options: SitesSource, *, seed: int, fold: Fold | None = None) -> OwnTable:
        """Read the table that a site's file names, and divide its rows; only target and split are looked at.

        A fold divides what is not for testing anew, see `coterie.federation.folds`.

        Raises
        ------
        Refused
            The experiment asks for a column that the site does not list under ``data.features``.
        CoterieError
            It is no table, cannot be read, or site and experiment do not agree on what is in it.
        """
        import pandas as pd

        data = site.data
        if not isinstance(data, TableData):
            raise Refused(f"preprocessing: federated is for tables, and data in site.yaml is of the kind {data.kind}")
        options = _agreed(site, data, options)
        tables = read_data(site, seed=seed, schema=None).tables
        files = {part: getattr(data, "table" if part == "all" else part) for part in tables}
        columns = list(tables["all"].columns)
        for part, table in tables.items():
            if odd := sorted(set(columns) ^ set(table.columns)):
                raise CoterieError(f"{files[part]} and {data.table} do not both have the column {odd[0]!r}.")
        whole = pd.concat([table[columns] for table in tables.values()], ignore_index=True)
        where = Origin.of(str(data.table), {files[part]: len(table) for part, table in tables.items()})
        lengths = {part: len(table) for part, table in tables.items()}
        division = _divided(site, data, options, whole, lengths, where, seed)
        if fold is not None:
            classes, none = torch.from_numpy(_strata(whole, options, where)), torch.zeros(len(whole), 0)
            division = folded(division, Examples(str(data.table), none, classes, int(classes.max()) + 1), fold, seed)
        return cls(site, options, whole, division, where)

    @property
    def sizes(self) -> dict[str, int]:
        """How many rows are for what."""
        return {part: len(getattr(self.division, part)[0]) for part in ("train", "validation", "test")}

    @property
    def only_class(self) -> str | None:
        """The class of all training rows; None where they are of several, or of a regression."""
        found = np.unique(_strata(self.table, self.options, self.where)[self.division.train[0]])
        if self.options.regression or len(found) != 1:
            return None
        return self.options.labels[int(found[0])] if self.options.labels else str(found[0])

    @cached_property
    def columns(self) -> Columns:
        """Its columns, as the site itself sees them; raises ``CoterieError`` where one cannot be used."""
        return columns_of(self.table, self.options, where=self.where)[0]

    def told(self, policy: Policy) -> dict[str, Any]:
        """What leaves the site before the first round.

        Raises
        ------
        Refused
            The policy does not allow it.
        CoterieError
            A column cannot be used; the message may hold a value of it.
        """
        policy.check_preprocessing()
        policy.check_examples(self.sizes["train"])
        return self.columns.told(self.division.train[0], policy.smallest_group)

    def federation(self, schema: Schema) -> Federation:
        """The site as a federation of one client, by the schema of all sites.

        Raises
        ------
        CoterieError
            A column is not what the schema says, or lacks values that may not be missing.
        """
        options = self.options.following(schema, "federated")
        columns, targets = columns_of(self.table, options, where=self.where)
        inputs = columns.prepared(self.division, [self.site.client], schema).inputs
        wanted = torch.from_numpy(targets)

        def one(rows: Rows) -> ClientData:
            return ClientData(
                inputs[rows], wanted[rows], torch.tensor([0, len(rows)]), target_normal=schema.target_normal
            )

        return Federation(
            names=(self.site.client,),
            task=schema.task,
            classes=schema.classes,
            source={"source": "table", "schema": schema.as_dict()},
            train=one(self.division.train[0]),
            validation=one(self.division.validation[0]),
            test=one(self.division.test[0]),
        ).validate()


def _agreed(site: SiteFile, data: TableData, options: SitesSource) -> SitesSource:
    """The experiment's options, once the site's file does not say otherwise; its list of features holds.

    Where they do not agree, the server is told so as well: nothing of the data is in it.
    """
    for key in ("target", "task", "missing"):
        own, its = getattr(data, key), getattr(options, key)
        if own is not None and its is not None and own != its:
            raise Refused(f"data.{key} is another than the experiment's {its}: leave it out of site.yaml")
    if data.standardise == "own":
        raise Refused(
            "data.standardise: own has no effect, since the experiment says preprocessing: federated: leave it out of "
            "site.yaml"
        )
    if site.schema_path.exists():
        raise Refused("schema.yaml beside site.yaml fixes what preprocessing: federated computes: remove it")
    if data.features is None:
        return options
    if unlisted := [name for name in options.features or [] if name not in data.features]:
        raise Refused(f"data.features does not list the column {unlisted[0]!r}, which the experiment asks for")
    return options.model_copy(update={"features": options.features or list(data.features)})


def _divided(
    site: SiteFile,
    data: TableData,
    options: SitesSource,
    table: pd.DataFrame,
    lengths: Mapping[str, int],
    where: Origin,
    seed: int,
) -> Division:
    """Which rows are for what: as a column says, as they lie in files, or drawn with every class in like proportion."""
    strata, own = _strata(table, options, where), np.arange(lengths["all"])
    files = {part: amount for part in ("validation", "test") if isinstance(amount := getattr(data, part), Path)}

    def drawn(rows: Rows, sizes: Sizes) -> dict[str, Rows]:
        parts = split_rows(strata[rows], sizes, seed=seed, client=site.client)
        return {part: rows[chosen] for part, chosen in parts.items()}

    if options.split is None:
        amounts = {part: 0 if part in files else getattr(data, part) for part in ("validation", "test")}
        parts = drawn(own, Sizes("rest", amounts["validation"], amounts["test"]))
    elif files:
        raise CoterieError(
            f"{site.path}: data.{next(iter(files))} names a file, but the column {options.split!r} says the split: "
            "keep one of them."
        )
    else:
        require(table, options.split, "split", where)
        said = Official(read_parts(full_texts(table, options.split, "split", where).tolist(), where))

        def carve(rows: Rows) -> tuple[Rows, Rows]:
            carved = drawn(rows, Sizes("rest", _amount(data.validation), 0))
            return carved["train"], carved["validation"]

        parts = dict(zip(("train", "validation", "test"), said.split(own, site.client, carve), strict=True))
    begin = lengths["all"]
    for part in files:
        parts[part] = np.arange(begin, begin + lengths[part])
        begin += lengths[part]
    return Division([parts["train"]], [parts["validation"]], [parts["test"]], names=[site.client])


def _amount(amount: int | float | Path) -> int | float:
    assert not isinstance(amount, Path)
    return amount


def _strata(table: pd.DataFrame, options: SitesSource, where: Origin) -> Rows:
    """The class of every row ``(N,)``, by which the split is drawn; all 0 for a regression."""
    for name in options.targets:
        require(table, name, "target", where)
    if options.regression:
        return np.zeros(len(table), dtype=np.int64)
    labels = options.labels or [str(c) for c in range(options.classes or 0)]
    wanted = Schema(classes=len(labels), labels=labels, target=options.target, shape=[1])
    classes: Rows = encode_target(table, wanted)
    if (outside := classes == UNKNOWN).any():
        row = int(outside.argmax())
        cells, place = texts(table[wanted.targets[0]]), where(row)
        if cells.missing[row]:
            raise CoterieError(f"{place}: the target {options.target!r} is missing: fill it in, or remove the row.")
        raise CoterieError(
            f"{place}: the target {options.target!r} is {cells.values[row]!r}, which is none of the experiment's "
            f"classes {', '.join(labels[:10])}{', ...' if len(labels) > 10 else ''}: correct it, or remove the row."
        )
    return classes
