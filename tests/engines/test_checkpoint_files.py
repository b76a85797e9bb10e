"""Checkpoints: going on from any round is as if nothing had happened; a bad file is a clear error."""

from __future__ import annotations

import errno
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.contract import available_algorithms, make_algorithm
from coterie.engines import RoundReport, Simulation, checkpoint
from coterie.errors import CoterieError
from toys import HALF, LINEAR, MLP, classified, run, same, saved, simulation

FEDERATION = classified((7, 4, 9, 5, 6))
VARIANTS = [(n, v) for n, cls in available_algorithms().items() for v in (cls.variants or [None])]
ROUNDS = 4


def begun(name: str, variant: str | None, **settings: Any) -> Simulation:
    options = {"rounds": ROUNDS, "participation": HALF, "keep_best": "best_val", "evaluate_every": 2, **settings}
    return simulation(FEDERATION, make_algorithm(name, variant), **options)


def comparable(report: RoundReport) -> dict[str, Any]:
    return {
        "round": report.round, "cohort": report.cohort, "answered": report.answered, "ledger": report.ledger,
        "evaluations": {s: {m: v.tolist() for m, v in metrics.items()} for s, metrics in report.evaluations.items()},
    }  # fmt: skip


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_going_on_from_any_round_changes_nothing(name: str, variant: str | None, tmp_path: Path) -> None:
    whole = begun(name, variant, dtype="float32")
    whole.initial_report()
    path, reports = tmp_path / "part.pt", []
    for round in range(ROUNDS):
        checkpoint.save(path.with_stem(f"round{round}"), whole)
        reports.append(comparable(whole.advance()))
    final, models = saved(whole), whole.report_models()
    for round in range(ROUNDS):
        part = begun(name, variant, dtype="float32")
        checkpoint.load(path.with_stem(f"round{round}"), part)
        assert part.round == round
        assert [comparable(part.advance()) for _ in range(round, ROUNDS)] == reports[round:]
        assert same(saved(part), final)
        assert part.report_round == whole.report_round
        assert same(part.report_models().tensors, models.tensors)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"round{r}.pt" for r in range(ROUNDS)]


def test_a_checkpoint_goes_back_as_well() -> None:
    sim = begun("ditto", None)
    sim.advance()
    early = deepcopy(sim.state_dict())
    first = [comparable(report) for report in run(sim)]
    sim.load_state_dict(early)
    assert [comparable(report) for report in run(sim)] == first


@pytest.fixture
def file(tmp_path: Path) -> Path:
    sim = begun("fedora", "paper")
    sim.initial_report()
    sim.advance()
    path = tmp_path / "fedora.pt"
    checkpoint.save(path, sim)
    return path


def load(path: Path, name: str = "fedora", variant: str | None = "paper", **settings: Any) -> None:
    checkpoint.load(path, begun(name, variant, **settings))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"there is no checkpoint .*none\.pt; start the run anew"):
        load(tmp_path / "none.pt")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_truncated_file(file: Path, share: float) -> None:
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(CoterieError, match=r"fedora\.pt is damaged .* delete it"):
        load(file)


@pytest.mark.parametrize("at", range(0, 100, 10))
def test_a_damaged_file(file: Path, at: int) -> None:
    """Bytes changed anywhere are found, or they lie where they do not matter."""
    before = begun("fedora", "paper")
    checkpoint.load(file, before)
    content = bytearray(file.read_bytes())
    start = at * len(content) // 100
    content[start : start + 16] = bytes(255 - byte for byte in content[start : start + 16])
    file.write_bytes(content)
    after = begun("fedora", "paper")
    message = ""
    try:
        checkpoint.load(file, after)
    except CoterieError as error:
        message = str(error)
    assert "fedora.pt" in message if message else same(saved(after), saved(before))


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + bytes(100)])
def test_a_foreign_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.pt"
    path.write_bytes(content)
    with pytest.raises(CoterieError, match=r"foreign\.pt is damaged"):
        load(path)


@pytest.mark.parametrize("content", [[1, 2], {"format": 99}, {"format": checkpoint.FORMAT}, {}, torch.zeros(3)])
def test_a_file_of_another_kind(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "foreign.pt"
    torch.save(content, path)
    with pytest.raises(CoterieError, match=r"foreign\.pt"):
        load(path)


def test_a_file_with_code_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    torch.save({"format": checkpoint.FORMAT, "code": Path}, path)
    with pytest.raises(CoterieError, match=r"evil\.pt is damaged"):
        load(path)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="cannot be read: Is a directory; mend that"):
        load(tmp_path)


def test_what_the_system_does_not_let_be_read_is_not_lost(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(checkpoint, "ZipFile", refuse)
    with pytest.raises(CoterieError, match=r"fedora\.pt cannot be read: Too many open files; mend that") as caught:
        load(file)
    assert not isinstance(caught.value, checkpoint.Lost)


def test_a_file_whose_places_lie_before_its_beginning(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-50:-42] = bytes([255] * 6 + [0, 0])  # where an archive's table of contents begins
    file.write_bytes(content)
    with pytest.raises(checkpoint.Lost, match=r"fedora\.pt is damaged"):
        load(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "fedavg", "variant": None}, "its algorithm is 'fedora', this run's 'fedavg'"),
        ({"variant": "released"}, "its options"),
        ({"seed": 3}, "its seed is 0, this run's 3"),
        ({"model": LINEAR}, "its model"),
    ],
)
def test_the_checkpoint_of_another_run(file: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=f"the checkpoint is of another run: {message}"):
        load(file, **change)


def test_the_checkpoint_of_other_clients(file: Path) -> None:
    other = simulation(classified((7, 4)), make_algorithm("fedora", "paper"), MLP)
    with pytest.raises(CoterieError, match="of another run: its clients"):
        checkpoint.load(file, other)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoterieError, match="cannot be written"):
        checkpoint.save(tmp_path / "file" / "c.pt", begun("local", None))


def test_a_crash_while_writing_keeps_the_former_checkpoint(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(CoterieError, match="no space left on device"):
        checkpoint.save(file, begun("fedora", "paper"))
    assert file.read_bytes() == before
    assert [p.name for p in file.parent.iterdir()] == ["fedora.pt"]


def test_numbers_of_numpy_are_kept_as_plain_ones(tmp_path: Path) -> None:
    """A checkpoint could be written with them, but not read."""
    sim, other = begun("fedavg", None), begun("fedavg", None)
    sim.server.best, sim.server.names_seen = np.float64(0.5), [np.str_("a"), np.int64(3)]
    checkpoint.save(tmp_path / "run.pt", sim)
    checkpoint.load(tmp_path / "run.pt", other)
    assert (other.server.best, other.server.names_seen) == (0.5, ["a", 3])


def test_a_server_that_lacks_what_its_method_keeps_today(tmp_path: Path) -> None:
    sim, other = begun("feddwa", None), begun("feddwa", None)
    del sim._store.values["met"]
    checkpoint.save(tmp_path / "run.pt", sim)
    with pytest.raises(CoterieError, match=r"of an earlier version: it lacks met of feddwa's server; delete it"):
        checkpoint.load(tmp_path / "run.pt", other)
