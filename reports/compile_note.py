"""The claims of the DFlash compile-checkpoint note, decided from replays of scenarios written for them. Pure."""

from __future__ import annotations

from reports.rulings import Advice, Claim

CLAIMS: tuple[Claim, ...] = ()

ADVICE: tuple[Advice, ...] = ()
