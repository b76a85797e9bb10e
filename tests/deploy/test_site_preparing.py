"""Sites with tables agree on how these become inputs, as the simulation does, and tell no more than sums for it."""

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

import coterie
from coterie.config import parse_config
from coterie.deploy.roster import Roster
from coterie.deploy.serving import Deployed
from coterie.deploy.siteside import answer
from coterie.engines.wire import Packet

SITES = ("east", "north", "west")
COLUMNS: dict[str, Any] = {
    "target": "state", "labels": ["healthy", "sick"], "split": "part", "missing": "mark", "categorical": ["ward"],
    "preprocessing": "federated",
}  # fmt: skip
EXPERIMENT: dict[str, Any] = {
    "name": "patients",
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"epochs": 2, "batch_size": 64, "lr": 0.2},  # all rows at once, since each draws an order of its own
    "algorithms": ["local", "fedavg"],
    "rounds": 2,
    "evaluate_every": 1,
    "dtype": "float64",
}


def table(number: int, n: int = 30) -> pd.DataFrame:
    """The rows of a site: gaps in numbers and categories, and categories that not every site has."""
    generator = np.random.default_rng(number)
    pressure = generator.normal(120 + 15 * number, 10, n).round(2).astype(str).astype(object)
    pressure[3 + number :: 9] = "NA"
    colour = generator.choice(["red", "green", ("blue", "black", "white")[number]], n).astype(object)
    colour[::11] = ""
    return pd.DataFrame(
        {
            "age": generator.integers(20, 80, n),
            "pressure": pressure,
            "colour": colour,
            "ward": generator.integers(1, 3 + number, n),
            "state": generator.choice(["healthy", "sick"], n),
            "part": (["train"] * 4 + ["validation"] + ["test"]) * (n // 6),
        }
    )


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated")
    whole = pd.concat([table(number).assign(site=name) for number, name in enumerate(SITES)])
    whole.to_csv(folder / "all.csv", index=False)
    federation = {"source": "table", "path": str(folder / "all.csv"), "client": "site", **COLUMNS}
    coterie.run({**EXPERIMENT, "federation": federation}, output=folder / "run")
    return folder / "run"


class Couriers:
    """Carry every message to the site's own code; sites can be away, and their answers changed on the way."""

    def __init__(self, folder: Path, roster: Roster, hello: Packet) -> None:
        self.folder, self.roster, self.hello = folder, roster, hello
        self.away: set[str] = set()
        self.change: Callable[[str, Packet], Packet | str | None] = lambda name, packet: packet
        self.prepared: list[str] = []
        self.stop_before: int | None = None

    def reachable(self) -> frozenset[str]:
        for number, name in enumerate(SITES):
            if name not in self.roster.nodes and name not in self.away:
                self.roster.meet(100 + number, self.taken(name, self.hello).tree())
        return frozenset(self.roster.nodes) - self.away

    def wait(self, count: int, seconds: float) -> frozenset[str]:
        return self.reachable()

    def taken(self, name: str, packet: Packet) -> Packet:
        return answer(packet, {"client-id": name, "site-file": str(self.folder / name / "site.yaml")}, {})

    def exchange(self, packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        for name, packet in packets.items():
            tree = packet.tree()
            if "prepare" in tree:
                self.prepared.append(name)
                if (changed := self.change(name, self.taken(name, packet))) is not None:
                    yield name, changed
                continue
            if self.stop_before is not None and tree["round"] >= self.stop_before:
                raise KeyboardInterrupt
            yield name, self.taken(name, packet)


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
    assert couriers.prepared == list(SITES)
