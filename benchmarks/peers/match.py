"""The referee: starts the contestants of one piece of work, lets them run rounds in turns, and ends them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import psutil

from benchmarks.peers.contestants import Contestant

ROOT = Path(__file__).resolve().parents[2]


class Failed(Exception):
    """A contestant cannot go on, and why."""


@dataclass
class Score:
    """What was measured of one contestant: seconds of each round, and CPU seconds of a round over all its processes."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: float | None = None
    peak: float | None = None
    loss: float | None = None
    about: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def median(self) -> float | None:
        """Median seconds of a round, if it came so far."""
        return None if self.failure or not self.seconds else median(self.seconds)


class Player:
    """One contestant's process and what it started."""

    def __init__(self, contestant: Contestant, file: Path, environments: Path, timeout: float) -> None:
        self.score, self.timeout = Score(contestant.name), timeout
        self._log = file.parent / f"{contestant.name}.log"
        self._buffer = b""
        variables = contestant.variables()
        variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), variables.get("PYTHONPATH", "")])
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                contestant.command(contestant.python(environments), file),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=variables,
                start_new_session=True,
            )  # fmt: skip
        self._tree = psutil.Process(self._process.pid)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def answer(self) -> dict[str, Any]:
        """The next line it sends; ``Failed`` where it ends, fails or is silent for too long."""
        until = monotonic() + self.timeout
        while b"\n" not in self._buffer:
            if not self._selector.select(max(0.0, until - monotonic())):
                raise Failed(f"no answer for {self.timeout:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 65536)
            if not piece:
                raise Failed(self._last_words())
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise Failed(answer["failure"])
        return answer

    def ask(self, what: str) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        try:
            self._process.stdin.write(f"{what}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise Failed(self._last_words()) from error
        return self.answer()

    def cpu(self) -> float:
        """CPU seconds so far of all its processes, those included that have ended."""
        total = 0.0
        for process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def peak(self) -> float:
        """The sum of the largest resident sizes of its processes, in MB; pages they share count for each."""
        total = 0
        for process in self._processes():
            with suppress(psutil.Error, OSError):
                status = Path(f"/proc/{process.pid}/status")
                if status.exists():
                    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
                    total += int(line.split()[1]) * 1024
                else:
                    total += process.memory_info().rss
        return total / 2**20

    def dismiss(self) -> None:
        """Let it end by itself: its commands are over."""
        with suppress(OSError):
            self._process.stdin.close()

    def end(self) -> None:
        """End it and everything that it started."""
        processes = self._processes()
        self.dismiss()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2 if len(processes) == 1 else 10)  # it may have children of its own to end
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._selector.close()

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [self._tree, *self._tree.children(recursive=True)]
        return []

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return f"it ended: {lines[-1][:300]}" if lines else "it ended without a word"


def play(
    contestants: Sequence[Contestant], file: Path, environments: Path, repeats: int, timeout: float
) -> list[Score]:
    """Every contestant sets up and runs one round untimed; then ``repeats`` rounds each, in turns."""
    scores: list[Score] = []
    players: list[Player] = []
    try:
        for contestant in contestants:
            if reason := contestant.missing(environments):
                scores.append(Score(contestant.name, failure=reason))
                continue
            player = Player(contestant, file, environments, timeout)
            scores.append(player.score)
            players.append(player)
            _attempt(player, lambda player: player.score.about.update(player.answer()))
            _attempt(player, lambda player: player.ask("round"))
        before = {id(player): player.cpu() for player in players}
        for turn in range(repeats):
            first = turn % max(1, len(players))
            for player in players[first:] + players[:first]:  # nobody always follows the same one
                _attempt(player, lambda player: player.score.seconds.append(player.ask("round")["seconds"]))
        for player in players:
            if not player.score.failure:
                player.score.cpu = (player.cpu() - before[id(player)]) / repeats
                player.score.peak = player.peak()
            _attempt(player, lambda player: setattr(player.score, "loss", player.ask("loss")["loss"]))
    finally:
        for player in players:
            player.dismiss()
        for player in players:
            player.end()
    return scores


def _attempt(player: Player, step: Any) -> None:
    """A step of a contestant that is still in the match; where it fails, it is out and the others go on."""
    if player.score.failure:
        return
    try:
        step(player)
    except Failed as error:
        player.score.failure = str(error)
        player.end()
