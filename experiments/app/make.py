"""What `make` hands over, as arguments of our commands; and commands of make for others to paste.

    python -m experiments.app.make run-all|capsule|replay|catalogue|snippet|test [WORD ...]

Make's variables come in the environment, as they were typed, and the command is started with them as its arguments.
So a value is text all the way, whatever is in it: the Makefile never expands one, no shell reads one, and Hydra gets
it quoted. WORD is put before what is made of ARGS, which is split into words as a shell would, and not expanded.

SCENARIO may name several patterns with commas between them; a backslash takes the next character as it is. Exit
status 2 if a value cannot be handed on, otherwise that of the command.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Mapping, NoReturn, Sequence

ROOT = Path(__file__).resolve().parents[2]

HANDED = (
    *("SCENARIO", "CASE", "UNCHECKED", "DEVICE", "SUITE", "DRY_RUN", "WORKERS", "PORT", "ROUNDS"),
    *("ENVIRONMENT", "PROVE", "INTERPRETER", "SETUP", "PYTHON", "TORCH", "ARGS"),
)
"""What the Makefile exports. The command that is started does not see them: another program may know such a name."""

MODULES: Mapping[str, str] = {
    "run-all": "experiments",
    "capsule": "experiments",
    "replay": "experiments",
    "catalogue": "experiments.planning.catalogue",
    "snippet": "experiments.snippet",
    "test": "pytest",
}
"""The program of each target."""

_NO = ("", "0", "false", "no")


class MakeError(Exception):
    """A value cannot be handed on. The message says what was found and what is allowed."""


# To be read.


def patterns(value: str) -> list[str]:
    """The patterns of SCENARIO: what stands between commas, without the spaces around it."""
    found: list[list[str]] = [[]]
    for piece in re.findall(r"\\.|.", value, re.DOTALL):
        if piece == ",":
            found.append([])
        else:
            found[-1].append(piece)
    return [pattern for one in found if (pattern := _without_escapes(one))]


def _without_escapes(pieces: list[str]) -> str:
    """Spaces at both ends are left out unless a backslash is before them."""
    while pieces and pieces[-1].isspace():
        pieces.pop()
    while pieces and pieces[0].isspace():
        pieces.pop(0)
    return "".join(piece[-1] for piece in pieces)


def override(key: str, *values: str, several: bool = False) -> str:
    """A Hydra override that sets the key to this text, or to a list of these."""
    quoted = ",".join(map(_quoted, values))
    return f"{key}=[{quoted}]" if several else f"{key}={quoted}"


def _quoted(text: str) -> str:
    """As Hydra's grammar quotes; what follows `${` would be looked up. A backslash counts only before these."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)\Z", r"\1\1", text) + "'"


def arguments(target: str, given: Mapping[str, str], words: Sequence[str] = ()) -> list[str]:
    """The arguments of a target's program. Raises MakeError if there can be none."""
    scenarios = patterns(given.get("SCENARIO", ""))
    if target == "catalogue":
        return [*words, "--", *scenarios]
    if target == "snippet":
        if len(scenarios) > 1:
            raise MakeError(f"SCENARIO names {len(scenarios)} scenarios; a snippet is of one")
        checked = [] if given.get("UNCHECKED", "") in _NO else ["--unchecked"]
        return [*words, *checked, "--", *(scenarios or [""]), given.get("CASE", "")]
    extra = _split(given.get("ARGS", ""))
    if target == "test":
        return [*words, *extra]
    elsewhere = _elsewhere(given) if target == "replay" else []
    chosen = [override("scenarios", *scenarios, several=True)] if scenarios else []
    named = (("device", "DEVICE"), ("suite", "SUITE"), ("workers", "WORKERS"))
    chosen += [override(key, given[name]) for key, name in named if given.get(name)]
    dry = [] if given.get("DRY_RUN", "") in _NO else ["dry_run=true"]
    return [*words, *elsewhere, *chosen, *dry, *extra]


def _elsewhere(given: Mapping[str, str]) -> list[str]:
    """Where `replay` runs. INTERPRETER is a PYTHON that was given to make itself."""
    environment, python = given.get("ENVIRONMENT", ""), given.get("INTERPRETER", "")
    made = [override("environment", environment)] if environment else []
    made += [override("prove", given["PROVE"])] if given.get("PROVE") else []
    if python:
        made += [*([] if environment else ["environment=interpreter"]), override("environment.python", python)]
    if not made:
        known = sorted(path.stem for path in (ROOT / "conf" / "environment").glob("*.yaml"))
        raise MakeError(
            f"say where to replay: ENVIRONMENT={'|'.join(known)}, PYTHON=/path/to/python, or PROVE=SETTING of the "
            "report (all: every one)"
        )
    return made


def _split(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise MakeError(f"ARGS={value} is not split into words: {str(error).lower()}") from None


def main(words: Sequence[str]) -> NoReturn:
    try:
        target, *more = words
        made = arguments(target, os.environ, more)
    except MakeError as error:
        print(f"make: {error}", file=sys.stderr)
        sys.exit(2)
    rest = {name: value for name, value in os.environ.items() if name not in HANDED}
    os.execve(sys.executable, [sys.executable, "-m", MODULES[target], *made], rest)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main(sys.argv[1:])
