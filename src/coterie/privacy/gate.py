"""The one way out of a site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from coterie.contract import Algorithm
from coterie.models import Models
from coterie.privacy.accounting import Accountant
from coterie.privacy.filters import Done, Values, filter_answer
from coterie.privacy.policy import Policy


class Gate:
    """What every request passes on its way in and every answer on its way out of a site.

    Parameters
    ----------
    policy : Policy
        What the site allows.
    folder : Path
        The site's own folder, where its account of privacy is kept.

    Raises
    ------
    CoterieError
        There is noise, and the package dp-accounting is missing.
    """

    def __init__(self, policy: Policy, folder: Path) -> None:
        self.policy = policy
        self.accountant = None if policy.noise is None else Accountant(folder, policy)

    def admit(self, algorithm: str | Algorithm, examples: int) -> None:
        """Refuse a method, by name before its code is imported, or too few training examples."""
        self.policy.check_algorithm(algorithm)
        self.policy.check_examples(examples)

    def release(
        self,
        algorithm: Algorithm,
        received: Values,
        answer: Values,
        peers: Mapping[str, Tensor],
        initial: Models,
    ) -> tuple[dict[str, Tensor | Models], Done]:
        """An answer as it may leave, see `filter_answer`; where it was noised, it has been counted.

        Send what this returned again, rather than asking again, when a message was lost: every call spends. An empty
        answer says nothing and spends nothing.

        Raises
        ------
        Refused
            It may not leave, or the budget is spent.
        """
        self.policy.check_answer(answer, peers, algorithm)
        filtered, done = filter_answer(
            self.policy, received, answer, initial=initial, differences=algorithm.differences, peers=peers
        )
        if self.accountant is not None and answer:
            self.accountant.spend()
        return filtered, done
