"""How a claim, and a piece of advice, is decided from what was found: the word comes out of the evidence.

A claim is taken apart into statements. What speaks *for* it if found, what speaks *against* it if found, what is
*needed* before anything can be said, and what is told *beside* it. Contrary evidence gives the contrary word.

    supported           everything that was to be found speaks for it
    refuted             everything speaks against it
    supported in part   some of it does, or it does in some cases
    cannot decide       something is not there, cannot be said, or records of one case contradict each other
    not tested here     nothing that speaks for or against it has run
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Literal, Sequence

from experiments.core.verdict import CANNOT_DECIDE, NOT_TESTED, REFUTED, SUPPORTED, SUPPORTED_IN_PART, Ruling
from reports.claims.findings import Evidence, Finding, Setting, name_of
from reports.claims.notes import Note

Decide = Callable[[Evidence], Ruling]


@dataclass(frozen=True)
class Claim:
    """A sentence that somebody published, in our words."""

    id: str
    note: Note
    text: str
    decide: Decide


@dataclass(frozen=True)
class Advice:
    """What to do instead of what a note did. Its ruling is whether these records bear it out."""

    id: str
    note: Note
    text: str
    decide: Decide


@dataclass(frozen=True)
class Statement:
    """What was found, which way it counts, and the words for it."""

    weight: Literal["for", "against", "needed", "beside"]
    finding: Finding
    yes: str
    no: str

    @property
    def votes(self) -> set[bool]:
        """What it says of the claim."""
        said = {"yes": {True}, "no": {False}, "mixed": {True, False}}.get(self.finding.state, set())
        return {not one for one in said} if self.weight == "against" else said

    @property
    def decides(self) -> bool:
        return self.weight in ("for", "against")

    @property
    def hindrance(self) -> str:
        """Why nothing can be decided as long as it is so. Empty if nothing hinders."""
        state, name = self.finding.state, self.finding.name
        if self.weight == "beside":
            return ""
        if self.weight == "needed" and state in ("no", "mixed"):
            return f"what would have to be there is not: {name}"
        said = {"absent": "not run", "unknown": "it cannot be said of", "torn": "records contradict each other in"}
        return f"{said[state]}: {name}" if state in said else ""


def speaks_for(finding: Finding, yes: str, no: str) -> Statement:
    """What the claim says, if found."""
    return Statement("for", finding, yes, no)


def speaks_against(finding: Finding, yes: str, no: str) -> Statement:
    """The contrary of what the claim says, if found."""
    return Statement("against", finding, yes, no)


def needed(finding: Finding, yes: str, no: str) -> Statement:
    """What must be found before anything else says something."""
    return Statement("needed", finding, yes, no)


def beside(finding: Finding, yes: str, no: str) -> Statement:
    """What is told with the ruling, and does not decide it."""
    return Statement("beside", finding, yes, no)


def rule(*statements: Statement) -> Ruling:
    """The ruling on a claim all of whose statements must be true."""
    return _ruling(statements, [one.hindrance for one in statements if one.hindrance])


def rule_any(*statements: Statement) -> Ruling:
    """The ruling on a claim for which one true statement is enough; each that is false makes it true in part only."""
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
    found = [one.finding.told(one.yes, one.no) for one in statements if one.finding.units]
    lacking = [one.hindrance for one in statements if one.hindrance]  # told even where enough was found without it
    reason = "; ".join([*found, *dict.fromkeys(lacking)])
    cited = {name_of(record) for one in statements for record in one.finding.records}
    return Ruling(CANNOT_DECIDE if hindrances else word, reason, tuple(sorted(cited)))


def in_each_setting(decide: Decide) -> Decide:
    """Decide from the records of each setting by themselves, and say what each shows where they differ."""

    def decide_all(evidence: Evidence) -> Ruling:
        found = {setting: decide(one) for setting, one in evidence.by_setting.items()}
        tested = {setting: ruling for setting, ruling in found.items() if ruling.word != NOT_TESTED}
        if not tested:
            return next(iter(found.values())) if found else decide(evidence)
        cited = {name for ruling in tested.values() for name in ruling.digests}
        return Ruling(_common([one.word for one in tested.values()]), _told_by_setting(tested), tuple(sorted(cited)))

    return decide_all


def _common(words: Sequence[str]) -> str:
    """One word for several settings: of those that could decide, if any could."""
    decided = {word for word in words if word != CANNOT_DECIDE}
    if not decided:
        return CANNOT_DECIDE
    return decided.pop() if len(decided) == 1 else SUPPORTED_IN_PART


def _told_by_setting(tested: dict[Setting, Ruling]) -> str:
    """Each reason once, with the settings that it was found in where there are several. Settings that have no record of
    the claim are not spoken of.
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
        f"With {' / '.join(one.told(every) for one in listed)}, {word}: {reason}"
        for (word, reason), listed in grouped.items()
    )
