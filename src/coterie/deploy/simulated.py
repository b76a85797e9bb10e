"""A federation whose sites Flower simulates: the same apps and messages, but no keys, no network and no SuperNodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from coterie.deploy.processes import CONNECTION, Deployment, free_ports


class FlowerSimulation(Deployment):
    """A federation that `coterie deploy init` has written, in Flower's simulation runtime (which needs Ray).

    Start the server, then `run`; there are no sites to be registered or started. They use the files in ``sites/`` and
    keep their state there, as real ones do.

    Parameters
    ----------
    folder, environment, grace
        See `Deployment`.
    cpus : int
        Cores for each site at a time; as many sites compute at a time as the machine has cores for.
    """

    def __init__(
        self, folder: Path, *, environment: Mapping[str, str] | None = None, grace: float = 8.0, cpus: int = 1
    ) -> None:
        ray = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}  # or it joins a cluster that happens to be here
        super().__init__(folder, environment={**ray, **(environment or {})}, grace=grace)
        self.server, self.cpus = self.folder / "simulated", cpus
        (self.server / "flwr").mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{free_ports(1)}"
        connection = f'[superlink]\n\n[superlink.{CONNECTION}]\naddress = "{address}"\ninsecure = true\n'
        (self.server / "flwr" / "config.toml").write_text(connection, encoding="utf-8")

    def start_server(self, *, timeout: float = 60.0) -> None:
        """Start the SuperLink, and wait until it listens."""
        host, port = self.address
        words = ["--insecure", "--simulation", "--host", host, "--port", str(port)]
        self._start("server", ["flower-superlink", *words, "--disable-runtime-dependency-installation"], self.server)
        self.wait_for_server(timeout=timeout)

    def start_run(self, output: Path | None = None, *, experiment: Path | None = None, name: str = "run") -> None:
        """Start training and return at once; `wait_run` waits for its end."""
        values = {
            "experiment": experiment or self.folder / "server" / "experiment.yaml",
            "output": output or self.server / "runs" / name,
            "sites-folder": self.folder / "sites",
        }
        config = " ".join(f"{key}={json.dumps(str(path.absolute()))}" for key, path in values.items())
        size = f"num-supernodes={len(self.sites)} client-resources-num-cpus={self.cpus}"
        words = [str(self.folder / "app"), CONNECTION, "--stream", "--federation-config", size, "-c", config]
        self._start(name, ["flwr", "run", *words], self.server, fresh=True)
