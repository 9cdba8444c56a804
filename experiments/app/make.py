"""Turn the variables of `make` into arguments of our commands.

    python -m experiments.app.make run-all|capsule|replay|catalogue|snippet|test [WORD ...]

Make passes its variables in the environment, as they were typed, and they become arguments of the command. So a value
is never interpreted, whatever it contains: the Makefile does not expand it, no shell reads it, and Hydra gets it
quoted. WORD comes before the arguments from ARGS, which is split into words as a shell would, without expansion.

SCENARIO may contain several patterns separated by commas; a backslash makes the next character literal. Exit status 2
if a value cannot be passed on, otherwise that of the command.
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
"""Variables that the Makefile exports. They are removed for the command, as other programs may use the same names."""

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
    """A value cannot be passed on. The message says what was found and what is allowed."""


def patterns(value: str) -> list[str]:
    """Return the patterns of SCENARIO, which commas separate, without surrounding spaces."""
    found: list[list[str]] = [[]]
    for piece in re.findall(r"\\.|.", value, re.DOTALL):
        if piece == ",":
            found.append([])
        else:
            found[-1].append(piece)
    return [pattern for one in found if (pattern := _strip_escapes(one))]


def _strip_escapes(pieces: list[str]) -> str:
    """Join pieces without their backslashes, and without unescaped spaces at both ends."""
    while pieces and pieces[-1].isspace():
        pieces.pop()
    while pieces and pieces[0].isspace():
        pieces.pop(0)
    return "".join(piece[-1] for piece in pieces)


def override(key: str, *values: str, several: bool = False) -> str:
    """Return a Hydra override that sets the key to this text, or to a list of these texts."""
    quoted = ",".join(map(_quote_text, values))
    return f"{key}=[{quoted}]" if several else f"{key}={quoted}"


def _quote_text(text: str) -> str:
    """Quote text for Hydra, with `${` escaped. A backslash is special only before that or a quote."""
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)\Z", r"\1\1", text) + "'"


def arguments(target: str, given: Mapping[str, str], words: Sequence[str] = ()) -> list[str]:
    """Return the arguments of a target's program. Raises MakeError if a value cannot be passed on."""
    scenarios = patterns(given.get("SCENARIO", ""))
    if target == "catalogue":
        return [*words, "--", *scenarios]
    if target == "snippet":
        if len(scenarios) > 1:
            raise MakeError(f"SCENARIO names {len(scenarios)} scenarios; a snippet is of one")
        checked = [] if given.get("UNCHECKED", "") in _NO else ["--unchecked"]
        return [*words, *checked, "--", *(scenarios or [""]), given.get("CASE", "")]
    extra = _split_words(given.get("ARGS", ""))
    if target == "test":
        return [*words, *extra]
    elsewhere = _replay_arguments(given) if target == "replay" else []
    chosen = [override("scenarios", *scenarios, several=True)] if scenarios else []
    named = (("device", "DEVICE"), ("suite", "SUITE"), ("workers", "WORKERS"))
    chosen += [override(key, given[name]) for key, name in named if given.get(name)]
    dry = [] if given.get("DRY_RUN", "") in _NO else ["dry_run=true"]
    return [*words, *elsewhere, *chosen, *dry, *extra]


def _replay_arguments(given: Mapping[str, str]) -> list[str]:
    """Return the arguments that say where `replay` runs. INTERPRETER is the PYTHON that was given to make itself."""
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


def _split_words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise MakeError(f"ARGS={value} is not split into words: {str(error).lower()}") from None


def main(words: Sequence[str]) -> NoReturn:
    """Replace this process by the program of the target, with its arguments."""
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
