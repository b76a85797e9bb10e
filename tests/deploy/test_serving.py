"""A deployed experiment has the run directory of the simulation, though its data lie at sites; no Flower is needed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faulty
import pandas as pd
import pytest
import yaml
from comparing import check_disturbed, check_equal, check_models, told

import coterie
from coterie.config import parse_config
from coterie.deploy.roster import Roster
from coterie.deploy.serving import Deployed
from coterie.deploy.siteside import answer
from coterie.engines import SitesLost
from coterie.engines.wire import Packet
from coterie.errors import CoterieError
from coterie.production.choice import choose
from coterie.reports.page.summary import verdict
from coterie.runs import read_model
from tracked import of_tensorboard, of_the_history

SITES = ("client-00", "client-01", "client-02")
EXPERIMENT: dict[str, Any] = {
    "name": "wards",
    "federation": {
        "source": "digits", "partition": {"rule": "rotation", "clients": 3}, "train": 20, "validation": 8, "test": 12,
    },
    "model": {"name": "mlp", "hidden": [6]},
    "training": {"epochs": 1, "batch_size": 10, "lr": 0.1},
    "algorithms": ["local", "fedavg", {"name": "fedora", "variant": "paper"}],
    "rounds": 3,
    "evaluate_every": 1,
    "dtype": "float64",
}  # fmt: skip


class Couriers:
    """Carry every message to the site's own code, as Flower's client app would."""

    def __init__(self, folder: Path, roster: Roster, hello: Packet) -> None:
        self.folder, self.roster, self.hello = folder, roster, hello
        self.away: set[str] = set()
        self.stop_before: int | None = None
        self.troubles: list[str] = []

    def reachable(self) -> frozenset[str]:
        for number, name in enumerate(self.roster.names):
            if name not in self.roster.nodes and name not in self.away:
                try:
                    self.roster.meet(100 + number, self.taken(name, self.hello).tree())
                except CoterieError as error:
                    self.troubles.append(str(error))
        return frozenset(self.roster.nodes) - self.away

    def wait(self, count: int, seconds: float) -> frozenset[str]:
        return self.reachable()

    def taken(self, name: str, packet: Packet) -> Packet:
        return answer(packet, {"client-id": name, "site-file": str(self.folder / name / "site.yaml")}, {})

    def exchange(self, packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        for name, packet in packets.items():
            if self.stop_before is not None and packet.tree()["round"] >= self.stop_before:
                raise KeyboardInterrupt
            yield name, self.taken(name, packet)


def placed(folder: Path, **changes: Any) -> Path:
    """A folder of sites, each of which is a client of the experiment's own source."""
    section = EXPERIMENT["federation"]
    for name in SITES:
        own = {"client": name, "data": {**section, "client": name}, **changes.get(name, {})}
        (folder / name).mkdir(parents=True)
        (folder / name / "site.yaml").write_text(yaml.safe_dump(own))
    return folder


def deployed(folder: Path, **changes: Any) -> tuple[Deployed, Couriers]:
    config = parse_config({**EXPERIMENT, "sites": {"names": list(SITES), "patience": 0, "quorum": 2}, **changes})
    made: list[Couriers] = []

    def posting(roster: Roster, hello: Packet) -> Couriers:
        made.append(Couriers(folder, roster, hello))
        return made[0]

    return Deployed(config, posting), made[0]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulated") / "run"
    coterie.run(EXPERIMENT, output=path)
    return path


