"""Real processes that prepare their tables together have the results of the simulation of the same tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import yaml
from comparing import check_equal, check_models
from tabled import COLUMNS, EXPERIMENT, SITES, simulate, table

from coterie.config import parse_config
from coterie.deploy.processes import Deployment, free_ports
from coterie.deploy.writing import Plan, write_federation

pytestmark = [pytest.mark.full, pytest.mark.timeout(400)]

SHORT = {"algorithms": ["fedavg"], "rounds": 1}


def test_the_run_of_real_processes_is_that_of_the_simulation(tmp_path: Path) -> None:
    simulated = simulate(tmp_path, **SHORT)
    tree = {**EXPERIMENT, **SHORT, "federation": {"source": "sites", **COLUMNS}, "sites": {"names": list(SITES)}}
    config = parse_config(tree)
    folder = tmp_path / "federation"
    write_federation(folder, Plan(config, SITES, "127.0.0.1", free_ports(len(SITES) + 1)))
    for number, name in enumerate(SITES):
        place = folder / "sites" / name
        table(number).to_csv(place / "rows.csv", index=False)
        own = yaml.safe_load((place / "site.yaml").read_text())
        (place / "site.yaml").write_text(yaml.safe_dump({**own, "data": {"table": "rows.csv"}}))
    run = tmp_path / "deployed"
    with Deployment(folder, environment={"OMP_NUM_THREADS": "1"}, grace=4) as deployment:
        deployment.start_server()
        deployment.register()
        for name in SITES:
            deployment.start_site(name, warm=True)
        status = deployment.run(run, timeout=300)
        assert status == "finished:completed", deployment.tail("run", 30)
        assert re.search("preprocessing: .* has answered, 3 of 3", deployment.log("run").read_text())
    assert json.loads((run / "schemas" / "seed0.json").read_text()) == json.loads(
        (simulated / "schemas" / "seed0.json").read_text()
    )
    check_equal(run, simulated)
    check_models(folder / "sites", simulated)
