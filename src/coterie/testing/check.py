"""`check_algorithm`: the conformance suite, for the methods of the package and for anybody's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from time import perf_counter
from traceback import format_exception
from typing import Literal

from coterie.contract import Algorithm, Claims, algorithm_class
from coterie.errors import CoterieError, describe
from coterie.testing.identities import IDENTITIES
from coterie.testing.subject import Broken, Subject

CLAIMED = {"limits": "limits", "anchored": "anchored", "objective": "objective"}
"""Identities that ask about a claim, by the field of `Claims`."""

Verdict = Literal["holds", "broken", "exempt", "unclaimed"]


@dataclass(frozen=True)
class Finding:
    """What one identity came to for one method.

    Attributes:
        method: the method, with its variant.
        identity: the identity's name; ``question`` what it asks.
        verdict: ``holds``; ``broken``; ``exempt`` with the method's ``reason``; ``unclaimed`` where the method claims
            nothing that could be asked.
        expected, got, hint: what should be, what is, and where to look.
        seconds: how long it took.
        traceback: where the method's code raised, if it did.
    """

    method: str
    identity: str
    question: str
    verdict: Verdict
    expected: str = ""
    got: str = ""
    hint: str = ""
    reason: str = ""
    seconds: float = 0.0
    traceback: str = ""

    def __str__(self) -> str:
        if self.verdict != "broken":
            return f"{self.method}: {self.identity} {self.verdict}{f' ({self.reason})' if self.reason else ''}"
        lines = [f"{self.method}: the identity '{self.identity}' does not hold", f"  expected: {self.expected}"]
        lines += [f"  got:      {self.got}"] + ([f"  hint:     {self.hint}"] if self.hint else [])
        return "\n".join(lines)


class ConformanceError(AssertionError):
    """A method breaks identities; the message says which, what was expected, what came, and where to look."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


def check_algorithm(
    algorithm: str | type[Algorithm] | Algorithm,
    *,
    only: Iterable[str] | None = None,
    report: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """Put a method to the test: every identity that each method must keep, and those that it claims itself.

    Parameters
    ----------
    algorithm : str or type or Algorithm
        A registered name, ``module:Class``, a class (all its variants are checked), or an instance, whose options then
        are the defaults.
    only : iterable of str, optional
        Names of identities; all by default. ``coterie.testing.IDENTITIES`` lists them.
    report : callable, optional
        Called with each finding as it is made.

    Returns
    -------
    list of Finding
        All findings, none of which is ``broken``.

    Raises
    ------
    ConformanceError
        At least one identity does not hold.
    CoterieError
        The method or an identity is unknown.
    """
    findings = findings_of(algorithm, only=only, report=report)
    broken = [finding for finding in findings if finding.verdict == "broken"]
    if broken:
        raise ConformanceError(broken)
    return findings


def findings_of(
    algorithm: str | type[Algorithm] | Algorithm,
    *,
    only: Iterable[str] | None = None,
    report: Callable[[Finding], None] | None = None,
) -> list[Finding]:
    """As `check_algorithm`, but broken identities are findings as well and nothing is raised for them."""
    names = list(IDENTITIES) if only is None else [_identity(name) for name in only]
    findings = []
    for subject in subjects_of(algorithm):
        _check_claims(subject)
        crashes: set[str] = set()
        for name in names:
            finding = finding_of(subject, name)
            if finding.traceback and finding.got in crashes:
                break  # the method does not run: saying so again would hide where
            if finding.traceback:
                crashes.add(finding.got)
            findings.append(finding)
            if report is not None:
                report(finding)
    return findings


def subjects_of(algorithm: str | type[Algorithm] | Algorithm) -> list[Subject]:
    """The method, or each of its variants."""
    if isinstance(algorithm, Algorithm):
        options = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}
        return [Subject(type(algorithm), options.pop("variant", None), options)]
    cls = algorithm_class(algorithm) if isinstance(algorithm, str) else algorithm
    return [Subject(cls, variant) for variant in cls.variants] if cls.variants else [Subject(cls)]


def finding_of(subject: Subject, name: str) -> Finding:
    """What one identity, by name, comes to for one method."""
    check, asked = IDENTITIES[name], question(name)
    reason = subject.claims.exempt.get(name)
    if reason is not None:
        return Finding(subject.name, name, asked, "exempt", reason=reason)
    if name in CLAIMED and not getattr(subject.claims, CLAIMED[name]):
        return Finding(subject.name, name, asked, "unclaimed")
    begin, traceback = perf_counter(), ""
    try:
        check(subject)
    except Broken as broken:
        expected, got, hint = broken.expected, broken.got, broken.hint
    except (Exception, SystemExit) as error:  # a finding, not the end of the suite
        expected, got, hint = "the toy runs of this identity end", f"{_place(error)}{describe(error)}", ""
        if not isinstance(error, CoterieError):
            traceback = "".join(format_exception(error))
            hint = "the method's own code raised this; --debug shows the traceback"
    else:
        return Finding(subject.name, name, asked, "holds", seconds=perf_counter() - begin)
    return Finding(subject.name, name, asked, "broken", expected, got, hint, "", perf_counter() - begin, traceback)


def question(identity: str) -> str:
    """What an identity asks, in a line."""
    return (inspect.getdoc(IDENTITIES[identity]) or "").split("\n", 1)[0]


def _place(error: BaseException) -> str:
    """The line of the method's own code where an error arose, or else the last one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    file = trace.tb_frame.f_code.co_filename
    return f"{file.rsplit('/', 1)[-1]}, line {trace.tb_lineno}: "


def _identity(name: str) -> str:
    if name in IDENTITIES:
        return name
    near = get_close_matches(name, IDENTITIES, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(IDENTITIES)}"
    raise CoterieError(f"identity '{name}' is unknown; {hint}")


def _check_claims(subject: Subject) -> None:
    if not isinstance(subject.claims, Claims):
        raise CoterieError(f"{subject.name}: claims is {type(subject.claims).__name__}, not coterie.contract.Claims")
    try:
        subject.make()
    except TypeError as error:
        raise CoterieError(
            f"{subject.name} cannot be made: {describe(error)}; give its options defaults, or check an instance"
        ) from error
    for name, reason in subject.claims.exempt.items():
        _identity(name)
        if not reason.strip():
            raise CoterieError(f"{subject.name}: claims.exempt names '{name}' without a reason; give one")
