"""What README and documentation show is what happens: every code block is executed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from coterie.federation.datasets import find_source
from coterie.presets import available_presets
from coterie.yamltext import read_yaml

from .blocks import PAGES, ROOT, Block, blocks, blocks_of

LANGUAGES = {"python", "yaml", "bash", "bibtex", "text"}
PAPERS = re.compile(r" (fedora|feddwa|pgfed|federico)/")
PRESETS = {preset.name for preset in available_presets()}
FROM_FILES = {
    preset.name
    for preset in available_presets()
    if find_source(read_yaml(preset.text, preset.name)["federation"]["source"]).files
}
PYTHON_PAGES = sorted({block.page for block in blocks("python")})


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block without their comments."""
    return [line.split(" #")[0].strip() for line in block.text.splitlines() if line.split(" #")[0].strip()]


COMMANDS = [
    # Experiments of the papers take their time even as a dry run.
    pytest.param(
        page,
        command,
        id=f"{page.stem}: {command}",
        marks=[pytest.mark.full] if "coterie run " in command and PAPERS.search(command) else [],
    )
    for page, command in sorted({(block.page, each) for block in blocks("bash") for each in commands(block)})
]


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    """A run sets the number of torch's threads for the whole process; other tests shall not notice."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def coterie(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the ``coterie`` command in this process and return its exit code."""
    from coterie.cli import main

    monkeypatch.setattr(sys, "argv", ["coterie", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_blocks_are_in_known_languages() -> None:
    odd = [block.where for page in PAGES for block in blocks_of(page) if block.language not in LANGUAGES]
    assert not odd, f"say what language these blocks are in: {odd}"


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The blocks of a page are one program; blank lines keep the page's line numbers in tracebacks."""
    program = ""
    for block in (each for each in blocks_of(page) if each.language == "python"):
        program += "\n" * (block.line - 1 - program.count("\n")) + block.text
    script = tmp_path / page.with_suffix(".py").name
    script.write_text(program, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.where)
def test_yaml_blocks_are_experiments(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_data(block.page)
    Path("block.yaml").write_text(block.text, encoding="utf-8")
    code = coterie(["run", "block.yaml", "--dry-run"], monkeypatch)
    assert code == 0, capsys.readouterr().err


def write_data(page: Path) -> None:
    """Run the blocks that write the data of the page's experiments: their first line is ``# writes ...``."""
    for block in blocks_of(page):
        if block.language == "python" and block.text.startswith("# writes "):
            exec(compile(block.text, block.where, "exec"), {})


def save_files(page: Path, folder: Path) -> None:
    """Save the blocks that say which file they are: their first line is ``# name.py``."""
    for block in blocks_of(page):
        name = re.match(r"# (\w+\.py)\n", block.text)
        if name:
            (folder / name[1]).write_text(block.text, encoding="utf-8")


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_exist(
    page: Path,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`coterie` commands are run, `run` as a dry run; set-up commands are looked up."""
    program, *arguments = shlex.split(command)
    if program == "coterie":
        monkeypatch.chdir(tmp_path)
        save_files(page, tmp_path)
        write_data(page)
        own = [block.text for block in blocks_of(page) if block.language == "yaml"]
        Path("mine.yaml").write_text(own[0] if own else "", encoding="utf-8")
        # Files of a data set may not be there, nor may a run that could be resumed.
        examples = [word for word in arguments if word.startswith("examples/")]
        assert all((ROOT / file).exists() for file in examples)
        arguments = [str(ROOT / word) if word in examples else word for word in arguments]
        needs_data = examples or any(word.partition(":")[0] in FROM_FILES for word in arguments)
        absent = arguments[0] in ("run", "show") and needs_data and "COTERIE_DATA" not in os.environ
        files = [word for word in arguments if word.startswith("benchmarks/")]
        assert all((ROOT / file).exists() for file in files)
        long = files or "--all" in arguments  # whole searches, and all questions to all methods, take their time
        if (
            arguments[0] in ("resume", "watch", "adapt", "export", "predict", "report", "compare", "plot")
            or absent
            or long
        ):
            arguments = [arguments[0], "--help"]
        elif arguments[0] == "run" and "--dry-run" not in arguments:
            arguments.append("--dry-run")
        # tests/config builds all methods of presets; a dry run measures each of them
        if arguments[0] == "run" and (PRESETS.intersection(arguments) or examples) and "algorithms=" not in command:
            arguments += ["-s", "algorithms=[local]"]
        if arguments[0] == "tune" and "--rounds" not in arguments:
            arguments += ["--rounds", "2", "-s", "seeds=[0]"]
        if arguments[0] == "check" and len(arguments) > 2 and not arguments[2].startswith("-"):
            arguments = arguments[:2]  # each method is asked all questions by tests/testing
        code = coterie(arguments, monkeypatch)
        assert code == 0, capsys.readouterr().err
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "python3":
        assert arguments[0] == "bootstrap.py"
        assert arguments[1] in {"run", "test", "test-full", "install"}
    else:
        assert command in {"source .venv/bin/activate", "bash .ci/run"}


def test_links_between_the_files_of_the_repository_lead_somewhere() -> None:
    link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    links = [(page, target) for page in PAGES for target in link.findall(page.read_text(encoding="utf-8"))]
    assert len(links) > 20
    assert [link for link in links if not (link[0].parent / link[1]).exists()] == []
