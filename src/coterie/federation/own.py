"""Federations from what is at hand in Python: arrays, torch Datasets, a data frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from coterie.errors import CoterieError
from coterie.federation.arrays import by_client, examples_of_clients
from coterie.federation.build import divided
from coterie.federation.examples import Examples
from coterie.federation.federation import Federation
from coterie.federation.frames import checked_frame
from coterie.federation.partition import RULES
from coterie.federation.partition.rule import Amount
from coterie.federation.places import Origin, digest_of
from coterie.federation.table_options import SPLIT_BY, TableOptions
from coterie.federation.tables import examples_of, full_texts, require
from coterie.federation.weights import checked_weights

if TYPE_CHECKING:
    import pandas as pd

OfExamples = Mapping[Any, Sequence[Any]] | Sequence[Sequence[Any]]
"""Something of every example, by client; a list where clients are one."""


def of_arrays(
    given: Any,
    validation: Amount,
    test: Amount,
    seed: int,
    blocks: OfExamples | None = None,
    order: OfExamples | None = None,
    weights: OfExamples | None = None,
) -> Federation:
    """See `Federation.from_arrays`."""
    clients = by_client(given, "from_arrays")
    examples = examples_of_clients("arrays", clients)
    counts = {name: sum(map(len, parts.values())) for name, parts in clients.items()}
    together, times = _by_row(blocks, counts, "blocks"), _by_row(order, counts, "order")
    weighed = _by_row(weights, counts, "weights")
    checked = None if weighed is None else checked_weights(weighed, "from_arrays: weights")
    return _federation(replace(examples, blocks=together, order=times, weights=checked), validation, test, seed)


def _by_row(of: OfExamples | None, counts: Mapping[str, int], what: str) -> list[Any] | None:
    """What is known of each client's examples, in the order of the joined rows; None where nothing is."""
    if of is None:
        return None
    known = {str(name): own for name, own in (of.items() if isinstance(of, Mapping) else enumerate(of))}
    if missing := [name for name in counts if name not in known]:
        raise CoterieError(
            f"from_arrays: {what} lack the client {missing[0]!r}: give them for all clients or for none."
        )
    if strange := [name for name in known if name not in counts]:
        raise CoterieError(f"from_arrays: {what} name {strange[0]!r}, which is no client: leave it out.")
    for name, count in counts.items():
        found = len(known[name]) if isinstance(known[name], Sized) and not isinstance(known[name], Mapping) else None
        if found != count:
            raise CoterieError(
                f"from_arrays: {what} of client {name!r} are {'no list' if found is None else found}, but it has "
                f"{count} examples: give one for each, of one part after the other."
            )
    rows = [(name, one) for name in counts for one in known[name]]
    if gap := next((name for name, one in rows if _lacks(one)), None):
        raise CoterieError(f"from_arrays: {what} of client {gap!r} lack a value: every example needs one.")
    return [one for _, one in rows]


def _lacks(value: Any) -> bool:
    import pandas as pd

    return pd.api.types.is_scalar(value) and bool(pd.isna(value))


def of_datasets(given: Any, validation: Amount, test: Amount, seed: int) -> Federation:
    """See `Federation.from_datasets`."""
    return _federation(examples_of_clients("datasets", by_client(given, "from_datasets")), validation, test, seed)


def of_frame(
    frame: pd.DataFrame, client: str, validation: Amount, test: Amount, seed: int, keys: dict[str, Any]
) -> Federation:
    """See `Federation.from_frame`."""
    try:
        options = TableOptions.model_validate(keys)
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        raise CoterieError(f"from_frame: {'.'.join(map(str, first['loc'][:1])) or 'options'}: {message}.") from error
    table = checked_frame(frame.reset_index(drop=True), Path("the data frame"))
    where = Origin("the data frame", [("the data frame", "row", 0)])
    require(table, client, "client", where)
    clients = full_texts(table, client, "client", where).tolist()
    examples = examples_of("frame", table, clients, options, where=where, besides=[client])
    federation = _federation(replace(examples, checksum=digest_of(table)), validation, test, seed)
    rules = {key: column for key in SPLIT_BY if (column := getattr(options, key)) is not None}
    return replace(federation, source={**federation.source, **rules})


def _federation(examples: Examples, validation: Amount, test: Amount, seed: int) -> Federation:
    rule = RULES["natural"].model_validate({"rule": "natural", "min_examples": 1})
    official = examples.sides is not None
    for what, amount in (("validation", validation), ("test", test)):
        if not isinstance(amount, str) and not amount >= 0:
            raise CoterieError(f"{what} is {amount}: give a number of examples, or a fraction from 0 to 1.")
    try:
        sizes = rule.resolve({"train": None, "validation": validation, "test": None if official else test})
    except ValueError as error:
        raise CoterieError(f"{error}.") from error
    if official:
        sizes = replace(sizes, test="official")
    source = {"source": examples.name, "seed": seed}
    return divided(examples, rule, sizes, seed, source)
