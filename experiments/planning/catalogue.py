"""Catalogue of scenarios and cases: listed by a worker, because only workers import torch, and cached by digest.

    python -m experiments.planning.catalogue [PATTERN ...] [--json]

Exit status 0, or 2 if the interpreter could not list them. A file that does not import is listed as broken.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import importlib.metadata
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Sequence

from ..core import folders, streams
from ..core.canonical_json import RecordError, canonical, digest, parse
from ..core.environment import machine_identity
from ..core.spec import case_label
from ..core.text import visible_text
from ..runner import errors, supervisor

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "outputs" / "catalogue"


class CatalogueError(Exception):
    """A name or pattern that matches no scenario or case. The message names the nearest one."""


@dataclass(frozen=True)
class Entry:
    """One scenario file, as described by a worker."""

    name: str
    source_digest: str
    error: str | None
    """Why it could not be imported. None if it could."""
    title: str
    text: str
    source: str
    threads: int
    replays: int | None
    """None for the default of the sweep."""
    suites: tuple[str, ...]
    rounding: bool
    """Whether float64 references are run although no case requires them."""
    cases: tuple[Mapping[str, Any], ...]

    def references(self, device: str) -> list[Mapping[str, Any]]:
        """Return its reference cases on this device; cases are compared with the first by default."""
        return [case for case in self.cases if case["role"] == "reference" and device in case["on"]]


@dataclass(frozen=True)
class Catalogue:
    """All scenarios, and the facts of the machine as reported by the interpreter that will run them."""

    machine: Mapping[str, Any]
    entries: tuple[Entry, ...]

    @property
    def has_cuda(self) -> bool:
        """Whether the machine has a GPU."""
        return self.machine["gpu"] is not None

    @property
    def machine_identity(self) -> str:
        """Identity of the machine, computed from its facts."""
        return machine_identity(self.machine)

    def select(self, patterns: Sequence[str]) -> list[Entry]:
        """Return the entries whose names match any of the patterns. Brackets are literal.

        Raises CatalogueError for a pattern that matches none, with the nearest name.
        """
        names = [entry.name for entry in self.entries]
        chosen: set[str] = set()
        for pattern in patterns:
            found = [name for name in names if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))]
            if not found:
                raise CatalogueError(_unknown_name("scenario", pattern, names))
            chosen.update(found)
        return [entry for entry in self.entries if entry.name in chosen]


def _unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    families = {f"{one.rpartition('/')[0]}/*" for one in known}
    near = difflib.get_close_matches(name, [*known, *sorted(families)], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no {what} matches {name!r}; {hint}`python -m experiments.planning.catalogue` lists all {len(known)}"


def read(python: str = "", variables: Mapping[str, str] | None = None, root: Path = ROOT) -> Catalogue:
    """List the scenarios with an interpreter. Raises LaunchError if it does not answer."""
    with folders.temporary_folder("twofold-") as folder:
        return parse_catalogue(supervisor.describe(root, python, folder / "catalogue.json", variables or {}))


def read_cached(root: Path = ROOT, cache: Path = CACHE) -> Catalogue:
    """Return what `read` returns for this interpreter, from a cache that is valid until a file or torch changes.

    For listings, where the second that it takes to import torch is noticeable. A sweep always calls `read`.
    """
    file = cache / f"{_cache_key(root)}.json"
    try:
        return parse_catalogue(parse(file.read_text(encoding="utf-8")))
    except (OSError, RecordError, KeyError, TypeError):
        cache.mkdir(parents=True, exist_ok=True)
        return parse_catalogue(supervisor.describe(root, "", file, {}))


def _cache_key(root: Path) -> str:
    """Return the digest of everything that the catalogue depends on."""
    paths = sorted((root / "experiments").rglob("*.py"))
    parts = {path.relative_to(root).as_posix(): digest(path.read_bytes()) for path in paths}
    return digest(canonical({**parts, "torch": importlib.metadata.version("torch"), "python": sys.version}))


def parse_catalogue(data: Mapping[str, Any]) -> Catalogue:
    """Build a catalogue from the JSON that a worker wrote."""
    entries = [
        Entry(**{**item, "suites": tuple(item["suites"]), "cases": tuple(item["cases"])}) for item in data["scenarios"]
    ]
    return Catalogue(machine=data["machine"], entries=tuple(entries))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.planning.catalogue",
        description="List the scenarios and their cases.",
        epilog="example: python -m experiments.planning.catalogue 'checkpoint/*'",
    )
    parser.add_argument(
        "patterns", nargs="*", default=["*"], metavar="PATTERN", help="names, with * and ? (default: *)"
    )
    parser.add_argument("--json", action="store_true", help="as JSON, with everything the scenario files say")
    options = parser.parse_args(arguments)
    try:
        catalogue = read_cached()
        chosen = catalogue.select(options.patterns)
    except (errors.LaunchError, CatalogueError) as error:
        print(f"catalogue: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([_as_json(entry) for entry in chosen], indent=2))
    else:
        print(visible_text("\n\n".join(_entry_text(entry) for entry in chosen), lines=True))
    return 0


def _as_json(entry: Entry) -> dict[str, Any]:
    return {**entry.__dict__, "suites": list(entry.suites), "cases": list(entry.cases)}


def _entry_text(entry: Entry) -> str:
    if entry.error is not None:
        return f"{entry.name}\n  broken: {entry.error}"
    lines = [entry.name, f"  {entry.title}"]
    lines += [f"    {case['role']:<10}{label}{_device_text(case)}" for case in entry.cases for label in labels(case)]
    return "\n".join(lines)


def _device_text(case: Mapping[str, Any]) -> str:
    needs = f", needs {', '.join(case['needs'])}" if case["needs"] else ""
    return f"  ({'/'.join(case['on'])}{needs})" if len(case["on"]) == 1 or needs else ""


def labels(case: Mapping[str, Any]) -> list[str]:
    """Return the labels of all variants of a case. A reference has none of its own: it takes those of its cases."""
    if case["role"] == "reference":
        return [case["name"]]
    return [case_label(case["name"], v["parameters"], v["dtype"], v["dtype"]) for v in case["variants"]]


if __name__ == "__main__":
    sys.exit(streams.run_program("catalogue", main))
