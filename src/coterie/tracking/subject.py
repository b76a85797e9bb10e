"""What is tracked, and what a tracker must be able to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from coterie.tracking.naming import Plain

Outcome = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True)
class Subject:
    """A system with one seed, which is one run of every tracker.

    Attributes
    ----------
    identity : str
        Known to nobody else; a resumed run has the same.
    folder : str
        Its place below a tracker's folder, ``fedora-released/seed0``.
    name : str
        What a person calls it.
    group : str
        The run directory that it belongs to.
    parameters : mapping
        The settings that it is trained with, one level deep.
    """

    identity: str
    folder: str
    name: str
    group: str
    parameters: Mapping[str, Plain]


class Track(Protocol):
    """One run of a tracker, being written; whatever goes wrong may be raised."""

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """The numbers of a round by name; those that the tracker has already are dropped."""

    def end(self, outcome: Outcome) -> None:
        """Nothing more comes."""


class Sink(Protocol):
    """A tracker.

    Attributes
    ----------
    name : str
        What a person calls it.
    """

    name: str

    def begin(self, subject: Subject) -> Track:
        """Start to track, or go on with what is tracked already."""
