"""Sites with tables agree on how these become inputs, as the simulation does, and tell no more than sums for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from comparing import check_equal, check_models
from tabled import COLUMNS, EXPERIMENT, SITES, simulate, table
from test_serving import Couriers as Carriers

from coterie.config import parse_config
from coterie.deploy.own_table import OwnTable
from coterie.deploy.roster import Roster
from coterie.deploy.serving import Deployed
from coterie.deploy.sitefile import SiteFile
from coterie.deploy.siteside import answer
from coterie.engines.wire import Packet, packed
from coterie.errors import CoterieError


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("simulated"))


class Couriers(Carriers):
    """What sites answer about their tables can be changed on the way."""

    def __init__(self, folder: Path, roster: Roster, hello: Packet) -> None:
        super().__init__(folder, roster, hello)
        self.change: Callable[[str, Packet], Packet | str | None] = lambda name, packet: packet
        self.prepared: list[str] = []

    def exchange(self, packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        others = {}
        for name, packet in packets.items():
            if "prepare" not in packet.tree():
                others[name] = packet
                continue
            self.prepared.append(name)
            if (changed := self.change(name, self.taken(name, packet))) is not None:
                yield name, changed
        yield from super().exchange(others, seconds, title)


def placed(folder: Path, tables: Mapping[str, pd.DataFrame] | None = None, **changes: Any) -> Path:
    """A folder of sites, each with a table of its own."""
    for number, name in enumerate(SITES):
        (folder / name).mkdir(parents=True)
        (tables or {}).get(name, table(number)).to_csv(folder / name / "rows.csv", index=False)
        own = {"client": name, "data": {"table": "rows.csv"}, **changes.get(name, {})}
        (folder / name / "site.yaml").write_text(yaml.safe_dump(own))
    return folder


def deployed(folder: Path, columns: Mapping[str, Any] = COLUMNS, **changes: Any) -> tuple[Deployed, Couriers]:
    tree = {"federation": {"source": "sites", **columns}, "sites": {"names": list(SITES), "patience": 0}, **changes}
    made: list[Couriers] = []

    def posting(roster: Roster, hello: Packet) -> Couriers:
        made.append(Couriers(folder, roster, hello))
        return made[0]

    return Deployed(parse_config({**EXPERIMENT, **tree}), posting), made[0]


def schema_of(run: Path) -> Any:
    return json.loads((run / "schemas" / "seed0.json").read_text())


def test_the_run_is_that_of_the_simulation(simulated: Path, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder)
    experiment.run_or_resume(tmp_path / "run", None)
    assert schema_of(tmp_path / "run") == schema_of(simulated)
    check_equal(tmp_path / "run", simulated)
    check_models(folder, simulated)
    assert schema_of(folder / "west") == schema_of(simulated)  # beside its models
    assert couriers.prepared == list(SITES)


ONE = {"algorithms": ["fedavg"], "rounds": 1}
TWO = {"sites": {"names": list(SITES), "patience": 0, "quorum": 2, "start": 2}}


def failures_of(run: Path) -> dict[str, str]:
    rows = pd.read_csv(run / "failures.csv", keep_default_na=False) if (run / "failures.csv").exists() else None
    return {} if rows is None else dict(zip(rows["client"], rows["reason"], strict=True))


def left_out(run: Path) -> dict[str, str]:
    return json.loads((run / "sites.json").read_text())["prepared"]["0"]["left_out"]


def values_of(run: Path, column: str) -> list[str]:
    (feature,) = [feature for feature in schema_of(run)["schema"]["features"] if feature["name"] == column]
    return feature["values"]


UNKNOWN = pytest.mark.filterwarnings("ignore:The value 'white' of the column:coterie.errors.CoterieWarning")
"""A site's own category, where its values do not enter the schema; in its log."""


