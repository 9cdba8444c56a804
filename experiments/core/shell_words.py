"""Make commands that a reader can paste into a shell."""

from __future__ import annotations

import re
import shlex


def make_command(target: str, **variables: str) -> str:
    """Return a shell command that runs a make target with these variables, quoted whatever their values contain."""
    return " ".join(["make", target, *(f"{name}={shlex.quote(value)}" for name, value in variables.items())])


def exact_pattern(scenario: str) -> str:
    """Return a value of SCENARIO that selects this one. `*` and `?` in its name match themselves, and perhaps more."""
    return re.sub(r"[\\,]|\A\s|\s\Z", r"\\\g<0>", scenario)
