"""The guard at real sites decides as the simulation does, on a few numbers of each site; no Flower is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from comparing import check_equal, check_models
from test_serving import EXPERIMENT, SITES, Couriers, deployed, placed

import coterie
from coterie.deploy import reading
from coterie.engines import SitesLost
from coterie.engines.wire import Packet, packed
from coterie.federation import Federation
from coterie.runs import RunDirectory, load_losses

GUARDED: dict[str, Any] = {
    "algorithms": ["local", "fedavg", {"name": "fedora", "variant": "paper"}],
    "training": {"epochs": 2, "batch_size": 10, "lr": 0.4},
    "rounds": 2,
    "guard": {"folds": 2, "confidence": 0.5},
    "page": False,
}  # fmt: skip
SMALL: dict[str, Any] = {**GUARDED, "algorithms": ["local", "ditto"], "rounds": 1}
ALL = 20 + 8 + 8
"""Examples of a client that validate: each in a fold, and those of the run itself once more."""


@pytest.fixture(scope="module", autouse=True)
def kept_data() -> Iterator[None]:
    """A site builds its source for every message; here it does so once for each seed and fold."""
    build, known = reading.build_federation, dict[str, Federation]()

    def build_once(section: Any, *, seed: int, data_dir: Path | None) -> Federation:
        key = f"{seed} {section.model_dump_json()}"
        if key not in known:
            known[key] = build(section, seed=seed, data_dir=data_dir)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "build_federation", build_once)
        yield


def check_guard(deployed: Path, simulated: Path) -> None:
    """Both tables say the same of every client."""
    ours, theirs = (pd.read_csv(path / "guard.csv") for path in (deployed, simulated))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=0, atol=1e-8)


def decided(run: Path, algorithm: str) -> pd.DataFrame:
    """What the guard decided of a method, by client."""
    table = pd.read_csv(run / "guard.csv").set_index("client")
    return table[table["algorithm"] == algorithm]


def watched(couriers: Couriers, see: Callable[[str, dict[str, Packet]], None]) -> None:
    """Call ``see`` before each exchange."""
    exchange = couriers.exchange

    def watching(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        packets = dict(packets)
        see(title, packets)
        return exchange(packets, seconds, title)

    couriers.exchange = watching  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulated") / "run"
    coterie.run({**EXPERIMENT, **GUARDED}, output=path)
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run, its sites, and what they have sent to the guard."""
    path = tmp_path_factory.mktemp("deployed")
    experiment, couriers = deployed(placed(path / "sites"), **GUARDED)
    exchange, answers = couriers.exchange, list[Packet]()

    def noting(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        for name, answer in exchange(packets, seconds, title):
            if "guard" in title and isinstance(answer, Packet):
                answers.append(answer)
            yield name, answer

    couriers.exchange = noting  # type: ignore[method-assign]
    result = experiment.run_or_resume(path / "run", None)
    assert result.remarks[0].startswith("Clients keep the model that they trained alone")
    (path / "answers.json").write_text(json.dumps([[answer.text, len(answer.arrays)] for answer in answers]))
    return path


def test_the_guard_decides_as_in_the_simulation(simulated: Path, undisturbed: Path) -> None:
    check_guard(undisturbed / "run", simulated)
    check_equal(undisturbed / "run", simulated)
    check_models(undisturbed / "sites", simulated)
    table = decided(simulated, "fedavg")
    assert set(table["keeps"]) == {"local", "personalised"}
    assert (table["n"] == ALL).all()


def test_a_site_holds_the_very_model_that_it_keeps_and_none_of_a_fold(undisturbed: Path) -> None:
    for client, keeps in decided(undisturbed / "run", "fedavg")["keeps"].items():
        models = undisturbed / "sites" / str(client) / "models"
        assert sorted(path.name for path in models.iterdir()) == [
            "fedavg", "fedavg-guard", "fedora-paper", "fedora-paper+guard", "local",
        ]  # fmt: skip
        source = "fedavg" if keeps == "personalised" else "local"
        kept, its = (models / name / "seed0" / f"{client}.safetensors" for name in ("fedavg-guard", source))
        assert kept.read_bytes() == its.read_bytes()


def test_a_site_sends_three_numbers_a_comparison(undisturbed: Path) -> None:
    answers = json.loads((undisturbed / "answers.json").read_text())
    assert len(answers) == len(SITES) * (3 + 1)
    for text, arrays in answers:
        tree = json.loads(text)
        assert arrays == 0
        assert set(tree) in ({"client", "evidence"}, {"client", "kept"})
        for comparison in tree.get("evidence", []):
            ((n, _, _),) = comparison
            assert n in (8, 14)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulation of `SMALL`."""
    path = tmp_path_factory.mktemp("simulated") / "run"
    coterie.run({**EXPERIMENT, **SMALL}, output=path)
    return path


STOPS = ("fold 1 of 2, guard", "fold 2 of 2, ditto", "fold 2 of 2, guard", "guard, verdict")


def test_a_server_that_was_stopped_goes_on_with_what_is_left(small: Path, tmp_path: Path) -> None:
    """By too few answers, then killed in the middle of a fold, after it, and before the sites know what they keep."""
    folder = placed(tmp_path / "sites")
    titles: list[str] = []

    def stopped(experiment: Any, couriers: Couriers, where: str) -> None:
        titles.clear()

        def stopping(title: str, packets: dict[str, Packet]) -> None:
            titles.append(title)
            if title.startswith(where):
                packets.clear()
                if where != STOPS[0]:
                    raise KeyboardInterrupt

        watched(couriers, stopping)
        with pytest.raises((KeyboardInterrupt, SitesLost)) as caught:
            experiment.run_or_resume(tmp_path / "run", None)
        if where == STOPS[0]:
            assert "only 0 sites have told the guard how their models compare, and 2 are needed" in str(caught.value)

    for where in STOPS:
        stopped(*deployed(folder, **SMALL), where)
    assert titles == ["fold 2 of 2, guard, evidence", STOPS[-1]]
    deployed(folder, **SMALL)[0].run_or_resume(tmp_path / "run", None)
    check_guard(tmp_path / "run", small)
    check_equal(tmp_path / "run", small)
    check_models(folder, small)


def test_a_site_that_is_away_during_a_fold_tells_nothing_of_it(small: Path, tmp_path: Path) -> None:
    """Its decision rests on the rest, and the others have the fold without it."""
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **SMALL)

    def leaving(title: str, packets: dict[str, Packet]) -> None:
        last = title == "guard, evidence" or (title.startswith("fold 1") and "guard" not in title)
        couriers.away = {"client-01"} if last else set()

    watched(couriers, leaving)
    experiment.run_or_resume(tmp_path / "run", None)
    ours = decided(tmp_path / "run", "ditto")
    assert ours["n"].to_dict() == {"client-00": ALL, "client-01": ALL - 14, "client-02": ALL}
    delta = []
    for place in (".", "guard/fold1"):
        alone, own = (load_losses(RunDirectory(small / place), name, "", 0) for name in ("local", "ditto"))
        delta.append((alone.values["error"] - own.values["error"])[alone.owner == 1])
    assert ours["difference"]["client-01"] == pytest.approx(np.concatenate(delta).mean(), abs=1e-8)
    assert (tmp_path / "run" / "guard" / "fold0" / "failures.csv").read_text().count("client-01,it was not connected")
    check_models(folder, small)


def test_a_sites_policy_counts_for_the_guard(tmp_path: Path) -> None:
    policies = {
        "client-00": {"policy": {"evaluation": False}},
        "client-01": {"policy": {"smallest_examples": 20}},
        "client-02": {"policy": {"algorithms": ["local"]}},
    }
    folder = placed(tmp_path / "sites", **policies)
    experiment, _ = deployed(folder, **SMALL, sites={"names": list(SITES), "patience": 0, "quorum": 1})
    experiment.run_or_resume(tmp_path / "run", None)
    ours = decided(tmp_path / "run", "ditto")
    assert ours["n"].to_dict() == {"client-00": 0, "client-01": 8, "client-02": 0}
    assert ours["keeps"]["client-02"] == "local"  # it has no other
    for name in SITES:
        kept = folder / name / "models" / "ditto-guard" / "seed0" / f"{name}.safetensors"
        source = "ditto" if ours["keeps"][name] == "personalised" else "local"
        assert kept.read_bytes() == (folder / name / "models" / source / "seed0" / kept.name).read_bytes()
    assert not (folder / "client-02" / "models" / "ditto").exists()


def test_without_folds_the_runs_own_validation_examples_decide(tmp_path: Path) -> None:
    changes = {**SMALL, "guard": {"folds": 0}, "seeds": [0, 1]}
    coterie.run({**EXPERIMENT, **changes}, output=tmp_path / "simulated")
    deployed(placed(tmp_path / "sites"), **changes)[0].run_or_resume(tmp_path / "run", None)
    check_guard(tmp_path / "run", tmp_path / "simulated")
    assert not (tmp_path / "run" / "guard").exists()
    assert (decided(tmp_path / "run", "ditto")["n"] == 8).all()


def test_data_of_their_own_are_judged_by_the_metric_of_the_run(tmp_path: Path) -> None:
    """What a site tells of an AUROC is the difference of those that it has reported."""
    draw = np.random.default_rng(0)
    for name in SITES:
        (tmp_path / "sites" / name).mkdir(parents=True)
        x = draw.normal(size=(40, 3))
        y = (x[:, 0] + draw.normal(size=40) > 0).astype(np.int64)
        np.savez(tmp_path / "sites" / name / "own.npz", x=x, y=y)
        data = {"npz": "own.npz", "targets": "y", "validation": 12, "test": 8}
        (tmp_path / "sites" / name / "site.yaml").write_text(yaml.safe_dump({"client": name, "data": data}))
    changes = {**SMALL, "federation": {"source": "sites"}, "metric": "auroc", "algorithms": ["local", "fedavg"]}
    deployed(tmp_path / "sites", **changes)[0].run_or_resume(tmp_path / "run", None)
    ours = decided(tmp_path / "run", "fedavg")
    assert (ours["n"] == 20 + 12 + 12).all()
    assert (ours["standard_error"] > 0).all()
    clients = pd.read_parquet(tmp_path / "run" / "clients.parquet")
    told = json.loads((tmp_path / "run" / "evidence.json").read_text())["clients"]
    table = clients[(clients["split"] == "validation") & (clients["metric"] == "auroc") & (clients["variant"] == "")]
    rounds = {name: table[table["algorithm"] == name].groupby("round")["value"].mean().idxmax()
              for name in ("local", "fedavg")}  # fmt: skip
    by_client = table.set_index(["algorithm", "round", "client"])["value"]
    for name in SITES:
        gain = by_client["fedavg", rounds["fedavg"], name] - by_client["local", rounds["local"], name]
        ((positive, negative),) = told[name]
        assert positive[0] + negative[0] == 12
        assert positive[1] == pytest.approx(gain, abs=1e-12)
        assert negative[1] == pytest.approx(gain, abs=1e-12)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "client": ({"client": "client-01"}, "the message is for another client"),
    "pairs": ({"pairs": [{"alone": 3}]}, "a message about the guard lacks a part"),
    "number": ({"number": 7}, "a message numbers its client beyond the roster"),
    "round": ({"pairs": [{"alone": [["local", "", 0], 1], "own": [["ditto", "", 0], "1"]}]}, "a part of another kind"),
}


@pytest.mark.parametrize("kind", ["evidence", "verdict"])
@pytest.mark.parametrize("bad", BAD)
def test_a_site_refuses_a_message_that_cannot_be(bad: str, kind: str, tmp_path: Path) -> None:
    experiment, couriers = deployed(placed(tmp_path / "sites"), **SMALL)
    change, sentence = BAD[bad]
    pair = {"alone": [["local", "", 0], 1], "own": [["ditto", "", 0], 1], "keeps": "personalised"}
    wanted = {"run": "r", "config": experiment.told, "client": "client-00", "number": 0, "roster": 3, "pairs": [pair]}
    reply = couriers.taken("client-00", packed({"format": 1, "client": "client-00", kind: {**wanted, **change}})).tree()
    assert sentence in reply["trouble"][1]