@UNKNOWN
def test_a_site_that_refuses_is_named_and_trains_by_the_sums_of_the_others(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites", west={"policy": {"preprocessing": False}})
    deployed(folder, **ONE)[0].run_or_resume(tmp_path / "run", None)
    assert left_out(tmp_path / "run") == {
        "west": "policy.preprocessing does not allow sums over columns and values of categories to leave"
    }
    assert values_of(tmp_path / "run", "colour") == ["black", "blue", "green", "red"]
    assert failures_of(tmp_path / "run") == {}
    assert (folder / "west" / "models").exists()


@pytest.mark.parametrize("policy", [{"summaries": False}, {"payloads": ["theta"]}, {"noise": 1.0, "clip": 1.0}])
def test_what_a_policy_forbids_already_forbids_sums_too(policy: dict[str, Any], tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites", west={"policy": policy})
    _, couriers = deployed(folder)
    told = {"seeds": [0], "config": couriers.hello.tree()["hello"]["config"]}
    reply = couriers.taken("west", packed({"client": "west", "prepare": told})).tree()
    assert reply["trouble"][0] == "refused"
    assert "summaries" not in reply


def test_a_site_that_flower_simulates_is_found_by_its_name(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    _, couriers = deployed(folder)
    told = {"client": "north", "prepare": {"seeds": [0], "config": couriers.hello.tree()["hello"]["config"]}}
    reply = answer(packed(told), {"partition-id": 0}, {"sites-folder": str(folder)}).tree()
    assert (reply["client"], set(reply["summaries"])) == ("north", {"0"})


def test_rare_categories_stay_where_they_are(tmp_path: Path) -> None:
    rare = table(2)
    rare.loc[[0, 1], "colour"] = "violet"
    folder = placed(tmp_path / "sites", {"west": rare}, west={"policy": {"smallest_group": 3}})
    source = deployed(folder)[0].federation(0).source
    (colours,) = [feature["values"] for feature in source["schema"]["features"] if feature["name"] == "colour"]
    assert colours == ["black", "blue", "green", "red", "white"]


@UNKNOWN
def test_a_site_that_comes_late_gets_the_schema_then(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, algorithms=["fedavg"], **TWO)
    couriers.away = {"west"}
    exchange = couriers.exchange

    def joining(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        yield from exchange(packets, seconds, title)
        trees = [packet.tree() for packet in packets.values()]
        if any(tree.get("call") and tree["job"][0] == "fedavg" for tree in trees):
            couriers.away = set()  # the first round is over

    couriers.exchange = joining  # type: ignore[method-assign]
    experiment.run_or_resume(tmp_path / "run", None)
    assert couriers.prepared == ["east", "north"]
    assert left_out(tmp_path / "run") == {"west": "it was not there"}
    assert "white" not in values_of(tmp_path / "run", "colour")
    rows = pd.read_parquet(tmp_path / "run" / "history.parquet")
    rows = rows[(rows["phase"] == "prepare") & (rows["algorithm"] == "fedavg") & (rows["metric"].str.contains("down"))]
    size = len(json.dumps(schema_of(tmp_path / "run")["schema"], separators=(",", ":")))
    assert dict(zip(rows["round"], rows["value"], strict=True)) == {0: 2 * size, 2: size}
    assert (folder / "west" / "models").exists()


def test_who_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    experiment, couriers = deployed(placed(tmp_path / "sites"))
    couriers.change = lambda name, packet: None if name == "north" else packet
    assert experiment.federation(0).preparation is not None
    assert experiment.roster.agreed[0].left_out == {"north": "it did not answer within 600 s (sites.deadline)"}


def test_fewer_than_the_quorum_do_not_begin(tmp_path: Path) -> None:
    experiment, couriers = deployed(placed(tmp_path / "sites"), **ONE)
    couriers.change = lambda name, packet: "it left before it had answered" if name != "east" else packet
    with pytest.raises(CoterieError, match=r"1 of 3 sites have sent .* 2 are needed .*: north: it left before"):
        experiment.run_or_resume(tmp_path / "run", None)
    assert not (tmp_path / "run").exists()


def test_a_killed_server_reads_what_was_agreed_on(simulated: Path, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder)
    couriers.stop_before = 1
    with pytest.raises(KeyboardInterrupt):
        experiment.run_or_resume(tmp_path / "run", None)
    again, couriers = deployed(folder)
    again.run_or_resume(tmp_path / "run", None)
    assert couriers.prepared == []
    check_equal(tmp_path / "run", simulated)


def test_a_server_that_was_killed_before_it_was_stored_asks_again(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **ONE)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    experiment.roster.save = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        experiment.run_or_resume(tmp_path / "run", None)
    again, couriers = deployed(folder, **ONE)
    again.run_or_resume(tmp_path / "run", None)
    assert couriers.prepared == list(SITES)
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_table_that_cannot_be_summed_up_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    """The values in question stay at the site."""
    mixed = table(2).astype({"age": object})
    mixed.loc[4, "age"] = "secret"
    folder = placed(tmp_path / "sites", {"west": mixed})
    deployed(folder, **ONE)[0].run_or_resume(tmp_path / "run", None)
    sentence = "its site.yaml, data or policy are not in order: coterie deploy check tells there"
    assert left_out(tmp_path / "run") == {"west": sentence}
    assert set(failures_of(tmp_path / "run")) == {"west"}
    assert not any(b"secret" in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"age": [20, float("nan"), 0.0, 0]}, "holds a sum that is NaN, infinite or no number"),
        ({"age": [20, 1e300, 1.0, 0]}, "too large to compute with"),
        ({"age": [10**6, 1.0, 1.0, 0]}, "counts other rows than the 20"),
        ({"age": [20, 1.0, -1.0, 0]}, "sums that no numbers have"),
        ({"colour": [["red", 3], 0]}, "a category that is no text"),
        ({"colour": "red"}, "neither one of numbers nor one of categories"),
    ],
)
def test_an_absurd_summary_is_left_out(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    experiment, couriers = deployed(placed(tmp_path / "sites"))

    def changed(name: str, packet: Packet) -> Packet:
        tree = packet.tree()
        if name == "north":
            tree["summaries"]["0"] |= change
        return Packet(json.dumps(tree))

    couriers.change = changed
    federation = experiment.federation(0)
    assert sentence in experiment.roster.agreed[0].left_out["north"]
    assert federation.source["schema"]["features"][0]["mean"] == pytest.approx(
        pd.concat([table(number).query("part == 'train'") for number in (0, 2)])["age"].mean()
    )


def test_other_columns_and_other_kinds_are_left_out(tmp_path: Path) -> None:
    odd = {"north": table(1).rename(columns={"age": "years"}), "west": table(2).assign(age="old")}
    experiment, _ = deployed(placed(tmp_path / "sites", odd), sites={"names": list(SITES), "patience": 0, "quorum": 1})
    experiment.federation(0)
    assert experiment.roster.agreed[0].left_out == {
        "north": "it has no column 'age', which most sites have",
        "west": "the column 'age' holds categories there, but numbers elsewhere: correct it there, or list it "
        "under federation.categorical",
    }


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        (
            {"data": {"table": "rows.csv", "target": "age"}},
            "data.target is another than the experiment's state: leave it out",
        ),
        ({"data": {"table": "rows.csv", "standardise": "own"}}, "data.standardise: own has no effect"),
        ({"data": {"table": "rows.csv", "test": "rows.csv"}}, "data.test names a file, but the column 'part'"),
        ({"data": {"npz": "rows.npz"}}, "preprocessing: federated is for tables"),
    ],
)
def test_a_site_file_that_says_otherwise(site: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites", west=site)
    experiment, couriers = deployed(folder)
    kind, told = couriers.taken("west", couriers.hello).tree()["trouble"]
    assert (sentence in told) is (kind == "refused")
    assert experiment.columns is not None
    with pytest.raises(CoterieError, match=sentence):
        OwnTable.read(SiteFile.read(folder / "west" / "site.yaml"), experiment.columns, seed=0)


def test_columns_that_a_site_does_not_list_are_not_looked_at(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites", west={"data": {"table": "rows.csv", "features": ["age", "ward"]}})
    _, couriers = deployed(folder, {**COLUMNS, "features": ["age", "colour", "ward"]})
    reply = couriers.taken("west", couriers.hello).tree()
    assert reply["trouble"] == [
        "refused", "data.features does not list the column 'colour', which the experiment asks for"
    ]  # fmt: skip


def test_a_regression_with_files_of_its_own(tmp_path: Path) -> None:
    """Without a column that says the split it is drawn, or lies in a file; the numbers are those of the training rows."""
    data = {"table": "rows.csv", "validation": 0.25, "test": "rows.csv", "features": ["pressure", "colour"]}
    folder = placed(tmp_path / "sites", **{name: {"data": data} for name in SITES})
    columns = {"target": "age", "task": "regression", "missing": "mean", "preprocessing": "federated"}
    experiment, _ = deployed(folder, columns, **ONE, report="last")
    experiment.run_or_resume(tmp_path / "run", None)
    federation = experiment.federation(0)
    assert federation.test.n.tolist() == [30, 30, 30]
    assert federation.train.n.tolist() == [22, 22, 22]
    assert federation.feature_shape == (6,)
    assert failures_of(tmp_path / "run") == {}


def test_each_seed_has_a_schema_of_the_rows_that_it_trains_on(tmp_path: Path) -> None:
    columns = {key: value for key, value in COLUMNS.items() if key != "split"} | {"ignore": ["part"]}
    experiment, couriers = deployed(placed(tmp_path / "sites"), columns, seeds=[0, 1])
    first, second = (experiment.federation(seed).source["schema"] for seed in (0, 1))
    assert [feature["name"] for feature in first["features"]] == [feature["name"] for feature in second["features"]]
    assert first["features"][0]["mean"] != second["features"][0]["mean"]
    assert couriers.prepared == list(SITES)  # once for both


def test_targets_are_standardised_by_the_sums_of_all_sites(tmp_path: Path) -> None:
    columns = {
        "target": "age", "task": "regression", "split": "part", "missing": "mean", "categorical": ["ward"],
        "preprocessing": "federated", "ignore": ["state"],
    }  # fmt: skip
    path = simulate(tmp_path, columns)
    folder = placed(tmp_path / "sites")
    deployed(folder, columns)[0].run_or_resume(tmp_path / "deployed", None)
    schema = schema_of(tmp_path / "deployed")["schema"]
    trained = pd.concat([rows[rows["part"] == "train"] for rows in map(table, range(3))])["age"]
    assert schema["target_mean"] == [pytest.approx(trained.mean(), rel=1e-12)]
    assert schema["target_std"] == [pytest.approx(trained.std(ddof=0), rel=1e-12)]
    assert schema_of(tmp_path / "deployed") == schema_of(path)
    check_equal(tmp_path / "deployed", path)
    check_models(folder, path)


def test_a_site_without_sums_of_its_target_is_left_out(tmp_path: Path) -> None:
    columns = {"target": "age", "task": "regression", "missing": "mean", "preprocessing": "federated"}
    experiment, couriers = deployed(placed(tmp_path / "sites"), columns, **ONE, **TWO)

    def without(name: str, packet: Packet) -> Packet:
        tree = packet.tree()
        if name == "west":
            del tree["summaries"]["0"]["age"]
        return packed(tree)

    couriers.change = without
    experiment.federation(0)
    assert experiment.roster.agreed[0].left_out == {"west": "it has sent no sum of its target 'age'"}


def test_each_fold_of_a_guard_agrees_anew(tmp_path: Path) -> None:
    """What validates in a fold enters no sum of it, and the decision is about all rows that are not for testing."""
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **{**ONE, "algorithms": ["local", "fedavg"]}, guard={"folds": 2})
    experiment.run_or_resume(tmp_path / "run", None)
    assert couriers.prepared == 3 * list(SITES)
    means = [
        schema_of(place)["schema"]["features"][0]["mean"]
        for place in (tmp_path / "run", *(tmp_path / "run" / "guard" / f"fold{i}" for i in range(2)))
    ]
    assert len(set(means)) == 3
    decided = pd.read_csv(tmp_path / "run" / "guard.csv")
    assert list(decided["client"]) == list(SITES)
    assert (decided["n"] == 25 + 5).all()  # each validates in one fold, and five in the run itself
    assert (folder / "west" / "models" / "fedavg-guard").exists()
    assert schema_of(folder / "west") == schema_of(tmp_path / "run")
