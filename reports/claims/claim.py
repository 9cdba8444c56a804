"""Rulings on claims and advice, which follow from findings: contrary evidence gives the contrary ruling.

A claim is divided into statements. A true statement speaks *for* the claim or *against* it, is *needed* before
anything can be decided, or is only reported *beside* the ruling.

    supported           all findings speak for it
    refuted             all findings speak against it
    supported in part   some findings, or the findings in some cases, speak for it
    cannot decide       a requirement is missing, a finding is unknown, or records of one case contradict each other
    not tested here     nothing that speaks for or against it has run
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Literal, Sequence

from experiments.core.verdict import CANNOT_DECIDE, NOT_TESTED, REFUTED, SUPPORTED, SUPPORTED_IN_PART, Ruling
from reports.claims.findings import Evidence, Finding, Setting, record_digest
from reports.claims.notes import Note

Decide = Callable[[Evidence], Ruling]


@dataclass(frozen=True)
class Claim:
    """A published claim, in our words."""

    id: str
    note: Note
    text: str
    decide: Decide


@dataclass(frozen=True)
class Advice:
    """What to do instead of what a note did. Its ruling says whether these records bear it out."""

    id: str
    note: Note
    text: str
    decide: Decide


@dataclass(frozen=True)
class Statement:
    """A finding, how it counts, and the words for it."""

    weight: Literal["for", "against", "needed", "beside"]
    finding: Finding
    yes: str
    no: str

    @property
    def votes(self) -> set[bool]:
        """Whether it says that the claim is true, false, or both, as in different cases."""
        answers = {"yes": {True}, "no": {False}, "mixed": {True, False}}.get(self.finding.state, set())
        return {not one for one in answers} if self.weight == "against" else answers

    @property
    def decides(self) -> bool:
        """Whether it speaks for or against the claim."""
        return self.weight in ("for", "against")

    @property
    def hindrance(self) -> str:
        """Why the claim cannot be decided with this finding. Empty if it can."""
        state, name = self.finding.state, self.finding.name
        if self.weight == "beside":
            return ""
        if self.weight == "needed" and state in ("no", "mixed"):
            return f"what would have to be there is not: {name}"
        reasons = {"absent": "not run", "unknown": "it cannot be said of", "torn": "records contradict each other in"}
        return f"{reasons[state]}: {name}" if state in reasons else ""


def statement_for(finding: Finding, yes: str, no: str) -> Statement:
    """Return a statement that speaks for the claim if the finding is positive."""
    return Statement("for", finding, yes, no)


def statement_against(finding: Finding, yes: str, no: str) -> Statement:
    """Return a statement that speaks against the claim if the finding is positive."""
    return Statement("against", finding, yes, no)


def requirement(finding: Finding, yes: str, no: str) -> Statement:
    """Return a statement that must be true before the others can decide anything."""
    return Statement("needed", finding, yes, no)


def remark(finding: Finding, yes: str, no: str) -> Statement:
    """Return a statement that is reported with the ruling and does not decide it."""
    return Statement("beside", finding, yes, no)


def rule(*statements: Statement) -> Ruling:
    """Rule on a claim all of whose statements must be true."""
    return _ruling(statements, [one.hindrance for one in statements if one.hindrance])


def rule_any(*statements: Statement) -> Ruling:
    """Rule on a claim for which one true statement is enough; each false one makes it true in part only."""
    decided = [one for one in statements if one.votes]
    hindrances = [one.hindrance for one in statements if one.hindrance]
    return _ruling(statements, [] if decided else hindrances)


def _ruling(statements: Sequence[Statement], hindrances: Sequence[str]) -> Ruling:
    deciding = [one for one in statements if one.decides]
    if not any(one.finding.units for one in deciding):
        names = dict.fromkeys(one.finding.name for one in deciding)
        return Ruling(NOT_TESTED, f"not run here: {'; '.join(names)}", ())
    votes = {vote for one in deciding for vote in one.votes}
    word = SUPPORTED if votes == {True} else REFUTED if votes == {False} else SUPPORTED_IN_PART
    found = [one.finding.describe(one.yes, one.no) for one in statements if one.finding.units]
    # Hindrances are reported even if the ruling does not depend on them.
    lacking = [one.hindrance for one in statements if one.hindrance]
    reason = "; ".join([*found, *dict.fromkeys(lacking)])
    cited = {record_digest(record) for one in statements for record in one.finding.records}
    return Ruling(CANNOT_DECIDE if hindrances else word, reason, tuple(sorted(cited)))


def decide_in_each_setting(decide: Decide) -> Decide:
    """Return a decision that rules on each setting by itself, and reports each ruling where they differ."""

    def decide_all(evidence: Evidence) -> Ruling:
        found = {setting: decide(one) for setting, one in evidence.by_setting.items()}
        tested = {setting: ruling for setting, ruling in found.items() if ruling.word != NOT_TESTED}
        if not tested:
            return next(iter(found.values())) if found else decide(evidence)
        cited = {name for ruling in tested.values() for name in ruling.digests}
        return Ruling(
            _common_word([one.word for one in tested.values()]), _reasons_by_setting(tested), tuple(sorted(cited))
        )

    return decide_all


def _common_word(words: Sequence[str]) -> str:
    """Return one ruling for several settings; settings that cannot decide count only if all of them cannot."""
    decided = {word for word in words if word != CANNOT_DECIDE}
    if not decided:
        return CANNOT_DECIDE
    return decided.pop() if len(decided) == 1 else SUPPORTED_IN_PART


def _reasons_by_setting(tested: dict[Setting, Ruling]) -> str:
    """Return each reason once, with the settings that gave it if there are several.

    Settings without a record of the claim are not mentioned.
    """
    every = list(tested)
    if len(every) == 1:
        return tested[every[0]].reason
    grouped: dict[tuple[str, str], list[Setting]] = {}
    for setting, ruling in tested.items():
        grouped.setdefault((ruling.word, ruling.reason), []).append(setting)
    if len(grouped) == 1:
        return f"in each of {len(every)} settings: {tested[every[0]].reason}"
    return ". ".join(
        f"With {' / '.join(one.describe(every) for one in listed)}, {word}: {reason}"
        for (word, reason), listed in grouped.items()
    )
