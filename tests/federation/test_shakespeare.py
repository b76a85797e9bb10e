from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
import torch

from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.build import parse
from coterie.federation.datasets import find_source
from coterie.federation.datasets.shakespeare import Shakespeare
from coterie.federation.examples import Examples

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SMALL = {"steps": 4, "stride": 2, "min_characters": 60}


def write_play(root: Path, folder: str = "shakespeare", zipped: bool = False) -> str:
    """Gremio says 101 characters in two speeches, the first lord 80, a page 3; the last has lost his words."""
    first, second = (LETTERS * 2)[:50], (LETTERS[::-1] * 2)[:50]
    text = f"GREMIO:\n{first}\n\nFirst Lord:\n{('xyz ' * 20)}\n\nPage:\nAye\n\nGREMIO:\n{second}\n\nPage:\n"
    path = root / folder / ("input.txt.gz" if zipped else "input.txt")
    path.parent.mkdir()
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return text


def load(root: Path, **options: int) -> Examples:
    return find_source("shakespeare").load(root, 0, Shakespeare(**{**SMALL, **options}))


@pytest.mark.parametrize(("folder", "zipped"), [("shakespeare", False), ("tinyshakespeare", True)])
def test_windows_and_what_follows_them(tmp_path: Path, folder: str, zipped: bool) -> None:
    alphabet = sorted(set(write_play(tmp_path, folder, zipped)))
    examples = load(tmp_path)
    assert examples.inputs.dtype == torch.uint8
    assert examples.inputs.shape[1:] == (4,)
    assert examples.classes == len(alphabet)
    # 101 characters in 5 parts of 21 and 20 have 9 + 4 * 8 windows, 80 have 5 * 6
    assert Counter(examples.groups["role"]) == {"first-lord": 30, "gremio": 41}
    row = examples.groups["role"].index("gremio")
    assert "".join(alphabet[code] for code in examples.inputs[row]) == "abcd"
    assert alphabet[int(examples.targets[row])] == "e"
    assert "".join(alphabet[code] for code in examples.inputs[row + 1]) == "cdef"  # the stride is 2


def test_no_character_is_in_two_splits(tmp_path: Path) -> None:
    write_play(tmp_path)
    section = {"source": "shakespeare", "partition": {"rule": "natural"}, **SMALL, "stride": 1}
    federation = build_federation(section, seed=0, data_dir=tmp_path)
    assert federation.names == ("first-lord", "gremio")
    # 21 + 20 + 20 characters to train, then 20, then 20
    assert [int(federation.split(split).n[1]) for split in ("train", "validation", "test")] == [49, 16, 16]
    pieces = {}
    for split in ("train", "validation", "test"):
        inputs, targets = federation.split(split).client(1)
        pieces[split] = {(*row, target) for row, target in zip(inputs.tolist(), targets.tolist(), strict=True)}
    text = (LETTERS * 2)[:50] + "\n" + (LETTERS[::-1] * 2)[:50]
    codes = {character: code for code, character in enumerate(sorted(set("\n :AFGEILMORPadeirst" + LETTERS)))}
    said = [codes[character] for character in text]
    for split, (start, stop) in {"train": (0, 61), "validation": (61, 81), "test": (81, 101)}.items():
        possible = {tuple(said[i : i + 5]) for i in range(start, stop - 4)}
        assert pieces[split] <= possible


def test_only_the_roles_that_say_most(tmp_path: Path) -> None:
    write_play(tmp_path)
    assert set(load(tmp_path, roles=1).groups["role"]) == {"gremio"}
    with pytest.raises(CoterieError, match=r"No role of .*input.txt says 900 characters .* gremio says most, 101"):
        load(tmp_path, min_characters=900)


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="5 parts with a window of 80 characters each need min_characters of at lea"):
        parse({"source": "shakespeare", "partition": {"rule": "natural"}, "min_characters": 300})
    with pytest.raises(CoterieError, match=r"'shakespeare' needs the text input.txt \(or input.txt.gz\)"):
        load(tmp_path)
    write_play(tmp_path)
    path = tmp_path / "shakespeare" / "input.txt"
    path.write_text("no play at all\n\n")
    with pytest.raises(CoterieError, match="has no speeches, such as a line GREMIO: with text below"):
        load(tmp_path)
    path.write_text("A:\n" + "".join(chr(200 + i) for i in range(300)), encoding="utf-8")
    with pytest.raises(CoterieError, match="has 303 different characters, more than 256"):
        load(tmp_path)
    path.rename(path.with_name("input.txt.gz"))
    with pytest.raises(CoterieError, match=r"input.txt.gz is truncated, damaged or no text"):
        load(tmp_path)