def test_the_run_directory_is_that_of_the_simulation(simulated: Path, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, _ = deployed(folder)
    result = experiment.run_or_resume(tmp_path / "run", None)
    assert result.directory == tmp_path / "run"
    check_equal(tmp_path / "run", simulated)
    check_models(folder, simulated)
    assert not (tmp_path / "run" / "models").exists()


@pytest.mark.parametrize("round", [1, 3])
def test_a_server_that_was_killed_goes_on(round: int, simulated: Path, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder)
    couriers.stop_before = round
    with pytest.raises(KeyboardInterrupt):
        experiment.run_or_resume(tmp_path / "run", None)
    again, _ = deployed(folder)
    again.run_or_resume(tmp_path / "run", None)
    check_equal(tmp_path / "run", simulated)
    check_models(folder, simulated)


def test_a_finished_run_is_not_overwritten(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    deployed(folder, rounds=1, algorithms=["local"])[0].run_or_resume(tmp_path / "run", None)
    with pytest.raises(CoterieError, match="holds a finished run"):
        deployed(folder, rounds=1, algorithms=["local"])[0].run_or_resume(tmp_path / "run", None)


def test_a_run_of_another_experiment_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    deployed(folder, rounds=1, algorithms=["local"])[0].run_or_resume(tmp_path / "run", None)
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(
        CoterieError, match=r"is a run of the experiment \S+, not of other: .*\(bash run\.sh RUN FILE\)"
    ):
        deployed(folder, name="other")[0].run_or_resume(tmp_path / "run", None)


def test_a_site_that_never_came_is_named(tmp_path: Path) -> None:
    experiment, couriers = deployed(placed(tmp_path / "sites"))
    couriers.away = {"client-01"}
    with pytest.raises(CoterieError, match="client-01 did not come within 0 s"):
        experiment.run_or_resume(tmp_path / "run", None)
    assert not (tmp_path / "run").exists()


def test_a_site_that_joins_later_is_taken_in(tmp_path: Path) -> None:
    """As one that was away in the first round."""
    coterie.run({**EXPERIMENT, "absent": {1: ["client-01"]}, "algorithms": ["fedora"]}, output=tmp_path / "simulated")
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(
        folder, algorithms=["fedora"], sites={"names": list(SITES), "start": 2, "patience": 0}
    )
    couriers.away = {"client-01"}
    exchange = couriers.exchange

    def joining(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        yield from exchange(packets, seconds, title)
        trees = [packet.tree() for packet in packets.values()]
        if any(t["job"][0] == "fedora" and t["call"] and t["call"]["method"] == "local_update" for t in trees):
            couriers.away = set()  # the first round is over

    couriers.exchange = joining  # type: ignore[method-assign]
    experiment.run_or_resume(tmp_path / "run", None)
    ours, theirs = (told(pd.read_parquet(tmp_path / name / "clients.parquet")) for name in ("run", "simulated"))
    keys = ["algorithm", "seed", "round", "split", "metric", "client"]
    ours, theirs = (
        table[(table["phase"] == "evaluate") & (table["split"] == "test") & (table["algorithm"] == "fedora")
              & (table["round"] > 0)].set_index(keys).sort_index()
        for table in (ours, theirs)
    )  # fmt: skip
    assert set(ours.loc[pd.IndexSlice[:, :, 3], "n"]) == {12}
    pd.testing.assert_frame_equal(
        ours[["n", "value"]].dropna(), theirs.loc[ours.dropna().index, ["n", "value"]], atol=1e-8, rtol=0
    )


def test_a_site_that_was_away_in_the_reported_round_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It keeps its last model, nobody says that it ended no worse off, and what is said counts those who are there."""
    still = {**EXPERIMENT["training"], "lr": 1e-300}  # all rounds are equal, and the first is reported
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, algorithms=["local", "fedavg"], training=still)
    exchange = couriers.exchange

    def leaving(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        away = "local, round 1" in title
        yield from exchange({n: p for n, p in packets.items() if not (away and n == "client-01")}, seconds, title)

    couriers.exchange = leaving  # type: ignore[method-assign]
    result = experiment.run_or_resume(tmp_path / "run", None)
    told = "local: round 0 is reported, in which client-01 was away: it keeps its model of round 3"
    assert [record.message for record in caplog.records if record.name == "coterie.server"] == [told]
    logged = [record.message for record in caplog.records if record.name == "coterie.site"]
    assert any("local, round 3 (round 0 is reported, in which this site was away), is in" in line for line in logged)
    alone = next(row for row in result.rows if row["algorithm"] == "local")
    assert alone["undefined"]["accuracy"] == {"client-01": "no result in round 0, as it was away or failed"}
    said = " ".join(verdict(result.rows))
    assert "With fedavg, 100 % of the clients that can be compared (2 of 3) end no worse off than alone" in said


def test_a_site_with_another_version_is_not_let_in(tmp_path: Path) -> None:
    experiment, couriers = deployed(placed(tmp_path / "sites"))
    tree = {**couriers.taken("client-01", couriers.hello).tree(), "coterie": "0.0.1"}
    with pytest.raises(CoterieError, match=r"client-01 has Coterie 0.0.1, the server \S+: install the same at both"):
        experiment.roster.meet(101, tree)
    del tree["coterie"]
    with pytest.raises(CoterieError, match="client-01 has Coterie another version"):
        experiment.roster.meet(101, tree)


def test_the_models_of_a_deployed_run_are_at_the_sites(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    deployed(folder, rounds=1, algorithms=["local", "fedora"])[0].run_or_resume(tmp_path / "run", None)
    with pytest.raises(CoterieError, match="is a run of real sites, whose models stay there"):
        choose(tmp_path / "run", "client-00", None, None)
    (found,) = choose(folder / "client-00", None, "fedora", None)
    assert found.system == "fedora-released"


def test_a_site_learns_what_its_models_reach_on_its_own_test_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "coterie.site")
    folder = placed(tmp_path / "sites")
    experiment, _ = deployed(folder, algorithms=["local", "fedavg"], metrics=["auroc"])
    result = experiment.run_or_resume(tmp_path / "run", None)
    table = pd.read_parquet(tmp_path / "run" / "clients.parquet")
    chosen = {row["algorithm"]: row["chosen_rounds"][0] for row in result.rows}
    for method, round in chosen.items():
        (found,) = choose(folder / "client-01", None, method, None)
        at = table[(table["algorithm"] == method) & (table["round"] == round) & (table["client"] == "client-01")]
        own = at[(at["split"] == "test") & (at["phase"] == "evaluate")].set_index("metric")["value"].dropna()
        assert {"accuracy", "loss"} <= set(found.facts["results"])
        assert found.facts["results"] == pytest.approx(own.to_dict())
    (exported,) = coterie.export(folder / "client-01", "client-01", algorithm="fedavg", format="state_dict")
    own, alone = (choose(folder / "client-01", None, name, None)[0].facts["results"] for name in ("fedavg", "local"))
    card = (exported.directory / "README.md").read_text()
    assert f"| accuracy | {own['accuracy']:.4g} | {alone['accuracy']:.4g} |" in card
    said = f"on the test data of this site it has loss {own['loss']:.4g}"
    assert any(record.message.startswith(said) for record in caplog.records)


def test_a_site_that_joined_later_is_known_in_the_next_sitting(tmp_path: Path) -> None:
    """By its node, and by what its data were like."""
    folder = placed(tmp_path / "sites")
    changes: dict[str, Any] = {
        "algorithms": ["local"], "sites": {"names": list(SITES), "start": 2, "patience": 0, "quorum": 2},
    }  # fmt: skip
    experiment, couriers = deployed(folder, **changes)
    couriers.away, couriers.stop_before = {"client-01"}, 3
    exchange = couriers.exchange

    def joining(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        yield from exchange(packets, seconds, title)
        if "round 1" in title:
            couriers.away = set()

    couriers.exchange = joining  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        experiment.run_or_resume(tmp_path / "run", None)
    again, anew = deployed(folder, **changes)
    again.roster.load(tmp_path / "run")
    assert again.roster.nodes["client-01"] == 101
    assert again.roster.federation(0).train.n.tolist() == [20, 20, 20]
    with pytest.raises(CoterieError, match="another node than before, 7, says that it is client-01"):
        again.roster.meet(7, anew.taken("client-01", anew.hello).tree())
    site = yaml.safe_load((folder / "client-01" / "site.yaml").read_text())
    site["data"]["train"] = 19
    (folder / "client-01" / "site.yaml").write_text(yaml.safe_dump(site))
    with pytest.raises(CoterieError, match="the data of client-01 have changed since the run began"):
        again.roster.meet(101, anew.taken("client-01", anew.hello).tree())


def test_sites_that_leave_stop_the_run_which_goes_on_when_they_are_back(simulated: Path, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder)
    exchange = couriers.exchange

    def leaving(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        yield from exchange(packets, seconds, title)
        if "fedavg, round 2" in title:
            couriers.away = {"client-00", "client-02"}

    couriers.exchange = leaving  # type: ignore[method-assign]
    with pytest.raises(SitesLost, match="only 1 of 3 sites are there, and 2 are needed"):
        experiment.run_or_resume(tmp_path / "run", None)
    deployed(folder)[0].run_or_resume(tmp_path / "run", None)
    check_equal(tmp_path / "run", simulated)


NONSENSE = {
    "raise": "RuntimeError in the client's code; its log has the traceback",
    "nan": "NaN or infinite",
    "shape": "its answer dc is models \\(1,\\) of",
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_site_that_sends_nonsense_is_named_and_the_others_go_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"policy": {"algorithms": ["built-in", "faulty:Faulty"]}}
    folder = placed(tmp_path / "sites", **dict.fromkeys(SITES, policy))
    fault = tmp_path / "faults" / "nonsense" / "client-01-2"
    fault.parent.mkdir(parents=True)
    fault.write_text(kind)
    changes: dict[str, Any] = {"algorithms": [{"name": "faulty:Faulty", "variant": "nonsense"}], "report": "last"}
    experiment, _ = deployed(folder, **changes)
    with monkeypatch.context() as patch:
        patch.setenv(faulty.FOLDER, str(tmp_path / "faults"))
        experiment.run_or_resume(tmp_path / "run", None)
    (failure,) = pd.read_csv(tmp_path / "run" / "failures.csv").itertuples()
    assert (failure.client, failure.round) == ("client-01", 2)
    assert re.search(NONSENSE[kind], failure.reason)
    coterie.run({**EXPERIMENT, **changes, "absent": {2: ["client-01"]}}, output=tmp_path / "simulated")
    check_disturbed(tmp_path / "run", tmp_path / "simulated", folder, "faulty")


POLICIES = {
    "algorithms": ({"algorithms": ["local", "fedavg"]}, "policy.algorithms does not allow fedora"),
    "payloads": ({"payloads": ["theta"]}, "policy.payloads does not allow fedora to send basis"),
    "summaries": ({"summaries": False}, "policy.summaries does not allow fedora to send"),
    "size": ({"largest_megabytes": 0.0001}, "policy.largest_megabytes does not allow an answer of fedavg"),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_site_whose_policy_forbids_something_is_named_and_the_others_go_on(kind: str, tmp_path: Path) -> None:
    policy, sentence = POLICIES[kind]
    folder = placed(tmp_path / "sites", **{"client-01": {"policy": policy}})
    experiment, _ = deployed(folder, rounds=2)
    experiment.run_or_resume(tmp_path / "run", None)
    failures = pd.read_csv(tmp_path / "run" / "failures.csv")
    assert set(failures["client"]) == {"client-01"}
    assert failures["reason"].str.contains(sentence).any()
    clients = pd.read_parquet(tmp_path / "run" / "clients.parquet")
    last = clients[(clients["round"] == 2) & (clients["split"] == "test") & (clients["metric"] == "accuracy")]
    assert set(last.loc[last["value"].notna(), "client"]) >= {"client-00", "client-02"}


def test_results_that_a_policy_keeps_at_a_site_are_named_so(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites", **{"client-01": {"policy": {"evaluation": False}}})
    result = deployed(folder, rounds=1, algorithms=["local", "fedavg"])[0].run_or_resume(tmp_path / "run", None)
    for row in result.rows:
        assert row["undefined"]["accuracy"] == {"client-01": "its policy lets no result leave (policy.evaluation)"}


@pytest.mark.parametrize("report", ["best_val", "last"])
def test_where_no_site_tells_results_they_get_their_models_all_the_same(report: str, tmp_path: Path) -> None:
    """Also where the run was stopped in between."""
    folder = placed(tmp_path / "sites", **{name: {"policy": {"evaluation": False}} for name in SITES})
    changes: dict[str, Any] = {"report": report, "algorithms": ["local", "fedavg"]}
    experiment, couriers = deployed(folder, **changes)
    couriers.stop_before = 3
    with pytest.raises(KeyboardInterrupt):
        experiment.run_or_resume(tmp_path / "run", None)
    result = deployed(folder, **changes)[0].run_or_resume(tmp_path / "run", None)
    assert result.rows == []
    assert result.remarks[0].startswith("local, fedavg: no client has told a result, so that none is reported")
    assert result.table().row_count == 0
    for name in SITES:
        stored = {path.parts[-3]: read_model(path.parent, name).facts for path in folder.glob(f"{name}/models/*/*/*")}
        assert {method: facts["round"] for method, facts in stored.items()} == {"local": "3", "fedavg": "3"}


def test_a_run_that_all_sites_refuse_says_why(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites", **{name: {"policy": {"algorithms": "ditto"}} for name in SITES})
    with pytest.raises(SitesLost, match=r"\(client-00: policy.algorithms does not allow local; client-01: policy"):
        deployed(folder, algorithms=["local"])[0].run_or_resume(tmp_path / "run", None)


def test_sites_understand_an_experiment_with_absences(tmp_path: Path) -> None:
    experiment, _ = deployed(placed(tmp_path / "sites"), algorithms=["local"], absent={2: ["client-01"]})
    experiment.run_or_resume(tmp_path / "run", None)
    assert pd.read_csv(tmp_path / "run" / "failures.csv").empty


@pytest.mark.parametrize("named", [True, False])
def test_a_model_of_ones_own_needs_the_sites_permission(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wardnets.py").write_text(
        "from torch import nn\n"
        "def net(feature_shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    allowing = {name: {"policy": {"models": ["built-in", "wardnets:net"]}} for name in SITES}
    folder = placed(tmp_path / "sites", **(allowing if named else {}))
    experiment, couriers = deployed(folder, rounds=1, algorithms=["local"], model="wardnets:net")
    if named:
        experiment.run_or_resume(tmp_path / "run", None)
        return
    with pytest.raises(CoterieError, match="did not come"):
        experiment.run_or_resume(tmp_path / "run", None)
    assert couriers.troubles[0] == "client-00 cannot take part: policy.models does not allow wardnets:net"


def test_a_model_that_the_policy_does_not_name_is_never_imported(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text("raise SystemExit('imported')")
    experiment, couriers = deployed(placed(tmp_path / "sites"))
    for model in ("foreign:net", {"name": "foreign:net", "hidden": [3]}):
        order = {
            "format": 1, "run": "r", "job": ["local", "", 0], "config": {**experiment.told, "model": model},
            "client": "client-00", "number": 0, "roster": 3, "exchange": "000001-ab-00001", "round": 1, "base": None,
            "evaluate": None, "call": {"method": "local_update", "payload": {}}, "best": None, "last": False,
        }  # fmt: skip
        reply = couriers.taken("client-00", Packet(json.dumps(order))).tree()
        assert reply["trouble"] == ["refused", "policy.models does not allow foreign:net"]


def test_a_method_that_the_policy_does_not_name_is_never_imported(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text("raise SystemExit('imported')")
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder)
    config = {**experiment.told, "algorithms": ["foreign:Method"]}
    order = {
        "format": 1, "run": "r", "job": ["method", "", 0], "config": config, "client": "client-00", "number": 0, "roster": 3,
        "exchange": "000001-ab-00001", "round": 1, "base": None, "evaluate": None,
        "call": {"method": "local_update", "payload": {}}, "best": None, "last": False,
    }  # fmt: skip
    reply = couriers.taken("client-00", Packet(json.dumps(order))).tree()
    assert reply["trouble"] == ["refused", "policy.algorithms does not allow foreign:Method"]


@pytest.mark.parametrize("others", [["fedavg"], []])
def test_a_method_that_one_site_does_not_name_keeps_it_from_no_other(others: list[str], tmp_path: Path) -> None:
    listing = {name: {"policy": {"algorithms": ["built-in", "faulty:Faulty"]}} for name in SITES[1:]}
    folder = placed(tmp_path / "sites", **listing)
    experiment, _ = deployed(folder, rounds=2, algorithms=[*others, "faulty:Faulty"])
    experiment.run_or_resume(tmp_path / "run", None)
    failures = pd.read_csv(tmp_path / "run" / "failures.csv")
    assert set(zip(failures["algorithm"], failures["client"], failures["reason"], strict=True)) == {
        ("faulty", "client-00", "policy.algorithms does not allow faulty:Faulty")
    }
    models = {name: {path.name for path in (folder / name / "models").iterdir()} for name in SITES}
    assert models == {name: {"local", *others, *(["faulty"] if name in listing else [])} for name in SITES}


def test_two_methods_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that does not load the one could take the other for it."""
    (tmp_path / "namesakes.py").write_text("from coterie.algorithms.ditto import Ditto\nclass Mine(Ditto):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CoterieError, match="two different methods are called ditto"):
        deployed(tmp_path, algorithms=[{"name": "ditto", "lambda": 0.5}, "namesakes:Mine"])


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        (
            {"data": {"npz": "nothing.npz"}},
            "client-01 cannot take part: its site.yaml, data or policy are not in order",
        ),
        (
            {"policy": {"smallest_examples": 1000}},
            "client-01 cannot take part: policy.smallest_examples does not allow",
        ),
        ({"policy": {"clipp": 1.0}}, "client-01 cannot take part: its site.yaml"),
    ],
)
def test_a_site_that_cannot_take_part_says_so_in_a_sentence(site: Any, sentence: str, tmp_path: Path) -> None:
    experiment, couriers = deployed(placed(tmp_path / "sites", **{"client-01": site}))
    with pytest.raises(CoterieError, match="client-01 did not come"):
        experiment.run_or_resume(tmp_path / "run", None)
    assert sentence in couriers.troubles[0]


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ({"a": 1}, "it failed (failed)"),
        (7, "it failed (failed)"),
        ([], "it failed (failed)"),
        (["setup"], "it failed (setup)"),
        (["setup", {"a": 1}], "{'a': 1}"),
    ],
)
def test_a_site_that_says_strangely_why_it_cannot_take_part_is_not_let_in(trouble: Any, sentence: str) -> None:
    with pytest.raises(CoterieError, match=re.escape(f"client-00 cannot take part: {sentence}")):
        Roster(SITES, (0,)).meet(1, {"client": "client-00", "trouble": trouble})


