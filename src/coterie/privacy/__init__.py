"""What may leave a site: its policy, clipping and noise on what it sends, and the account of what that gives away."""

from coterie.privacy.accounting import Accountant, epsilon_of
from coterie.privacy.filters import Done, clipped, filter_answer, noised, norms
from coterie.privacy.gate import Gate
from coterie.privacy.policy import Policy, Refused

__all__ = [
    "Accountant",
    "Done",
    "Gate",
    "Policy",
    "Refused",
    "clipped",
    "epsilon_of",
    "filter_answer",
    "noised",
    "norms",
]
