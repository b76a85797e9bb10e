"""Clients at places of their own have the results of the simulation, whoever is away, ill, late or mad."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from posts import Change, LocalPost, remote
from test_shares import near

from coterie.contract import Algorithm, Server, Site, available_algorithms
from coterie.engines import Diverged, Participation, RoundReport, SitesLost, checkpoint
from coterie.engines.folder import SiteFolder
from coterie.engines.remote import RemoteEngine, Terms
from coterie.engines.wire import Packet, packed
from toys import BATCHES, HALF, classified, saved, simulation

FEDERATION = classified((7, 4, 9, 5))


def played(engine: RemoteEngine) -> list[RoundReport]:
    """All rounds, with each evaluation in the report of its own round, as the simulation has it."""
    reports = [engine.initial_report()]
    while not engine.finished:
        report = engine.advance()
        if report.late is not None:
            reports[report.late.round] = merged(reports[report.late.round], report.late)
        reports.append(report)
    return reports


def merged(report: RoundReport, late: RoundReport) -> RoundReport:
    assert report.evaluations == {}
    return RoundReport(**{**vars(report), "evaluations": late.evaluations, "n": late.n})


def check_equal(ours: RemoteEngine, theirs: Any, reports: list[RoundReport], expected: list[RoundReport]) -> None:
    for mine, other in zip(reports, expected, strict=True):
        assert (mine.round, mine.cohort, mine.answered) == (other.round, other.cohort, other.answered)
        assert mine.ledger == other.ledger
        near({s: {m: torch.as_tensor(v) for m, v in x.items()} for s, x in mine.evaluations.items()},
             {s: {m: torch.as_tensor(v) for m, v in x.items()} for s, x in other.evaluations.items()})  # fmt: skip
        near(mine.notes, other.notes)
    mine, other = saved(ours), saved(theirs)
    near(mine["server"], other["server"])
    for key in ("round", "welcomed", "ledger", "clients", "model", "options"):
        near(mine[key], other[key])
    assert ours.report_round == theirs.report_round


def personal_models(engine: RemoteEngine, folder: Path, round: int) -> list[torch.Tensor]:
    """What each site has kept of what it predicts with."""
    found = []
    for name in engine.names:
        own = SiteFolder(folder / name, "r1", engine._order.job).predictor(round, engine.stack.layout)
        found.append(torch.cat([tensor.flatten(1) for _, tensor in sorted(own.models.parameters())], dim=1))
    return found


def simulated(name: str, **settings: Any) -> tuple[Any, list[RoundReport]]:
    theirs = simulation(FEDERATION, name, **settings)
    reports = [theirs.initial_report()]
    while not theirs.finished:
        reports.append(theirs.advance())
    return theirs, reports


def equal_to_the_simulation(name: str, folder: Path, **settings: Any) -> None:
    settings = {"rounds": 3, "evaluate_every": 1, "keep_best": "best_val", **settings}
    theirs, expected = simulated(name, **settings)
    ours = remote(FEDERATION, name, folder=folder, **settings)
    check_equal(ours, theirs, played(ours), expected)
    ours.finish()
    models = theirs.report_models()
    for client, found in enumerate(personal_models(ours, folder, ours.report_round)):
        row = models[client : client + 1]
        wanted = torch.cat([tensor.flatten(1) for _, tensor in sorted(row.parameters())], dim=1)
        near(found.flatten(), wanted.flatten())


MAIN = ("local", "fedavg", "fedora", "feddwa", "pgfed", "federico", "fedper", "scaffold")


@pytest.mark.parametrize("name", MAIN)
def test_sites_have_the_results_of_the_simulation(name: str, tmp_path: Path) -> None:
    equal_to_the_simulation(name, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(available_algorithms().keys() - set(MAIN)))
def test_every_other_method_has_the_results_of_the_simulation(name: str, tmp_path: Path) -> None:
    equal_to_the_simulation(name, tmp_path, evaluate_every=2)


@pytest.mark.parametrize("name", ["fedavg", "fedora", "federico"])
def test_half_the_clients_a_round_some_of_them_away(name: str, tmp_path: Path) -> None:
    away = {1: ("client-0",), 2: ("client-1", "client-3")}
    equal_to_the_simulation(name, tmp_path, rounds=4, participation=HALF, absent=away)


def test_answers_may_widen_from_one_round_to_the_next(tmp_path: Path) -> None:
    """After its warm-up a client asks its neighbours too."""
    equal_to_the_simulation("federico", tmp_path, options={"warm_up": 1, "neighbours": 2})


@pytest.mark.parametrize("name", ["local", "ditto", "fedem", "fedrod"])
def test_optimisers_go_on_at_the_sites(name: str, tmp_path: Path) -> None:
    away = {2: ("client-1",), 3: ("client-0", "client-3")}
    training = replace(BATCHES, optimizer="adam", lr=0.01, optimizer_state="persistent")
    equal_to_the_simulation(name, tmp_path, rounds=4, training=training, absent=away)


def test_the_evaluation_costs_no_exchange_of_its_own_but_for_the_last(tmp_path: Path) -> None:
    ours = remote(FEDERATION, "fedavg", folder=tmp_path, rounds=4, evaluate_every=1)
    played(ours)
    post = ours.post
    assert isinstance(post, LocalPost)
    assert len(post.exchanges) == 4 + 1
    assert all("evaluate" in packet.tree() for packets in post.exchanges for packet in packets.values())


def faulty(name: str, folder: Path, change: Change, **settings: Any) -> RemoteEngine:
    ours = remote(FEDERATION, name, folder=folder, **{"evaluate_every": 1, "rounds": 4, **settings})
    assert isinstance(ours.post, LocalPost)
    ours.post.change = change
    return ours


def with_bad(values: Any) -> Change:
    """In round 2 the answer of client-3 is something else."""

    def change(round: int, name: str, packet: Packet) -> Packet | str | None:
        return values(packet) if (round, name) == (2, "client-3") else packet

    return change


def with_nan(packet: Packet) -> Packet:
    arrays = [array.copy() for array in packet.arrays]
    arrays[0].reshape(-1)[0] = np.nan
    return Packet(packet.text, arrays)


def with_result(metric: str, value: float) -> Callable[[Packet], Packet]:
    def change(packet: Packet) -> Packet:
        tree = packet.tree()
        tree["metrics"]["test"][metric] = value
        return Packet(json.dumps(tree), packet.arrays)

    return change


def with_deep_answer(packet: Packet) -> Packet:
    tree = packet.tree()
    tree["answer"]["values"]["phi"] = functools.reduce(lambda inner, _: [inner], range(600), 0)
    return Packet(json.dumps(tree), packet.arrays)


def with_empty_tensor(packet: Packet) -> Packet:
    tree = packet.tree()
    models = tree["answer"]["values"]["phi"]["__models__"]
    models[next(iter(models))] = {}
    return Packet(json.dumps(tree), packet.arrays)


FAULTS = {
    "late": (lambda packet: None, "did not answer within 600 s"),
    "lost": (lambda packet: "the site is gone", "the site is gone"),
    "infinite": (with_nan, "NaN or infinite"),
    "shape": (lambda p: Packet(p.text, [a[..., :1] for a in p.arrays]), "models whose tensor '.*' has the shape"),
    "type": (lambda p: Packet(p.text, [a.astype(np.float32) for a in p.arrays]), "as torch.float32, not torch.float64"),
    "empty": (lambda p: Packet(p.text, []), "lacks an array"),
    "text": (lambda p: Packet("so?", []), "no JSON text"),
    "other": (lambda p: Packet(p.text.replace('"exchange": "0', '"exchange": "1'), p.arrays), "another question"),
    "name": (lambda p: Packet(p.text.replace('"phi": {"__models__"', '"psi": {"__models__"'), p.arrays), "lacks phi"),
    "objects": (lambda p: Packet(p.text, [np.array([None])] * len(p.arrays)), "array of object, which is no number"),
    "order": (lambda p: Packet(p.text, [a.astype(">f8") for a in p.arrays]), "array of >f8, which torch does not know"),
    "number": (with_empty_tensor, "lacks an array"),
    "nobody": (lambda p: Packet('{"client": "client-3"}', []), "sent no answer"),
    "reason": (lambda p: packed({"client": "client-3", "trouble": ["failed", "x" * 9999]}), "^x{300}$"),
    "code": (lambda p: packed({"client": "client-3", "trouble": {"a": 1}}), "failed"),
    "letters": (lambda p: packed({"client": "client-3", "trouble": ["failed", "\x1b[2Jgone"]}), "^\ufffd\\[2Jgone$"),
    "half": (lambda p: packed({"client": "client-3", "trouble": ["failed", "\ud800"]}), "no JSON text"),
    "nested": (lambda p: Packet('{"client": "client-3", "trouble": %s}' % ("[" * 600 + "]" * 600)), "nested too deeply"),
    "large": (with_result("accuracy", 10**400), "it sent a result that is too large"),
    "share": (with_result("accuracy", 1e6), "sent 1e\\+06 as its test accuracy, which is a number from 0 to 1$"),
    "error": (with_result("loss", -1.0), "it sent -1 as its test loss, which is a number of at least 0$"),
    "unknown": (with_result("beauty", 1.0), "it sent a result 'beauty', for which nobody has asked"),
    "deep": (with_deep_answer, "nested too deeply"),
    "deeper": (lambda p: Packet("[" * 5000 + "]" * 5000), "no JSON text"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_answer_leaves_its_client_out_of_the_round_and_nobody_else(fault: str, tmp_path: Path) -> None:
    change, reason = FAULTS[fault]
    ours = faulty("fedper", tmp_path, with_bad(change))
    reports = played(ours)
    theirs, expected = simulated("fedper", evaluate_every=1, rounds=4, absent={2: ("client-3",)})
    (failure,) = reports[2].failures
    assert (failure.client, failure.round) == ("client-3", 2)
    assert re.search(reason, failure.reason)
    near(saved(ours)["server"], saved(theirs)["server"])
    for mine, other in zip(reports[2:], expected[2:], strict=True):  # its own values of round 1 were in that answer
        assert mine.answered == other.answered
        near(torch.tensor(mine.evaluations["test"]["accuracy"]), torch.tensor(other.evaluations["test"]["accuracy"]))


def test_results_that_cannot_be_do_not_choose_the_round(tmp_path: Path) -> None:
    """As if the site had been silent."""

    def boasting(packet: Packet) -> Packet:
        tree = packet.tree()
        tree["metrics"]["validation"]["accuracy"] = 1e6
        return Packet(json.dumps(tree), packet.arrays)

    ours, silent = (
        faulty("fedavg", tmp_path / name, with_bad(change), keep_best="best_val")
        for name, change in (("boasting", boasting), ("silent", lambda packet: None))
    )
    near([report.answered for report in played(ours)], [report.answered for report in played(silent)])
    assert ours.chosen.state_dict() == silent.chosen.state_dict()


MISDIRECTED: dict[str, Any] = {
    "nobody": ({}, "its answer change is models \\(3,\\) of .*, and that of the others .* for other clients$"),
    "too few": ({"change": [[0, 1]]}, "its answer change is not one for each of the 2 clients that it names"),
    "none": ({"change": np.zeros((1, 0), dtype=np.int64)}, "its answer change is not one for each of the 0 clients"),
    "what": ({"else": [[0, 1, 2]]}, "its answer else is not one for each of the 3 clients"),
    "more": ({"change": [[0, 1, 2]], "w": [[0, 1, 2, 3]]}, "its answer w is a tensor .* for other clients, and that"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISDIRECTED)
def test_an_answer_for_others_that_does_not_say_for_whom_leaves_its_client_out(case: str, tmp_path: Path) -> None:
    peers, reason = MISDIRECTED[case]

    def misdirected(packet: Packet) -> Packet:
        tree, arrays = packet.tree(), list(packet.arrays)
        tree["answer"]["peers"] = {}
        for name, index in peers.items():
            tree["answer"]["peers"][name] = {"__tensor__": len(arrays)}
            arrays.append(np.array(index, dtype=np.int64))
        return Packet(json.dumps(tree), arrays)

    ours = faulty("federico", tmp_path, with_bad(misdirected), rounds=3, options={"neighbours": 2})
    (failure,) = played(ours)[2].failures
    assert (failure.client, failure.round) == ("client-3", 2)
    assert re.search(reason, failure.reason)


@pytest.mark.parametrize("name", ["fedper", "fedora"])
def test_a_site_that_is_not_connected_is_named_in_every_round_that_it_misses(name: str, tmp_path: Path) -> None:
    ours = remote(FEDERATION, name, folder=tmp_path, rounds=4, evaluate_every=1)
    theirs, expected = simulated(name, evaluate_every=1, rounds=4, absent={2: ("client-3",), 3: ("client-3",)})
    assert isinstance(ours.post, LocalPost)
    reports = [ours.initial_report()]
    while not ours.finished:
        ours.post.away = {"client-3"} if ours.round in (1, 2) else set()
        reports.append(ours.advance())
    missed = [(failure.round, failure.client, failure.reason) for r in reports for failure in r.failures]
    assert missed == [(2, "client-3", "it was not connected"), (3, "client-3", "it was not connected")]
    assert [mine.answered for mine in reports] == [other.answered for other in expected]
    near(saved(ours)["server"], saved(theirs)["server"])


@pytest.mark.parametrize("name", ["pgfed", "fedfomo"])
def test_answers_about_those_who_were_there_are_as_wide_as_they_were_many(name: str, tmp_path: Path) -> None:
    ours = remote(FEDERATION, name, folder=tmp_path, rounds=5, evaluate_every=1)
    theirs, expected = simulated(name, evaluate_every=1, rounds=5, absent={2: ("client-2", "client-3")})
    assert isinstance(ours.post, LocalPost)
    reports = [ours.initial_report()]
    while not ours.finished:
        ours.post.away = {"client-2", "client-3"} if ours.round == 1 else set()
        reports.append(ours.advance())
    assert [mine.answered for mine in reports] == [other.answered for other in expected]
    near(saved(ours)["server"], saved(theirs)["server"])


def test_a_site_that_lost_its_state_begins_again(tmp_path: Path) -> None:
    ours = remote(FEDERATION, "fedper", folder=tmp_path, rounds=4, evaluate_every=1)
    ours.initial_report()
    ours.advance()
    shutil.rmtree(tmp_path / "client-2")
    report = ours.advance()
    (failure,) = report.failures
    assert failure.client == "client-2"
    assert "lost or replaced" in failure.reason
    assert not ours.welcomed[2]
    assert ours.advance().answered == FEDERATION.names
    assert ours.welcomed.all()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_site_that_cannot_read_its_state_for_a_while_keeps_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = remote(FEDERATION, "fedper", folder=tmp_path, rounds=4, evaluate_every=1)
    theirs, _ = simulated("fedper", rounds=4, evaluate_every=1, absent={2: ("client-2",)})
    ours.advance()

    def refuse(path: Path) -> ZipFile:
        if "client-2" in path.parts:
            raise OSError(number, os.strerror(number))
        return ZipFile(path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "ZipFile", refuse)
        report = ours.advance()
    (failure,) = report.failures
    assert (failure.client, failure.reason) == (
        "client-2", "it cannot read its state; its log says why, and once that is mended it goes on",
    )  # fmt: skip
    assert f"cannot be read: {os.strerror(number)}" in caplog.text
    while not ours.finished:
        assert ours.advance().answered == FEDERATION.names
    near(saved(ours)["server"], saved(theirs)["server"])


@pytest.mark.parametrize("name", ["fedora", "scaffold"])
def test_a_server_that_was_killed_goes_on_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    """Even where the round after the checkpoint had been answered, and with other answers."""
    settings: dict[str, Any] = {"rounds": 4, "evaluate_every": 1, "keep_best": "best_val"}
    theirs, expected = simulated(name, **settings)
    first = remote(FEDERATION, name, folder=tmp_path / "sites", **settings)
    reports = [first.initial_report(), first.advance(), first.advance()]
    for report in reports[1:]:
        assert report.late is not None
        reports[report.late.round] = merged(reports[report.late.round], report.late)
    checkpoint.save(tmp_path / "run.pt", first)
    assert isinstance(first.post, LocalPost)
    first.post.away = {"client-0", "client-1"}
    first.advance()
    second = remote(FEDERATION, name, folder=tmp_path / "sites", **settings)
    checkpoint.load(tmp_path / "run.pt", second)
    assert second.owed_round == 2
    while not second.finished:
        report = second.advance()
        if report.late is not None:
            reports[report.late.round] = merged(reports[report.late.round], report.late)
        reports.append(report)
    check_equal(second, theirs, reports, expected)


def without_weights(*rounds: int, whose: str = "") -> Change:
    """In these rounds what L2C asks second, for its weights, is not answered, by one client or by all."""

    def change(round: int, name: str, packet: Packet) -> Packet | None:
        return None if round in rounds and name.startswith(whose) and '"pi"' in packet.text else packet

    return change


def versions(engine: RemoteEngine, folder: Path, name: str) -> set[str]:
    return set(SiteFolder(folder / name, "r1", engine._order.job).versions())


def test_a_site_that_was_away_and_then_late_goes_on_from_what_the_server_knows(tmp_path: Path) -> None:
    ours = faulty("l2c", tmp_path, without_weights(5, whose="client-3"), rounds=6)
    assert isinstance(ours.post, LocalPost)
    reports = [ours.initial_report()]
    while not ours.finished:
        ours.post.away = {"client-3"} if ours.round in (2, 3) else set()
        reports.append(ours.advance())
        assert ours._bases[3] in versions(ours, tmp_path, "client-3")
    assert [failure.round for report in reports for failure in report.failures] == [3, 4, 5]
    assert reports[6].answered == FEDERATION.names


def test_states_outlast_rounds_that_end_the_sitting(tmp_path: Path) -> None:
    ours = faulty("l2c", tmp_path / "sites", without_weights(3, 4, 5), rounds=5)
    for _ in range(4):
        ours.advance()
    checkpoint.save(tmp_path / "run.pt", ours)
    with pytest.raises(SitesLost, match="in 3 rounds in a row too few sites"):
        ours.advance()
    again = remote(FEDERATION, "l2c", folder=tmp_path / "sites", rounds=5)
    checkpoint.load(tmp_path / "run.pt", again)
    report = again.advance()
    assert (report.answered, report.failures) == (FEDERATION.names, ())


class Hosts(Algorithm):
    """Greets newcomers at all clients."""

    name = ""

    def start(self, site: Site) -> None:
        site.count = site.zeros(1)

    def look(self, site: Site) -> dict[str, Any]:
        site.count = site.count + 1
        return {"count": site.count}

    def welcome(self, server: Server, clients: torch.Tensor) -> None:
        server.ask(self.look, torch.arange(server.K))

    def round(self, server: Server, cohort: torch.Tensor) -> None:
        server.count = server.ask(self.look, cohort).count


def test_a_server_that_is_started_again_finds_the_states_of_its_checkpoint_though_others_were_welcomed_since(
    tmp_path: Path,
) -> None:
    ours = remote(FEDERATION, Hosts(), folder=tmp_path / "sites", rounds=6)
    assert isinstance(ours.post, LocalPost)
    ours.post.away = {"client-3"}
    ours.advance()
    ours.post.away = {"client-0", "client-3"}
    for _ in range(3):
        ours.advance()
    checkpoint.save(tmp_path / "run.pt", ours)
    ours.post.away = set()
    ours.advance()
    again = remote(FEDERATION, Hosts(), folder=tmp_path / "sites", rounds=6)
    checkpoint.load(tmp_path / "run.pt", again)
    assert again.advance().failures == ()
    assert again.server_state["count"].flatten().tolist() == [4, 10, 10, 2]


def test_the_same_message_twice_and_an_old_one_are_harmless(tmp_path: Path) -> None:
    theirs, expected = simulated("scaffold", rounds=4, evaluate_every=1)
    ours = remote(FEDERATION, "scaffold", folder=tmp_path, rounds=4, evaluate_every=1)
    reports = [ours.initial_report()]
    post = ours.post
    assert isinstance(post, LocalPost)
    while not ours.finished:
        report = ours.advance()
        assert report.late is not None
        reports[report.late.round] = merged(reports[report.late.round], report.late)
        reports.append(report)
        for packets in post.exchanges[-2:]:
            for name, packet in packets.items():
                again = post.outposts(name).answer(packet).tree()
                assert "trouble" not in again
    check_equal(ours, theirs, reports, expected)


def test_a_round_without_a_quorum_does_not_count(tmp_path: Path) -> None:
    def change(round: int, name: str, packet: Packet) -> Packet | None:
        return None if round == 2 and name != "client-0" else packet

    ours = faulty("fedavg", tmp_path, change, terms=Terms(quorum=3))
    reports = played(ours)
    theirs, _ = simulated("fedavg", evaluate_every=1, rounds=4, absent={2: FEDERATION.names})
    assert reports[2].answered == ()
    assert "too few other sites answered" in reports[2].failures[0].reason
    near(saved(ours)["server"], saved(theirs)["server"])


@pytest.mark.parametrize(
    ("quorum", "cohort", "clients", "needed"),
    [(8, 10, 10, 8), (8, 5, 10, 4), (8, 4, 10, 3), (8, 1, 10, 1), (8, 0, 10, 0), (10, 7, 10, 7), (1, 4, 4, 1)],
)
def test_of_a_smaller_cohort_the_same_share_is_needed(quorum: int, cohort: int, clients: int, needed: int) -> None:
    assert Terms(quorum=quorum).needed(cohort, clients) == needed


def test_rounds_of_few_count_though_a_site_is_away_that_the_quorum_can_do_without(tmp_path: Path) -> None:
    ten = classified((4, 5, 3, 4, 6, 3, 5, 4, 3, 4))
    half = Participation("uniform", clients=5)
    ours = remote(ten, "fedavg", folder=tmp_path, rounds=8, participation=half, terms=Terms(quorum=8))
    assert isinstance(ours.post, LocalPost)
    ours.post.away = {"client-3"}
    reports = played(ours)[1:]
    assert sum("client-3" in report.cohort for report in reports) >= 3
    assert [r.answered for r in reports] == [tuple(name for name in r.cohort if name != "client-3") for r in reports]


def test_rounds_in_which_nobody_is_asked_do_not_end_the_sitting(tmp_path: Path) -> None:
    nobody = Participation("bernoulli", fraction=1e-9)
    ours = remote(FEDERATION, "fedavg", folder=tmp_path, rounds=5, participation=nobody, terms=Terms(quorum=3))
    assert [report.cohort for report in played(ours)[1:]] == [()] * 5


def test_who_was_missing_at_the_first_question_of_a_round_is_missing_at_the_second(tmp_path: Path) -> None:
    def change(round: int, name: str, packet: Packet) -> Packet | None:
        second = '"pi"' in packet.text
        return None if round == 2 and (name, second) in (("client-0", False), ("client-1", True)) else packet

    ours = faulty("l2c", tmp_path, change, terms=Terms(quorum=3))
    assert [len(report.answered) for report in played(ours)[1:]] == [4, 0, 4, 4]


def test_without_sites_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    ours = remote(FEDERATION, "fedavg", folder=tmp_path, terms=Terms(quorum=3))
    assert isinstance(ours.post, LocalPost)
    ours.post.away = {"client-0", "client-2"}
    with pytest.raises(
        SitesLost, match=r"only 2 of 4 sites are there, and 3 are needed \(missing: client-0, client-2\)"
    ):
        ours.advance()


def test_sites_that_never_answer_end_the_sitting(tmp_path: Path) -> None:
    ours = faulty("fedavg", tmp_path, lambda round, name, packet: None, rounds=9)
    ours.advance()
    ours.advance()
    with pytest.raises(SitesLost, match=r"in 3 rounds in a row too few sites .* sites.quorum, which is 1 of 4"):
        ours.advance()


def with_nan_in(*rounds: int) -> Change:
    return lambda round, name, packet: with_nan(packet) if round in rounds else packet


def test_models_that_fall_apart_at_all_sites_end_the_run(tmp_path: Path) -> None:
    ours = faulty("fedavg", tmp_path, with_nan_in(2))
    ours.advance()
    with pytest.raises(Diverged, match=r"every client failed: .*NaN or infinite"):
        ours.advance()


def test_models_that_fall_apart_while_other_sites_are_away_do_not_end_the_run(tmp_path: Path) -> None:
    ours = faulty("fedavg", tmp_path, with_nan_in(2))
    theirs, expected = simulated("fedavg", evaluate_every=1, rounds=4, absent={2: FEDERATION.names})
    assert isinstance(ours.post, LocalPost)
    reports = [ours.initial_report()]
    while not ours.finished:
        ours.post.away = {"client-1", "client-2", "client-3"} if ours.round == 1 else set()
        reports.append(ours.advance())
    assert [mine.answered for mine in reports] == [other.answered for other in expected]
    assert "NaN or infinite" in reports[2].failures[0].reason
    near(saved(ours)["server"], saved(theirs)["server"])


def test_models_that_fall_apart_in_every_round_end_the_run_though_a_site_is_away(tmp_path: Path) -> None:
    ours = faulty("fedavg", tmp_path, with_nan_in(2, 3, 4), rounds=9)
    assert isinstance(ours.post, LocalPost)
    ours.post.away = {"client-3"}
    for _ in range(3):
        ours.advance()
    with pytest.raises(Diverged, match=r"in 3 rounds in a row every client that was there failed: .*NaN or infinite"):
        ours.advance()


def test_only_three_rounds_of_state_are_kept(tmp_path: Path) -> None:
    ours = remote(FEDERATION, "scaffold", folder=tmp_path, rounds=7)
    played(ours)
    rounds = SiteFolder(tmp_path / "client-0", "r1", ours._order.job).versions().values()
    assert sorted(rounds) == [5, 6, 7]


class Spiteful(Algorithm):
    """Its client code fails with the data in its hands."""

    name = ""

    def look(self, site: Site) -> dict[str, Any]:
        raise RuntimeError(f"secret {site.train.inputs.sum()}")

    def round(self, server: Server, cohort: torch.Tensor) -> None:
        server.ask(self.look, cohort)


def test_an_error_at_a_site_says_nothing_of_its_data(tmp_path: Path) -> None:
    ours = remote(FEDERATION, Spiteful(), folder=tmp_path)
    report = ours.advance()
    assert {failure.reason for failure in report.failures} == {
        "RuntimeError in the client's code; its log has the traceback"
    }
