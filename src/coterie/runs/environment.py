"""What a run was computed with: versions and machine, without names of users, hosts or folders."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("numpy", "pandas", "pyarrow", "safetensors", "scikit-learn", "scipy", "torch")


def environment() -> dict[str, Any]:
    """Return versions of Python, coterie and its libraries, platform, CPUs, threads, GPUs and git commit.

    ``coterie`` is the package's version; ``commit`` is that of a source checkout, None when coterie was
    installed from a package; ``modified`` says whether the checkout has uncommitted changes in the package.
    """
    commit, modified = _commit(Path(__file__))
    return {
        "coterie": _version("coterie"),
        "commit": commit,
        "modified": modified,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _version(package: str) -> str | None:
    """Return the installed version of a package, None when it has none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit(here: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that a file of coterie lies in and whether the package has changed.

    A virtual environment often lies inside the repository of somebody's own project, so the commit only
    counts when that repository tracks this file.
    """
    if _git("ls-files", "--error-unmatch", here.name, folder=here.parent) is None:
        return None, None
    changes = _git("status", "--porcelain", "--", ".", folder=here.parents[1])
    return _git("rev-parse", "HEAD", folder=here.parent), None if changes is None else bool(changes)


def _git(*arguments: str, folder: Path) -> str | None:
    """Return what a git command prints in ``folder``, None when it fails or there is no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
