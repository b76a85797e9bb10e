"""SCAFFOLD whose client and server code misbehave in a round for which a file in a folder says how.

The folder is that of the run, below the one that the environment names; where none is named all goes well. The file
is called after the client and the round. It is gone once the code has seen it, but for ``hold``: that lasts as long
as the file is there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.scaffold import Scaffold
from coterie.contract import Server, Site, option
from coterie.models import Models

FOLDER = "COTERIE_TEST_FAULTS"
"""Environment variable: where the faults of each run are told, each in a folder of the run's name."""


@dataclass(frozen=True)
class Faulty(Scaffold):
    """SCAFFOLD with faults; the variant names the run."""

    name: ClassVar[str] = "faulty"
    variant: str = option("", "name of the run")

    def round(self, server: Server, cohort: Tensor) -> None:
        """A fault before the sites are asked, or after they have answered."""
        self.misbehave(f"before-{server.round}")
        super().round(server, cohort)
        self.misbehave(f"after-{server.round}")

    def local_update(self, site: Site, w: Models, c: Models) -> Mapping[str, Any]:
        """A fault once the client has trained and changed its own state."""
        up = dict(super().local_update(site, w, c))
        fault = self.misbehave(f"{site.names[0]}-{site.round}")
        if fault == "nan":
            up["dc"] = up["dc"] * float("nan")
        elif fault == "shape":
            up["dc"] = Models(up["dc"].layout, {name: tensor[:, None] for name, tensor in up["dc"].tensors.items()})
        return up

    def misbehave(self, place: str) -> str:
        """Raise, end this process, or wait, as the file of that name says; other words are given back."""
        if not os.environ.get(FOLDER):
            return ""
        file = Path(os.environ[FOLDER], self.variant, place)
        if not file.exists():
            return ""
        word = file.read_text()
        file.with_name(f"{place}.seen").touch()
        if word == "hold":
            while file.exists():
                time.sleep(0.1)
            return word
        file.unlink()
        if word == "raise":
            raise RuntimeError(f"secret {place}")
        if word == "exit":
            os._exit(3)
        if word == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return word
