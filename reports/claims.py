"""What was claimed in public, and what the records say about it: all claims of all sources."""

from __future__ import annotations

from experiments.verdict import Ruling
from reports import checkpoint_note, compile_note
from reports.rulings import Claim, Evidence

CLAIMS = (*checkpoint_note.CLAIMS, *compile_note.CLAIMS)


def decide(evidence: Evidence) -> list[tuple[Claim, Ruling]]:
    """Every claim with its ruling."""
    return [(claim, claim.decide(evidence)) for claim in CLAIMS]
