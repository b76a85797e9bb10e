"""Keys of the section ``federation:`` that one source alone has."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from pydantic import Field, model_validator

from coterie.config import load_config, parse_config
from coterie.errors import CoterieError
from coterie.federation import FederationConfig, build_federation
from coterie.federation.build import parse
from coterie.federation.config import section_for
from coterie.federation.datasets import SOURCES, Options, find_source, register_generator, register_source
from coterie.federation.datasets.synthetic import Synthetic
from coterie.federation.examples import Examples


class Tides(Options):
    places: int = Field(4, ge=1, description="how many places")
    height: float = 1.0
    moon: Literal["full", "new"] = "full"

    @model_validator(mode="after")
    def _agree(self) -> Tides:
        if self.moon == "new" and self.places > 8:
            raise ValueError("under a new moon there are at most 8 places")
        return self


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tides]:
    """The source ``tides`` for one test, and the options that it was given."""
    given: list[Tides] = []

    def tides(seed: int, options: Tides) -> Examples:
        given.append(options)
        names = [f"place-{i}" for i in range(options.places) for _ in range(10)]
        inputs = torch.arange(len(names)).float()[:, None] * options.height
        return Examples("tides", inputs, torch.arange(len(names)) % 2, classes=2, groups={"place": names})

    monkeypatch.setitem(SOURCES, "tides", SOURCES["sine"])  # takes it out again
    del SOURCES["tides"]
    register_generator("tides", "toy", options=Tides)(tides)
    return given


SECTION: dict[str, Any] = {"source": "tides", "partition": {"rule": "natural"}}


def test_options_reach_the_source(drawn: list[Tides]) -> None:
    federation = build_federation({**SECTION, "places": 3, "height": 2}, seed=0)
    assert federation.names == ("place-0", "place-1", "place-2")
    assert drawn == [Tides(places=3, height=2)]
    build_federation(SECTION, seed=0)
    assert drawn[1] == Tides()


def test_options_stand_flat_in_the_section_and_in_what_is_recorded() -> None:
    config = parse({**SECTION, "height": 2})
    assert config.model_dump(include={"source", "places", "height", "moon"}) == {
        "source": "tides", "places": 4, "height": 2.0, "moon": "full",
    }  # fmt: skip
    assert list(config.model_dump())[:2] == ["source", "partition"]
    assert parse(config.model_dump()) == config
    source = build_federation(config, seed=0).source
    assert (source["places"], source["height"], source["moon"]) == (4, 2.0, "full")


def test_a_section_survives_the_way_to_another_process() -> None:
    config = parse({**SECTION, "height": 2})
    assert pickle.loads(pickle.dumps(config)) == config
    plain = parse({"source": "digits", "partition": {"rule": "iid", "clients": 3}})
    assert pickle.loads(pickle.dumps(plain)) == plain
    assert type(plain) is FederationConfig


def test_the_whole_configuration_dumps_and_loads(tmp_path: Any) -> None:
    config = parse_config({"federation": SECTION}, ["federation.height=0.5", "federation.moon=new"])
    tree = config.as_dict()["federation"]
    assert (tree["places"], tree["height"], tree["moon"]) == (4, 0.5, "new")
    again = load_config({"federation": tree})
    assert again == config
    assert again.federation.options == Tides(height=0.5, moon="new")


@pytest.mark.parametrize(
    ("keys", "in_section", "in_configuration"),
    [
        ({"heigth": 1}, "Unknown key federation.heigth. Did you mean height?", "unknown key federation.heigth: did you mean federation.height?"),
        ({"trian": 1}, "Unknown key federation.trian. Did you mean train?", "unknown key federation.trian: did you mean federation.train?"),
        ({"zzz": 1}, "resize, seed, fold, places, height, moon.", "the keys of federation are source, partition, train, validation, test, normalise, resize, seed, fold, places, height, moon."),
        ({"height": "high"}, "federation.height: Input should be a valid number", "federation.height must be a number, not the text 'high'."),
        ({"height": float("inf")}, "federation.height: Input should be a finite number", "federation.height must be a finite number, not inf."),
        ({"places": True}, "federation.places: Input should be a valid integer", "federation.places must be a whole number, not true."),
        ({"places": "3"}, "federation.places: Input should be a valid integer", "federation.places must be a whole number, not the text '3'."),
        ({"resize": True}, "federation.resize: Input should be a valid integer", "federation.resize must be a whole number, not true."),
        ({"partition": {"rule": "iid", "clients": True}}, "clients: Input should be a valid integer", "federation.partition.clients must be a whole number, not true."),
        ({"places": 0}, "federation.places: Input should be greater than or equal to 1 (got 0).", "federation.places must be at least 1, not 0."),
        ({"moon": "ful"}, "federation.moon: Input should be 'full' or 'new' (got 'ful').", "federation.moon must be full or new, not the text 'ful': did you mean full?"),
        ({"moon": "new", "places": 9}, "federation: under a new moon there are at most 8 places.", "federation: under a new moon there are at most 8 places."),
        ({"train": 0}, "federation: train and test must be above 0", "federation: train and test must be above 0"),
        ({"partition": {"rule": "natural", "places": 3}}, "Unknown key federation.partition.places. Valid: rule, group, min_examples.", "unknown key federation.partition.places: the keys of federation.partition are rule, group, min_examples."),
        # the source is what is wrong, not its options
        ({"source": "tydes", "height": 1}, "federation.source: Unknown source 'tydes'. Did you mean 'tides'?", "federation.source: Unknown source 'tydes'. Did you mean 'tides'?"),
        ({"source": ["tides"], "height": 1}, "federation.source: Input should be a valid string", "federation.source must be text, not a list."),
        # a source without options refuses them as ever
        ({"source": "digits", "height": 1}, "Unknown key federation.height. Valid: source, partition, train, validation, test, normalise, resize, seed, fold.", "unknown key federation.height: the keys of federation are source, "),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes(keys: dict[str, Any], in_section: str, in_configuration: str) -> None:
    with pytest.raises(CoterieError) as caught:
        parse({**SECTION, **keys})
    assert in_section in str(caught.value)
    with pytest.raises(CoterieError) as caught:
        parse_config({"federation": {**SECTION, **keys}})
    assert in_configuration in str(caught.value)


def test_what_does_not_fit_in_memory_is_said() -> None:
    with pytest.raises(CoterieError, match="'synthetic' do not fit in memory"):
        find_source("synthetic").load(None, 0, Synthetic(features=10**14))


def test_an_override_to_blame_is_named() -> None:
    with pytest.raises(CoterieError, match=r"^-s federation\.heigth=1: unknown key federation\.heigth: did you mean"):
        parse_config({"federation": SECTION}, ["federation.heigth=1"])


def test_a_source_that_reads_files_has_options_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "harbour", SOURCES["sine"])
    del SOURCES["harbour"]
    seen: list[Any] = []

    @register_source("harbour", "toy", "harbour.csv", options=Tides)
    def harbour(data_dir: Any, options: Tides) -> Examples:
        seen.append((data_dir, options))
        return SOURCES["tides"].load(data_dir, 0, options)

    build_federation({**SECTION, "source": "harbour", "places": 2}, seed=0, data_dir=tmp_path)
    assert seen == [(tmp_path, Tides(places=2))]
    assert SOURCES["harbour"].module == harbour.__module__


@pytest.mark.parametrize("name", ["seed", "sizes_in_force", "options"])
def test_an_option_may_not_have_the_name_of_a_common_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic import create_model

    bad: Callable[..., Any] = create_model("Bad", __base__=Options, **{name: (int, 0)})  # type: ignore[call-overload]
    monkeypatch.setitem(SOURCES, "tides", type(SOURCES["tides"])("tides", "", "", lambda *_: None, bad))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match=f"the option {name} has the name of a key of every source"):
        section_for(SECTION)
