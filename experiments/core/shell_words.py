"""Commands of make that a reader can paste into a shell."""

from __future__ import annotations

import re
import shlex

# To be pasted.


def command(target: str, **variables: str) -> str:
    """A command that hands make these values, whatever they hold, for a shell."""
    return " ".join(["make", target, *(f"{name}={shlex.quote(value)}" for name, value in variables.items())])


def exactly(scenario: str) -> str:
    """A value of SCENARIO that names this one; `*` and `?` in its name match themselves, and perhaps more."""
    return re.sub(r"[\\,]|\A\s|\s\Z", r"\\\g<0>", scenario)
