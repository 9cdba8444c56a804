"""All claims of all notes, with their rulings, and the advice on what to do instead."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any, Iterator, Sequence

from experiments.core.text import visible_text
from experiments.core.verdict import Ruling
from reports.claims import checkpoint_note, compile_note
from reports.claims.claim import Advice, Claim
from reports.claims.findings import Evidence, gather

__all__ = ["ADVICE", "CLAIMS", "Decided", "advise", "claim_rows", "claims_text", "decide", "decide_all", "gather"]

CLAIMS = (*checkpoint_note.CLAIMS, *compile_note.CLAIMS)
ADVICE = (*checkpoint_note.ADVICE, *compile_note.ADVICE)


def decide(evidence: Evidence) -> list[tuple[Claim, Ruling]]:
    """Rule on every claim."""
    return [(claim, claim.decide(evidence)) for claim in CLAIMS]


def advise(evidence: Evidence) -> list[tuple[Advice, Ruling]]:
    """Rule on every piece of advice: whether the records bear it out."""
    return [(advice, advice.decide(evidence)) for advice in ADVICE]


@dataclass(frozen=True)
class Decided:
    """All claims and all advice, with their rulings."""

    claims: Sequence[tuple[Claim, Ruling]]
    advice: Sequence[tuple[Advice, Ruling]]


def decide_all(evidence: Evidence) -> Decided:
    """Rule on every claim and on all advice."""
    return Decided(decide(evidence), advise(evidence))


def claim_rows(found: Decided) -> list[dict[str, Any]]:
    """Return claims and advice with their rulings, as objects for JSON."""
    every: list[tuple[Claim | Advice, Ruling]] = [*found.claims, *found.advice]
    return [
        {
            "id": one.id,
            "note": one.note.name,
            "kind": "claim" if isinstance(one, Claim) else "advice",
            "claim": one.text,
            "ruling": ruling.word,
            "why": ruling.reason,
            "digests": list(ruling.digests),
        }
        for one, ruling in every
    ]


WIDTH, SHOWN = 100, 12
"""Characters of a line, and digits of a digest."""


def claims_text(found: Decided) -> str:
    """Return text for a terminal: for each note what is known of it, its claims, and what to do instead."""
    return "\n".join(_lines(found))


def _lines(found: Decided) -> Iterator[str]:
    for note in dict.fromkeys(claim.note for claim, _ in found.claims):
        yield from (note.name, "", textwrap.fill(note.about, WIDTH), "")
        for claim, ruling in found.claims:
            if claim.note == note:
                yield from _claim_lines(f"{claim.id:<5}", claim.text, ruling)
        instead = [(one, ruling) for one, ruling in found.advice if one.note == note]
        if instead:
            yield from ("What to do instead, and whether these records bear it out", "")
        for one, ruling in instead:
            yield from _claim_lines(f"{one.id:<5}", one.text, ruling)


def _claim_lines(name: str, text: str, ruling: Ruling) -> Iterator[str]:
    rests = ", ".join(digest[:SHOWN] for digest in ruling.digests) or "none"
    yield _fill_line(text, name)
    yield _fill_line(visible_text(f"{ruling.word}: {ruling.reason}"), "     ")
    yield _fill_line(f"records: {rests}", "     ")
    yield ""


def _fill_line(text: str, first: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent="     ", break_long_words=False, break_on_hyphens=False
    )
