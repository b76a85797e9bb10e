"""A federation of real processes in which several runs go on at a time, some of them disturbed."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import faulty
import pandas as pd
import yaml
from comparing import check_disturbed

import coterie
from coterie.config import Config, parse_config
from coterie.deploy.processes import Deployment, free_ports
from coterie.deploy.writing import Plan, write_federation
from coterie.federation import build_federation
from coterie.federation.schema import Schema
from coterie.yamltext import write_yaml

SITES = ("client-00", "client-01", "client-02")
COMMON: dict[str, Any] = {
    "federation": {
        "source": "digits",
        "partition": {"rule": "rotation", "clients": len(SITES)},
        "train": 24, "validation": 12, "test": 24,
    },
    "model": {"name": "mlp", "hidden": [6]},
    "training": {"epochs": 1, "batch_size": 12, "lr": 0.1},
    "rounds": 2,
    "evaluate_every": 1,
    "report": "last",
    "dtype": "float64",
}  # fmt: skip
PATIENCE = 400.0
"""Seconds for whatever is waited for."""


CLOSING = threading.Event()
"""Nobody waits any longer."""


def wait_until(ready: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something to happen."""
    end = time.monotonic() + seconds
    while not ready():
        assert not CLOSING.is_set(), what
        assert time.monotonic() < end, f"{what} has not happened within {seconds:.0f} s"
        time.sleep(0.2)


class Ward:
    """Three sites and their server as processes, which are ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.faults = folder / "federation", folder / "faults"
        self.runs, self.simulated = folder / "runs", folder / "simulated"
        self._beginning = threading.Lock()
        config = parse_config({**COMMON, "algorithms": ["local"]})
        federation = build_federation(config.federation, seed=0)
        write_federation(
            self.folder,
            Plan(config, SITES, "127.0.0.1", free_ports(len(SITES) + 1), Schema.of(federation), federation),
        )
        for name in SITES:
            self.set_policy(name)
        here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {
            "PYTHONPATH": here, faulty.FOLDER: str(self.faults), "OMP_NUM_THREADS": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }  # fmt: skip
        self.deployment = Deployment(self.folder, environment=environment, grace=4)

    def set_policy(self, name: str, **policy: Any) -> None:
        """What a site allows, besides `faulty`; it holds from the next message on."""
        path = self.folder / "sites" / name / "site.yaml"
        tree = yaml.safe_load(path.read_text())
        tree["policy"] = {"algorithms": ["built-in", "faulty:Faulty"], **policy}
        path.write_text(yaml.safe_dump(tree))

    def open(self) -> None:
        """Start everything."""
        self.deployment.start_server()
        self.deployment.register()
        for name in SITES:
            self.deployment.start_site(name, warm=True)

    def config(self, name: str, **changes: Any) -> dict[str, Any]:
        """The experiment of a run; ``faulty`` is its only method unless it says otherwise."""
        return {**COMMON, "name": name, "algorithms": [{"name": "faulty:Faulty", "variant": name}], **changes}

    def start(self, name: str, faults: Mapping[str, str] | None = None, *, sites: Any = None, **changes: Any) -> None:
        """Start a run whose code misbehaves at these places; see `faulty`."""
        tree = {**self.config(name, **changes), "sites": {"names": list(SITES), "quorum": 1, **(sites or {})}}
        experiment = self.folder / "server" / f"{name}.yaml"
        experiment.write_text(write_yaml(parse_config(tree).as_dict()))
        for place, word in (faults or {}).items():
            self.fault(name, place).parent.mkdir(parents=True, exist_ok=True)
            self.fault(name, place).write_text(word)
        self.again(name, name)

    def again(self, name: str, process: str) -> None:
        """Start a run whose files are there, anew or where it stopped; one begins after the other.

        Flower starts a server that takes 30 seconds to begin once more.
        """
        with self._beginning:
            experiment = self.folder / "server" / f"{name}.yaml"
            self.deployment.start_run(self.runs / name, experiment=experiment, name=process)
            log = self.deployment.log(process)
            wait_until(lambda: re.search("waiting for sites| is there", log.read_text()) is not None, f"{name} begins")

    def fault(self, name: str, place: str) -> Path:
        """The file that tells the fault of a run at a place."""
        return self.faults / name / place

    def seen(self, name: str, place: str) -> None:
        """Wait until the code has come to its fault."""
        wait_until(self.fault(name, f"{place}.seen").exists, f"{name}: {place}")

    def end(self, name: str, process: str | None = None) -> Path:
        """Wait until the run has ended well; its directory."""
        status = self.deployment.wait_run(process or name, timeout=PATIENCE * 2)
        assert status == "finished:completed", f"{status}: {self.deployment.tail(process or name, 30)}"
        return self.runs / name

    def failures(self, name: str) -> pd.DataFrame:
        """Who failed in which round of the disturbed method, and why."""
        table = pd.read_csv(self.runs / name / "failures.csv", keep_default_na=False)
        return table[table["algorithm"] == "faulty"]

    def reasons(self, name: str, client: str) -> dict[int, str]:
        """Why a client was left out, by round."""
        table = self.failures(name)
        mine = table[table["client"] == client]
        return dict(zip(mine["round"].tolist(), mine["reason"].tolist(), strict=True))

    def check(self, name: str, **changes: Any) -> None:
        """The run has the results of a simulation from which the same clients were absent in the same rounds."""
        table = pd.read_csv(self.runs / name / "failures.csv", keep_default_na=False)
        simulated = self.simulated / name
        for algorithm in ("local", "faulty"):
            rows = table[table["algorithm"] == algorithm]
            absent = {int(round): sorted(set(group["client"])) for round, group in rows.groupby("round")}
            methods = ["local"] if algorithm == "local" else [{"name": "faulty:Faulty", "variant": name}]
            tree = self.config(name, **{**changes, "algorithms": methods, "absent": absent})
            if not (simulated / algorithm).exists():
                coterie.run(tree, output=simulated / algorithm)
            check_disturbed(self.runs / name, simulated / algorithm, self.folder / "sites", algorithm)

    def simulate(self, name: str, config: Mapping[str, Any] | Config) -> Path:
        """The undisturbed run in the simulation; its directory."""
        coterie.run(config, output=self.simulated / name)
        return self.simulated / name
