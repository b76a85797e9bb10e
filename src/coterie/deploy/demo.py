"""A whole federation of real processes on this machine, from its files to its results."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.config import Config, parse_config
from coterie.deploy.processes import Deployment, free_ports
from coterie.deploy.schema import Schema
from coterie.deploy.writing import Plan, write_federation
from coterie.errors import CoterieError
from coterie.experiment import Result
from coterie.federation import Federation, build_federation

MOST_SITES = 16
"""As many sites as one machine is asked to run, each with several processes."""

_COMMON: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.05},
    "algorithms": ["local", "fedavg", "fedora"],
    "rounds": 6,
    "evaluate_every": 1,
    "report": "best_val",
}
HEART = {
    "name": "demo-heart-disease",
    "federation": {"source": "heart-disease", "partition": {"rule": "natural"}},
    **_COMMON,
}
DIGITS = {
    "name": "demo-digits",
    "federation": {
        "source": "digits",
        "partition": {"rule": "rotation", "clients": 4},
        "train": 64,
        "validation": 32,
        "test": 64,
    },
    **_COMMON,
}


def demo_config(data_dir: Path | None = None) -> Config:
    """Four hospitals where their data are at hand, else four sites with rotated digits."""
    heart = parse_config(HEART)
    try:
        build_federation(heart.federation, seed=0, data_dir=data_dir)
    except CoterieError:
        return parse_config(DIGITS)
    return heart


def demonstrate(
    config: Config,
    folder: Path | None = None,
    *,
    data_dir: Path | None = None,
    timeout: float = 600.0,
    warm: bool = False,
    say: Callable[[str], None] = print,
) -> Result:
    """Write a federation, run server and sites as processes of this machine, train, and end them all.

    Parameters
    ----------
    config : Config
        The experiment; the clients of its federation are the sites.
    folder : Path, optional
        Where to write the federation; left out, a temporary folder, which stays.
    data_dir : Path, optional
        Where data files lie.
    timeout : float
        Seconds that training may take.
    warm : bool
        Sites keep Python ready between rounds.
    say : callable
        Is given one line at a time.

    Raises
    ------
    CoterieError
        Something failed or took too long; the message names the log.
    """
    federation = build_federation(config.federation, seed=config.seeds[0], data_dir=data_dir)
    if federation.k > MOST_SITES:
        raise CoterieError(f"The experiment has {federation.k} clients, more than {MOST_SITES} sites for one machine.")
    where = Path(tempfile.mkdtemp(prefix="coterie-demo-")) if folder is None else folder
    write_federation(where, _plan(config, federation, data_dir), overwrite=folder is None)
    say(f"A federation of {federation.k} sites is in {where}")
    begin = time.monotonic()
    output = where.absolute() / "server" / "runs" / "demo"
    with ended(Deployment(where)) as deployment:
        deployment.start_server()
        host, port = deployment.address
        say(f"The server listens at {host}:{port} (TLS); its log is {deployment.log('server')}")
        for name in deployment.sites:
            deployment.register([name])
            deployment.start_site(name, warm=warm)
        deployment.wait_online()
        say(f"Connected after {time.monotonic() - begin:.0f} s: {', '.join(deployment.sites)}")
        status = deployment.run(output, timeout=timeout, watch=say)
        if status != "finished:completed" or not (output / "summary.json").exists():
            raise CoterieError(
                f"The run is {status}, without a summary in {output}: see {deployment.log('run')} and the other logs."
            )
    say(f"Ended after {time.monotonic() - begin:.0f} s")
    rows = json.loads((output / "summary.json").read_text(encoding="utf-8"))["rows"]
    return Result(output, rows, config.name)


def _plan(config: Config, federation: Federation, data_dir: Path | None) -> Plan:
    port = free_ports(federation.k + 1)
    return Plan(config, federation.names, "127.0.0.1", port, Schema.of(federation), federation, data_dir)


@contextmanager
def ended(deployment: Deployment) -> Iterator[Deployment]:
    """End all processes at the end, also after Ctrl-C and SIGTERM; a second Ctrl-C does not leave any behind."""
    main = threading.current_thread() is threading.main_thread()

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        yield deployment
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        with suppress(OSError):
            deployment.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
