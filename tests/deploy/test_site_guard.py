"""The guard at real sites decides as the simulation does, on a few numbers of each site; no Flower is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from comparing import check_equal, check_models
from test_serving import EXPERIMENT, SITES, Couriers, deployed, placed

import coterie
from coterie.deploy import reading
from coterie.engines import SitesLost
from coterie.engines.wire import Packet
from coterie.errors import CoterieError
from coterie.federation import Federation

GUARDED: dict[str, Any] = {
    "algorithms": ["local", "fedavg", "ditto"],
    "training": {"epochs": 2, "batch_size": 10, "lr": 0.6},
    "rounds": 2,
    "guard": {"folds": 2, "confidence": 0.5},
    "page": False,
}  # fmt: skip
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


def watched(couriers: Couriers, see: Callable[[str, Mapping[str, Packet]], None]) -> None:
    """Call ``see`` before each exchange."""
    exchange = couriers.exchange

    def watching(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
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
    assert set(decided(simulated, "ditto")["keeps"]) == {"local", "personalised"}
    assert (decided(simulated, "fedavg")["n"] == ALL).all()


def test_a_site_holds_the_very_model_that_it_keeps_and_none_of_a_fold(undisturbed: Path) -> None:
    for client, keeps in decided(undisturbed / "run", "ditto")["keeps"].items():
        models = undisturbed / "sites" / str(client) / "models"
        assert sorted(path.name for path in models.iterdir()) == [
            "ditto", "ditto-guard", "fedavg", "fedavg-guard", "local",
        ]  # fmt: skip
        source = "ditto" if keeps == "personalised" else "local"
        kept, its = (models / name / "seed0" / f"{client}.safetensors" for name in ("ditto-guard", source))
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


@pytest.mark.parametrize("stop", ["fold 2 of 2, ditto, round 2", "fold 2 of 2, guard, evidence", "guard, verdict"])
def test_a_server_that_was_killed_goes_on_with_the_folds_that_are_left(
    stop: str, simulated: Path, tmp_path: Path
) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **GUARDED)

    def stopping(title: str, packets: Mapping[str, Packet]) -> None:
        if title.startswith(stop):
            raise KeyboardInterrupt

    watched(couriers, stopping)
    with pytest.raises(KeyboardInterrupt):
        experiment.run_or_resume(tmp_path / "run", None)
    again, couriers = deployed(folder, **GUARDED)
    titles: list[str] = []
    watched(couriers, lambda title, packets: titles.append(title))
    again.run_or_resume(tmp_path / "run", None)
    check_guard(tmp_path / "run", simulated)
    check_equal(tmp_path / "run", simulated)
    check_models(folder, simulated)
    assert titles[0].startswith(stop)
    assert not [title for title in titles if title.startswith("fold 1")]


def test_a_site_that_is_away_during_a_fold_tells_nothing_of_it(undisturbed: Path, tmp_path: Path) -> None:
    """Its decision rests on the rest, and the others have the fold without it."""
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **GUARDED)

    def leaving(title: str, packets: Mapping[str, Packet]) -> None:
        if title.startswith("fold"):
            couriers.away = {"client-01"} if title.startswith("fold 1") else set()
        elif title == "guard, evidence":
            couriers.away = {"client-01"}  # once the run itself has been asked about
        else:
            couriers.away = set()

    watched(couriers, leaving)
    taken = couriers.taken

    def present(name: str, packet: Packet) -> Packet:
        assert "fold" not in str(packet.tree().get("config")) or name not in couriers.away
        return taken(name, packet)

    couriers.taken = present  # type: ignore[method-assign]
    experiment.run_or_resume(tmp_path / "run", None)
    for algorithm in ("fedavg", "ditto"):
        assert decided(tmp_path / "run", algorithm)["n"].to_dict() == {
            "client-00": ALL, "client-01": ALL - 14, "client-02": ALL,
        }  # fmt: skip
    for place in (".", "guard/fold1"):
        ours, theirs = (json.loads((path / "run" / place / "evidence.json").read_text())["clients"]
                        for path in (tmp_path, undisturbed))  # fmt: skip
        assert ours == theirs
    assert set(json.loads((tmp_path / "run" / "guard/fold0" / "evidence.json").read_text())["clients"]) == {
        "client-00", "client-02",
    }  # fmt: skip
    assert (folder / "client-01" / "models" / "ditto-guard").exists()
    check_models(folder, tmp_path / "run")


POLICIES: dict[str, tuple[dict[str, Any], int, str]] = {
    "evaluation": ({"evaluation": False}, 0, "policy.evaluation does not allow evidence for the guard"),
    "examples": ({"smallest_examples": 20}, 8, "policy.smallest_examples does not allow"),
    "algorithms": ({"algorithms": ["local", "fedavg"]}, 0, ""),
}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_sites_policy_counts_for_the_guard(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, n, sentence = POLICIES[kind]
    folder = placed(tmp_path / "sites", **{"client-01": {"policy": policy}})
    with caplog.at_level("WARNING", logger="coterie.server"):
        deployed(folder, **{**GUARDED, "rounds": 1})[0].run_or_resume(tmp_path / "run", None)
    assert decided(tmp_path / "run", "ditto")["n"].to_dict() == {"client-00": ALL, "client-01": n, "client-02": ALL}
    assert sentence in caplog.text
    kept = folder / "client-01" / "models"
    if kind == "algorithms":
        assert decided(tmp_path / "run", "fedavg")["n"]["client-01"] == ALL
        assert decided(tmp_path / "run", "ditto")["keeps"]["client-01"] == "local"
        assert not (kept / "ditto").exists()
        assert (kept / "ditto-guard" / "seed0" / "client-01.safetensors").exists()


def test_without_folds_the_runs_own_validation_examples_decide(tmp_path: Path) -> None:
    changes = {**GUARDED, "guard": {"folds": 0}, "rounds": 1}
    coterie.run({**EXPERIMENT, **changes}, output=tmp_path / "simulated")
    deployed(placed(tmp_path / "sites"), **changes)[0].run_or_resume(tmp_path / "run", None)
    check_guard(tmp_path / "run", tmp_path / "simulated")
    assert not (tmp_path / "run" / "guard").exists()
    assert (decided(tmp_path / "run", "ditto")["n"] == 8).all()


def test_too_few_answers_stop_the_run_which_goes_on_when_the_sites_are_back(simulated: Path, tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **GUARDED)

    def leaving(title: str, packets: Mapping[str, Packet]) -> None:
        if title.startswith("fold 1") and "guard" in title:
            packets.clear()  # type: ignore[attr-defined]

    watched(couriers, leaving)
    with pytest.raises(SitesLost, match="only 0 sites have told the guard how their models compare, and 2 are needed"):
        experiment.run_or_resume(tmp_path / "run", None)
    deployed(folder, **GUARDED)[0].run_or_resume(tmp_path / "run", None)
    check_guard(tmp_path / "run", simulated)


LIES = {
    "nothing": None,
    "text": [["many", 0, 0]],
    "infinite": [[8, float("inf"), 0.0]],
    "negative": [[8, 0.0, -1.0]],
    "examples": [[9, 0.0, 0.0]],
    "pairs": [[8, 0.0, 0.0], [0, 0.0, 0.0]],
}


@pytest.mark.parametrize("lie", LIES)
def test_evidence_that_cannot_be_is_none(lie: str) -> None:
    from coterie.evaluation.testimony import read

    with pytest.raises(CoterieError, match="it sent evidence of other examples|it sent no evidence"):
        read(LIES[lie], "error", 8)
