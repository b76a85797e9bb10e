"""Who takes part, in which environment, and how it is installed there."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
# environment: the arguments of `pip install`, one call after the other
RECIPES: dict[str, list[list[str]]] = {
    "flower": [["flwr[simulation]==1.42.0", TORCH]],
    # BlazeFL asks for Python 3.12 or newer; its code runs on 3.11 unchanged, as far as it is used here.
    "blazefl": [["numpy", "tqdm", TORCH], ["--no-deps", "--ignore-requires-python", "blazefl==2.0.3"]],
    "fluke": [["fluke-fl==0.8.1", TORCH]],
    "pfllib": [["numpy", "h5py", "scikit-learn", "ujson", TORCH]],
    "fl-bench": [["numpy", "rich", "ray", "omegaconf", "hydra-core", "faker", "path", "torchvision", TORCH]],
}


@dataclass(frozen=True)
class Contestant:
    """A program that trains: an adapter, where it runs, and with how many threads (``None``: torch's own choice)."""

    name: str
    adapter: str
    environment: str = ""
    options: tuple[str, ...] = ()
    threads: int | None = 1
    checkout: str = ""

    def python(self, environments: Path) -> Path:
        """The interpreter that runs it."""
        own = environments / (self.environment or "-") / "bin" / "python"
        return own if own.exists() else Path(sys.executable)

    def missing(self, environments: Path) -> str:
        """Why it cannot take part, or nothing."""
        if self.checkout or not self.environment or (environments / self.environment).exists():
            return ""
        return f"not installed: python -m benchmarks.peers install {self.environment}"

    def command(self, python: Path, file: Path) -> list[str]:
        """The command line that starts it on one task."""
        checkout = ("--checkout", self.checkout) if self.checkout else ()
        return [str(python), "-m", f"benchmarks.peers.adapters.{self.adapter}", str(file), *self.options, *checkout]

    def variables(self) -> dict[str, str]:
        """Its environment variables."""
        kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        quiet = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "1"}
        return {**kept, **quiet, **threads}


CONTESTANTS = (
    Contestant("coterie", "coterie"),
    Contestant("coterie-2", "coterie", options=("--threads", "2"), threads=None),
    Contestant("loop", "loop"),
    Contestant("loop-default", "loop", threads=None),
    Contestant("lean", "lean"),
    Contestant("blazefl", "blazefl", "blazefl"),
    Contestant("blazefl-2", "blazefl", "blazefl", ("--workers", "2")),
    Contestant("fluke", "fluke", "fluke"),
    Contestant("flower-2", "flower", "flower", ("--workers", "2")),
)
FLOOR = Contestant("floor", "floor")


def checkouts(pfllib: Path | None, fl_bench: Path | None) -> tuple[Contestant, ...]:
    """Contestants that a user brings."""
    brought = []
    if pfllib is not None:
        brought.append(Contestant("pfllib", "pfllib", "pfllib", checkout=str(pfllib.resolve())))
    if fl_bench is not None:
        brought.append(Contestant("fl-bench", "fl_bench", "fl-bench", checkout=str(fl_bench.resolve())))
    return tuple(brought)


def install(names: list[str], environments: Path) -> bool:
    """Make an environment for each of these peers; whether all went well."""
    well = True
    for name in names:
        folder = environments / name
        print(f"{name}: into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        for arguments in RECIPES[name]:
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
            if subprocess.run(command, check=False).returncode:
                print(f"{name}: pip could not install {' '.join(arguments)}", flush=True)
                well = False
                break
    return well
