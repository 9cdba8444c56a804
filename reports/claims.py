"""What was claimed in public, and what the records say about it: all claims of all notes."""

from __future__ import annotations

from experiments.verdict import Ruling
from reports import checkpoint_note, compile_note
from reports.findings import Evidence, gather
from reports.rulings import Advice, Claim

__all__ = ["ADVICE", "CLAIMS", "advise", "decide", "gather"]

CLAIMS = (*checkpoint_note.CLAIMS, *compile_note.CLAIMS)
ADVICE = (*checkpoint_note.ADVICE, *compile_note.ADVICE)


def decide(evidence: Evidence) -> list[tuple[Claim, Ruling]]:
    """Every claim with its ruling."""
    return [(claim, claim.decide(evidence)) for claim in CLAIMS]


def advise(evidence: Evidence) -> list[tuple[Advice, Ruling]]:
    """Everything there is to do instead, and whether the records bear it out."""
    return [(advice, advice.decide(evidence)) for advice in ADVICE]