CARD = {"train": 20, "validation": 3, "test": 4, "shape": [2], "task": "classification", "classes": 2}


def greeting(name: str, **card: Any) -> dict[str, Any]:
    """What a site says of itself and of its data."""
    return {"client": name, "coterie": version("coterie"), "cards": {"0": {**CARD, **card}}}


def test_however_many_examples_a_site_says_that_it_has_the_run_goes_on(tmp_path: Path) -> None:
    """The server has none of them and needs no room for them, neither now nor when the run is resumed."""
    roster = Roster(SITES, (0,), place=tmp_path)
    for number, (name, n) in enumerate(zip(SITES, (20, 2**40, 2**40), strict=True)):
        roster.meet(number, greeting(name, train=n))
    again = Roster(SITES, (0,))
    again.load(tmp_path)
    for each in (roster, again):
        assert each.federation(0).train.n.tolist() == [20, 2**40, 2**40]


@pytest.mark.parametrize(
    "card", [{"shape": [2**40]}, {"shape": [-1]}, {"shape": [0]}, {"shape": [2**15, 2**14]}, {"train": 2**41}]
)
def test_a_site_whose_data_no_server_could_imagine_is_not_let_in(card: dict[str, Any], tmp_path: Path) -> None:
    roster = Roster(SITES, (0,), place=tmp_path)
    with pytest.raises(CoterieError, match="client-00 does not say what its data are like"):
        roster.meet(1, greeting("client-00", **card))
    assert list(tmp_path.iterdir()) == []


