"""The conformance suite as a feature: `check_algorithm` puts any method to the test."""

from coterie.testing.check import ConformanceError, Finding, check_algorithm, findings_of
from coterie.testing.identities import IDENTITIES

__all__ = ["IDENTITIES", "ConformanceError", "Finding", "check_algorithm", "findings_of"]
