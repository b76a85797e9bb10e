"""Bad input gets one sentence on stderr and exit code 2, and leaves nothing behind."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from cli_helpers import TINY, coterie, error_of, tiny


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rouds=3", "unknown key rouds: did you mean rounds?"),
        ("training.lr=fast", "training.lr must be a number, not the text 'fast'."),
        ("federation.source=mnits", "Did you mean 'mnist'?"),
        ("algorithms=[fedorra]", "algorithms[0]: algorithm 'fedorra' is unknown; did you mean 'fedora'?"),
        (
            "algorithms=[local, {name: ditto, lamda: 1}]",
            "algorithms[1]: algorithm ditto has no option 'lamda'",
        ),
        (
            "algorithms=[{name: ditto, lambda: much}]",
            "algorithms[0]: algorithm ditto: option 'lambda' takes float",
        ),
        ("algorithms=[{name: ditto, lambda: -1}]", "lambda must be 0 or more, not -1"),
        ("algorithms=[{name: fedora, variant: papr}]", "fedora has the variants released, paper, not 'papr'"),
        ("algorithms=[ditto, ditto]", "algorithms[0] and algorithms[1] are the same (ditto)"),
        ("model.name=mpl", "did you mean 'mlp'?"),
        ("model.hiden=[8]", "model.hiden is not an option of model 'mlp'; did you mean 'hidden'?"),
        ("federation.partition.clients=400", "for 400 clients"),
        (
            "participation={rule: uniform, clients: 5}",
            "participation.clients is 5, but the federation has 4 clients.",
        ),
        ("absent={2: [client-9]}", "absent, round 2: there is no client client-9: did you mean client-0"),
        ("federation.validation=0", "report: last"),
        ("device=cuda:7", "there is no cuda:7: use --device cpu."),
    ],
)
def test_one_sentence_that_names_the_culprit(here: Path, override: str, sentence: str) -> None:
    assert sentence in error_of(coterie("run", tiny(here), "-s", override))
    assert not (here / "runs").exists()


def test_a_file_that_is_not_there(here: Path) -> None:
    assert error_of(coterie("run", "mine.yaml")) == "there is no configuration file mine.yaml."
    (here / "mine.yaml").touch()
    for wrong in ("mine.yml", "mne.yaml"):
        said = f"there is no configuration file {wrong}: did you mean mine.yaml?"
        assert error_of(coterie("run", wrong)) == said
    assert (
        error_of(coterie("run", "mine.yam")) == "there is neither a file nor a preset mine.yam: did you mean mine.yaml?"
    )


def test_damaged_data_files_are_named(here: Path) -> None:
    folder = here / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (folder / name).write_bytes(b"\x00\x00\x08\x99")
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\x00\x00\x08\x99"))
    message = error_of(coterie("run", tiny(here), "-s", "federation.source=mnist", "--data-dir", here / "data"))
    assert "train-images-idx3-ubyte" in message
    assert not (here / "runs").exists()


def test_an_existing_run_directory_is_not_overwritten_silently(here: Path) -> None:
    path = tiny(here)
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("years of work")
    assert "--overwrite" in error_of(coterie("run", path, "--output", "mine"))
    assert "not a run directory" in error_of(coterie("run", path, "--output", "mine", "--overwrite"))
    assert error_of(coterie("run", path, "--overwrite")).startswith(
        "--overwrite replaces the run directory that --output"
    )
    assert "not a run directory" in error_of(coterie("run", path, "-s", "output=mine", "--overwrite"))
    assert [file.name for file in (here / "mine").iterdir()] == ["thesis.tex"]


def test_an_output_that_cannot_be_written(here: Path) -> None:
    (here / "file").write_text("")
    assert "--output" in error_of(coterie("run", tiny(here), "--output", here / "file" / "run"))


def test_resuming_what_is_no_run(here: Path) -> None:
    assert "There is no run directory nowhere" in error_of(coterie("resume", "nowhere"))
    assert "is not a run directory" in error_of(coterie("resume", here))


def test_a_page_that_cannot_be_written(here: Path) -> None:
    assert "cannot be written" in error_of(coterie("show", tiny(here), "--html", here / "no" / "page.html"))


def test_a_dry_run_finds_the_same_mistakes(here: Path) -> None:
    assert "did you mean 'fedora'" in error_of(coterie("run", tiny(here), "--dry-run", "-s", "algorithms=fedorra"))


def test_debug_shows_where_it_happened(here: Path) -> None:
    result = coterie("run", tiny(here), "--debug", "-s", "rouds=3")
    assert type(result.exception).__name__ == "CoterieError"
    assert result.exc_info is not None


def test_colons_in_a_message_are_not_taken_for_a_picture(here: Path) -> None:
    assert error_of(coterie("check", "a:b:c")).startswith("algorithm 'a:b:c' cannot be imported")
    assert "algorithm 'a:x:c'" in error_of(coterie("run", tiny(here), "-s", "algorithms=[a:x:c]"))


def test_brackets_in_a_message_are_not_taken_for_markup(here: Path) -> None:
    path = here / "a[bold]b.yaml"
    path.write_text(TINY + "rouds: 3\n")
    assert error_of(coterie("run", path)).startswith(f"{path}: ")


@pytest.mark.parametrize("words", [("show", "quickstart"), ("deploy", "check", "site.yaml")])
def test_a_seed_is_not_negative(words: tuple[str, ...]) -> None:
    result = coterie(*words, "--seed", "-1")
    assert result.exit_code == 2
    assert "not in the range" in result.output