def test_the_data_of_all_sites_are_alike_with_every_seed() -> None:
    roster = Roster(SITES, (0, 1))
    first, second = greeting("client-00"), greeting("client-01")
    first["cards"]["1"], second["cards"]["1"] = CARD, {**CARD, "shape": [3]}
    roster.meet(1, first)
    with pytest.raises(CoterieError, match=r"client-01 .* shape \(3,\)\) are not like those of client-00"):
        roster.meet(2, second)


def test_noise_is_drawn_once_for_a_question_and_counted(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    policy = {"clip": 0.5, "noise": 1.0, "evaluation": True}
    folder = placed(tmp_path / "sites", **{"client-01": {"policy": policy}})
    experiment, couriers = deployed(folder, rounds=2, algorithms=["fedavg"])
    sent: list[Packet] = []
    exchange = couriers.exchange

    def noting(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        sent.extend(packet for name, packet in packets.items() if name == "client-01")
        yield from exchange(packets, seconds, title)

    couriers.exchange = noting  # type: ignore[method-assign]
    experiment.run_or_resume(tmp_path / "run", None)
    asked = next(p for p in sent if p.tree()["job"][0] == "fedavg" and p.tree()["call"] and p.tree()["round"] == 2)
    first, second = (couriers.taken("client-01", asked) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first.arrays, second.arrays, strict=True))
    assert len(first.arrays) > 0


def test_sites_are_not_told_where_the_server_tracks(tmp_path: Path) -> None:
    secret = {"tracking": {"mlflow": {"uri": "https://name:word@mlflow.example.org"}}}
    experiment, couriers = deployed(placed(tmp_path / "sites"), **secret)
    assert experiment.config.tracking is not None
    assert "tracking" not in experiment.told
    assert "mlflow" not in str(couriers.hello.tree())


def test_late_evaluations_are_tracked_as_of_their_round(tmp_path: Path) -> None:
    wanted = {"tracking": {"tensorboard": True}}
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **wanted)
    couriers.stop_before = 3
    with pytest.raises(KeyboardInterrupt):
        experiment.run_or_resume(tmp_path / "run", None)
    deployed(folder, **wanted)[0].run_or_resume(tmp_path / "run", None)
    assert of_tensorboard(tmp_path / "run") == of_the_history(tmp_path / "run")
