"""A process that tries settings: trials come on standard input, what becomes of them leaves on standard output."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from coterie.experiment.worker import Pipe, main, portable
from coterie.tuning.attempts import Attempts
from coterie.tuning.trial import Trial


class Correspondent:
    """A `Watcher` that passes everything on and waits for the answer."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def _call(self, name: str, **arguments: Any) -> bool:
        self._pipe.send(("call", (name, arguments)))
        return bool(self._pipe.receive())

    def divides(self, trial: Trial, seed: int, digest: str) -> bool:
        """See `Watcher`."""
        return self._call("divides", seed=seed, digest=digest)

    def begins(self, trial: Trial, seed: int) -> bool:
        """See `Watcher`."""
        return self._call("begins", seed=seed)

    def settles(self, trial: Trial, resolved: Mapping[str, Any]) -> None:
        """See `Watcher`."""
        self._call("settles", resolved=dict(resolved))

    def advances(self, trial: Trial, seed: int, round: int) -> bool:
        """See `Watcher`."""
        return self._call("advances", seed=seed, round=round)

    def ends(self, trial: Trial, seed: int) -> None:
        """See `Watcher`."""
        self._call("ends", seed=seed)

    def keeps(self, trial: Trial) -> None:
        """See `Watcher`."""
        self._call("keeps", reached=trial.as_dict())


def serve(pipe: Pipe) -> None:
    """Know the search, then try the settings that are asked for until no more are."""
    modules, config, data_dir = pipe.receive()
    try:
        for module in modules:
            import_module(module)  # a method may be registered by the import of its module
        attempts = Attempts(config, data_dir)
        correspondent = Correspondent(pipe)
        while True:
            content, settled = pipe.receive()
            attempts.experiment.settle(settled)
            attempts.carry_out(Trial.of(content), correspondent)
            pipe.send(("ended", None))
    except Exception as error:
        pipe.send(("failed", portable(error)))


if __name__ == "__main__":
    main(serve)
