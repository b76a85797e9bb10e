"""Checking a site before it takes part, at the site and without sending anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coterie.deploy.data import divided, site_differences, sizes_of
from coterie.deploy.own_table import OwnTable, prepared_together, read_columns
from coterie.deploy.reading import read_data
from coterie.deploy.schema import read_schema
from coterie.deploy.sitefile import SiteFile, policy_of
from coterie.errors import CoterieError
from coterie.federation.datasets.sites import SitesSource
from coterie.privacy import Gate, Policy, Refused
from coterie.yamltext import load_yaml

UNLISTED = (
    "Whether the other sites have these columns was not compared, since the experiment lists none under "
    "federation.features."
)
AGAIN = "That is with one seed: each further one, and each fold of a guard, sends such sums again, over other rows."
FEW = 5
FEW_NUMBERS = (
    "The sums of a column with so few numbers tell nearly what they are: policy.smallest_group: 5 in site.yaml "
    "withholds those of fewer."
)


@dataclass(frozen=True)
class Report:
    """What a check has found.

    Attributes
    ----------
    client : str
        Name of the site.
    sizes : Mapping[str, int]
        How many examples are for what; empty where the data cannot be used.
    differences : sequence of str
        What has to change, one sentence each.
    schema : bool
        Whether there is a schema, or a list of columns, to compare with.
    leaves : Mapping[str, list]
        What leaves the site before the first round, by column, where sites prepare their tables together: of numbers
        how many, their sum, the sum of squares and how many are missing; of a category its values and how many are.
    remarks : sequence of str
        What was not compared, what leaves besides, and why nothing leaves; nothing of it has to change.
    """

    client: str
    sizes: Mapping[str, int]
    differences: Sequence[str]
    schema: bool
    leaves: Mapping[str, list[Any]] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def check_site(path: Path, *, seed: int = 0, experiment: Path | None = None) -> Report:
    """Check a site's file, its data, its policy and its folders.

    An experiment says what the columns of a table are, in place of ``columns.yaml``, and its methods, its model and its
    guard are compared with the policy; nothing that it names is imported.

    Raises
    ------
    CoterieError
        The file itself, or the experiment, cannot be read or is wrong.
    """
    site = SiteFile.read(path)
    tree = None if experiment is None else _tree(experiment)
    asked = prepared_together(tree) if tree is not None else None
    found: list[str] = []
    sizes: Mapping[str, int] = {}
    schema = read_schema(site.schema_path) if site.schema_path.exists() else None
    together, policy = asked is not None or (tree is None and site.columns_path.exists()), None
    leaves: Mapping[str, list[Any]] = {}
    remarks: list[str] = []
    try:
        policy = policy_of(site)
    except CoterieError as error:
        found.append(str(error))
    try:
        if together:
            asked = asked or read_columns(site.columns_path)
            sizes, leaves, remarks = _of_own_table(site, asked, policy, seed)
        else:
            data = read_data(site, seed=seed, schema=schema)
            found += (of_data := [] if schema is None else site_differences(site, schema, data))
            sizes = {} if of_data else sizes_of(divided(site, data, seed=seed, schema=schema))
        if policy is not None and sizes:
            policy.check_examples(sizes["train"])
    except CoterieError as error:
        found.append(str(error))
    if policy is not None and tree is not None:
        remarks = [*remarks, *_refused(policy, tree)]
    if policy is not None:
        found += _of_account(policy, site.state)
    for folder in dict.fromkeys([site.state, site.log_file.parent]):
        if (reason := _not_writable(folder)) is not None:
            found.append(f"The folder {folder} cannot be written ({reason}): change its owner, or name another one.")
    if site.log_file.is_dir():
        found.append(f"The log {site.log_file} is a folder: name a file.")
    return Report(site.client, sizes, found, schema is not None or together, leaves, remarks)


def _of_own_table(
    site: SiteFile, asked: SitesSource, policy: Policy | None, seed: int
) -> tuple[Mapping[str, int], dict[str, list[Any]], list[str]]:
    """Sizes, what leaves the site of a table that all sites prepare together, and remarks on it."""
    table = OwnTable.read(site, asked, seed=seed)
    columns = table.columns  # each of them can be used
    remarks = [] if asked.features else [UNLISTED]
    if (alone := table.only_class) is not None:
        remarks.append(
            f"All training rows are of the class {alone!r}: this site has nothing to learn from by itself, and AUROC "
            "is not defined here."
        )
    try:
        if policy is None:
            return table.sizes, {}, remarks
        policy.check_preprocessing()
    except Refused as refusal:
        return table.sizes, {}, [*remarks, f"Nothing leaves before round 1: {refusal}."]
    leaves = columns.told(table.division.train[0], policy.smallest_group)
    if any(isinstance(known[0], int) and 0 < known[0] < FEW for known in leaves.values()):
        remarks.append(FEW_NUMBERS)
    return table.sizes, leaves, [AGAIN, *remarks]


def _tree(experiment: Path) -> Mapping[str, Any]:
    """An experiment as it was written: what it names is not looked up."""
    tree = load_yaml(experiment)
    if not isinstance(tree, Mapping):
        raise CoterieError(f"{experiment} is no experiment: take server/experiment.yaml of the federation.")
    return tree


def _refused(policy: Policy, tree: Mapping[str, Any]) -> list[str]:
    """What of an experiment the policy does not allow, which is the site's good right."""

    def named(entry: Any) -> Any:
        return entry.get("name") if isinstance(entry, Mapping) else entry

    said = []
    methods = tree.get("algorithms")
    for check, entry in [
        (policy.check_model, tree.get("model")),
        *((policy.check_algorithm, method) for method in (methods if isinstance(methods, list) else [])),
    ]:
        try:
            if isinstance(name := named(entry), str):
                check(name)
        except CoterieError as refusal:
            said.append(f"The site would refuse: {str(refusal).rstrip('.')}.")
    if tree.get("guard") and not policy.sends_evaluation:
        said.append("The site would tell the guard nothing, which then goes by the others: policy.evaluation is off.")
    return said


def _of_account(policy: Policy, state: Path) -> list[str]:
    """Why no answer can be noised, or none may leave any more."""
    try:
        accountant = Gate(policy, state).accountant
        spent = accountant is not None and policy.epsilon is not None and accountant.epsilon(more=1) > policy.epsilon
    except CoterieError as error:
        return [str(error)]
    return ["policy.epsilon does not allow a single further answer: raise it, or policy.noise."] if spent else []


def _not_writable(folder: Path) -> str | None:
    """Why nothing can be written into a folder, which is made if it is not there."""
    probe = folder / ".check"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return error.strerror or type(error).__name__
    return None
