"""Which scenarios and cases exist: asked of a worker, because only it has torch, and cached by digest.

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
from ..core.text import visible
from ..runner import errors, supervisor

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "outputs" / "catalogue"


class CatalogueError(Exception):
    """A name or pattern that matches no scenario. The message names the near ones."""


@dataclass(frozen=True)
class Entry:
    """One scenario file as its worker described it."""

    name: str
    source_digest: str
    error: str | None
    """Why it could not be imported. None if it was."""
    title: str
    text: str
    source: str
    threads: int
    replays: int | None
    """None to take the sweep's own number."""
    suites: tuple[str, ...]
    rounding: bool
    """Whether float64 references are wanted although no case asks for them."""
    cases: tuple[Mapping[str, Any], ...]

    def references(self, device: str) -> list[Mapping[str, Any]]:
        """Its reference cases on this device; the first is what a case is compared with by default."""
        return [case for case in self.cases if case["role"] == "reference" and device in case["on"]]


@dataclass(frozen=True)
class Catalogue:
    """All scenarios, and the machine as the interpreter that will run them sees it."""

    machine: Mapping[str, Any]
    entries: tuple[Entry, ...]

    @property
    def has_cuda(self) -> bool:
        return self.machine["gpu"] is not None

    @property
    def machine_identity(self) -> str:
        return machine_identity(self.machine)

    def select(self, patterns: Sequence[str]) -> list[Entry]:
        """Entries whose names match any of the patterns. Brackets are meant as they stand.

        Raises CatalogueError for a pattern that matches none, with the nearest name.
        """
        names = [entry.name for entry in self.entries]
        chosen: set[str] = set()
        for pattern in patterns:
            found = [name for name in names if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))]
            if not found:
                raise CatalogueError(_unknown("scenario", pattern, names))
            chosen.update(found)
        return [entry for entry in self.entries if entry.name in chosen]


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    families = {f"{one.rpartition('/')[0]}/*" for one in known}
    near = difflib.get_close_matches(name, [*known, *sorted(families)], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no {what} matches {name!r}; {hint}`python -m experiments.planning.catalogue` lists all {len(known)}"


def read(python: str = "", variables: Mapping[str, str] | None = None, root: Path = ROOT) -> Catalogue:
    """Ask the interpreter. Raises LaunchError if it does not answer."""
    with folders.temporary("twofold-") as folder:
        return made(supervisor.describe(root, python, folder / "catalogue.json", variables or {}))


def cached(root: Path = ROOT, cache: Path = CACHE) -> Catalogue:
    """As `read` for this interpreter, remembered until a file or torch changes: for listings, where a
    second to import torch is felt. A sweep always asks.
    """
    kept = cache / f"{_key(root)}.json"
    try:
        return made(parse(kept.read_text(encoding="utf-8")))
    except (OSError, RecordError, KeyError, TypeError):
        cache.mkdir(parents=True, exist_ok=True)
        return made(supervisor.describe(root, "", kept, {}))


def _key(root: Path) -> str:
    """Digest of everything that the listing depends on."""
    paths = sorted((root / "experiments").rglob("*.py"))
    parts = {path.relative_to(root).as_posix(): digest(path.read_bytes()) for path in paths}
    return digest(canonical({**parts, "torch": importlib.metadata.version("torch"), "python": sys.version}))


def made(data: Mapping[str, Any]) -> Catalogue:
    """A catalogue from what a worker wrote."""
    entries = [
        Entry(**{**item, "suites": tuple(item["suites"]), "cases": tuple(item["cases"])}) for item in data["scenarios"]
    ]
    return Catalogue(machine=data["machine"], entries=tuple(entries))


def main(arguments: Sequence[str] | None = None) -> int:
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
        catalogue = cached()
        chosen = catalogue.select(options.patterns)
    except (errors.LaunchError, CatalogueError) as error:
        print(f"catalogue: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([_as_json(entry) for entry in chosen], indent=2))
    else:
        print(visible("\n\n".join(_shown(entry) for entry in chosen), lines=True))
    return 0


def _as_json(entry: Entry) -> dict[str, Any]:
    return {**entry.__dict__, "suites": list(entry.suites), "cases": list(entry.cases)}


def _shown(entry: Entry) -> str:
    if entry.error is not None:
        return f"{entry.name}\n  broken: {entry.error}"
    lines = [entry.name, f"  {entry.title}"]
    lines += [f"    {case['role']:<10}{label}{_where(case)}" for case in entry.cases for label in labels(case)]
    return "\n".join(lines)


def _where(case: Mapping[str, Any]) -> str:
    needs = f", needs {', '.join(case['needs'])}" if case["needs"] else ""
    return f"  ({'/'.join(case['on'])}{needs})" if len(case["on"]) == 1 or needs else ""


def labels(case: Mapping[str, Any]) -> list[str]:
    """The case with each of its variants. A reference takes its cases' variants, so it has none."""
    if case["role"] == "reference":
        return [case["name"]]
    return [case_label(case["name"], v["parameters"], v["dtype"], v["dtype"]) for v in case["variants"]]


if __name__ == "__main__":
    sys.exit(streams.status("catalogue", main))
