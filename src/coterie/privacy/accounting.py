"""What the noised answers of a site have given away so far, as (epsilon, delta)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf, sqrt
from pathlib import Path

from coterie.errors import CoterieError
from coterie.privacy.policy import Policy, Refused
from coterie.runs.atomic import write_json

FILE = "privacy.json"


def epsilon_of(answers: int, noise: float, delta: float) -> float:
    """Epsilon after so many answers with one noise multiplier, see `Accountant`.

    Raises
    ------
    CoterieError
        The package dp-accounting is missing.
    """
    _check_package()
    return _epsilon({noise: answers}, delta)


def _check_package() -> None:
    if find_spec("dp_accounting") is None:
        raise CoterieError("noise needs the package dp-accounting for its account: pip install 'coterie[privacy]'")


def _epsilon(counts: Mapping[float, int], delta: float) -> float:
    """Of so many answers by noise multiplier."""
    precision = sum(n * (2.0 / noise) ** 2 for noise, n in counts.items())  # 1 / multiplier^2 of all together
    if precision == 0:
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    return float(get_epsilon_gaussian(sqrt(1.0 / precision), delta))


class Accountant:
    """The account of one site, kept in its own folder.

    Each noised answer is one Gaussian mechanism; n of them, each of which may depend on those before, are one with 1 /
    sqrt(n) of the noise multiplier (Dong, Roth & Su, Gaussian Differential Privacy, JRSS B 2022, Corollary 3.3), whose
    epsilon is known exactly (Balle & Wang, ICML 2018, Theorem 8; the package dp-accounting). A site is part of every
    round that it is asked for, so nothing is taken off for sampling.

    **What (epsilon, delta) means.** Take any two sets of data that the site could have. Whoever sees all its answers,
    the server too, tells one from the other hardly better than by guessing: each event is at most exp(epsilon) times as
    probable under one as under the other, plus delta. Two answers are at most 2 clip apart, so the multiplier that
    counts is ``noise / 2``. All data of the site are protected as one; a single person in them is protected by the same
    epsilon, not by a smaller one. It covers the values of answers only: not that and when the site answers or refuses,
    not its number of examples, not figures of evaluation, not answers that were sent without noise.

    Parameters
    ----------
    folder : Path
        The site's own folder; the count is in ``privacy.json`` there.
    policy : Policy
        Its ``noise``, ``delta`` and ``epsilon``.

    Raises
    ------
    CoterieError
        The package dp-accounting is missing, or the policy has no noise.
    """

    def __init__(self, folder: Path, policy: Policy) -> None:
        if policy.noise is None:
            raise CoterieError("an account of privacy needs policy.noise")
        _check_package()
        self.path, self.policy, self.noise = folder / FILE, policy, policy.noise

    @property
    def answers(self) -> int:
        """Noised answers so far."""
        return sum(self._read().values())

    def epsilon(self, delta: float | None = None, more: int = 0) -> float:
        """Epsilon at ``delta`` (default: the policy's), so far or after ``more`` answers with the policy's noise."""
        return self._epsilon(self._read(), self.policy.delta if delta is None else delta, more)

    def spend(self) -> float:
        """Count one more answer, on the disk before it leaves; returns epsilon after it.

        Raises
        ------
        Refused
            The budget ``policy.epsilon`` would be exceeded; nothing is counted.
        """
        with self._alone():
            counts = self._read()
            after = self._epsilon(counts, self.policy.delta, 1)
            if self.policy.epsilon is not None and after > self.policy.epsilon:
                raise Refused("policy.epsilon does not allow another answer: the budget is spent")
            counts[self.noise] = counts.get(self.noise, 0) + 1
            write_json(self.path, {"answers": [{"noise": noise, "count": n} for noise, n in sorted(counts.items())]})
        return after

    def _epsilon(self, counts: dict[float, int], delta: float, more: int) -> float:
        counts = {**counts, self.noise: counts.get(self.noise, 0) + more}
        return _epsilon(counts, delta)

    def _read(self) -> dict[float, int]:
        """Noised answers so far by noise multiplier; a file that cannot be understood is never taken for none."""
        if not self.path.exists():
            return {}
        try:
            entries = json.loads(self.path.read_text(encoding="utf-8"))["answers"]
            counts = {float(entry["noise"]): int(entry["count"]) for entry in entries}
            if len(counts) != len(entries) or any(n < 0 or not 0 < noise < inf for noise, n in counts.items()):
                raise ValueError("no count")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CoterieError(
                f"{self.path}: the account of what has left this site cannot be read, so nothing more may leave; "
                "put back its last copy"
            ) from error
        return counts

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time; the system lets go when it ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # a system without such locks
            yield
            return
        try:
            file = self.path.with_name(f".{FILE}.lock").open("w")
        except OSError as error:
            raise CoterieError(f"{self.path.parent} must be a folder that the site can write to") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
