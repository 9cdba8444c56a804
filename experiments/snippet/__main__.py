"""Print one case as a self-contained script, a snippet: it needs torch only, nothing of this project.

    python -m experiments.snippet SCENARIO CASE [--seed N] [--threads N] [--unchecked]

The snippet contains all module-level code of the scenario file that the case may depend on, calls the case as a worker
does, and prints the results: output, gradients, observed values and, for a case that is compared, the largest
differences from its reference. Exceptions are not caught.

Before it is printed, the snippet and the case are run, each in its own process, which takes some seconds. A snippet
with another outcome than the case is refused. Exit status 0; 2 if there is no such scenario or case, or if the
snippet is refused: the reason goes to stderr, and nothing to stdout. A case that cannot run here is printed unchecked.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

from ..core import requirements, streams
from ..core.spec import PASSES, Mark, Question, Setting, Spec, case_label
from ..planning import catalogue
from ..planning.catalogue import Catalogue, CatalogueError, Entry
from ..runner import errors
from . import check
from .source import SnippetError
from .text import Snippet, Wanted, snippet

TIMEOUT = 120.0
"""Time limit in seconds of a case that sets none, as in a sweep."""
MEMORY = 8 * 2**30
"""Memory limit in bytes of a case that sets none, as in a sweep."""
COMPARED = ("agrees", "differs")
"""Expectations that compare with the reference."""
ASIDE = {
    "peaks": "Memory is measured in a recorded run, not here.",
    "holds": "Memory is measured in a recorded run, not here.",
    "recomputes_without": "Which operators a recomputation runs is seen in a profiled run, not here.",
}
"""Notes on expectations that a snippet does not show."""


@dataclass(frozen=True)
class Found:
    """A case in one variant on one device."""

    entry: Entry
    case: Mapping[str, Any]
    """As described in the catalogue."""
    parameters: Mapping[str, Any]
    dtype: str
    device: str

    @property
    def label(self) -> str:
        """The case name with its variant."""
        return case_label(self.case["name"], self.parameters, self.dtype, self.dtype)

    def expectations(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Return the expectations of these kinds."""
        return [one for one in self.case["expectations"] if one["kind"] in kinds]

    def reference(self) -> Found | None:
        """Return the reference in the variant of this case. None if the case is not compared with it."""
        if not self.expectations(*COMPARED):
            return None
        name = self.case["reference"]
        found = next((one for one in self.entry.references(self.device) if name in (None, one["name"])), None)
        if found is None or found["gradient"] != self.case["gradient"]:
            return None
        parameters = {key: value for key, value in self.parameters.items() if key in found["takes"]}
        return Found(self.entry, found, parameters, self.dtype, self.device)


def find_case(entry: Entry, wanted: str) -> Found:
    """Return the case with a label such as ``case[dtype=float16,size=small]``.

    A bare case name selects its first variant, on the CPU if there is one. Raises CatalogueError if there is none.
    """
    labels: dict[str, Found] = {}
    for case in sorted(entry.cases, key=_device):
        for variant in case["variants"] if case["role"] != "reference" else _reference_variants(entry, case):
            found = Found(entry, case, variant["parameters"], variant["dtype"], _device(case))
            labels.setdefault(found.label, found)
            labels.setdefault(case["name"], found)
    if wanted not in labels:
        near = difflib.get_close_matches(wanted, labels, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(labels))}"
        raise CatalogueError(f"{entry.name} has no case {wanted!r}; {hint}")
    return labels[wanted]


def _device(case: Mapping[str, Any]) -> str:
    return "cpu" if "cpu" in case["on"] and "cuda" not in case["needs"] else "cuda"


def _reference_variants(entry: Entry, reference: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the variants of a reference: those of its cases, reduced to the parameters that it takes."""
    others = sorted((case for case in entry.cases if case["role"] != "reference"), key=_device)
    for variant in [variant for case in others for variant in case["variants"]]:
        taken = {name: value for name, value in variant["parameters"].items() if name in reference["takes"]}
        yield {**variant, "parameters": taken}
    if not others:
        yield {"parameters": {}, "dtype": "float32"}


def write_snippet(found: Found, source: str, seed: int, threads: int) -> Snippet:
    """Return the snippet of a case. Raises SnippetError if it cannot be written without this project."""
    reference = found.reference()
    wanted = Wanted(
        case=found.case["name"],
        parameters=found.parameters,
        seed=seed,
        dtype=found.dtype,
        device=found.device,
        threads=threads,
        gradient=found.case["gradient"],
        warm_up=found.case["warm_up"],
        reference=None if reference is None else reference.case["name"],
        reference_parameters={} if reference is None else reference.parameters,
        switches=[one["name"] for one in found.expectations("state_differs")],
    )
    return snippet(source, wanted)


def case_spec(found: Found, seed: int, threads: int) -> Spec:
    """Return the spec that runs the case in a worker as a sweep would."""
    entry, case = found.entry, found.case
    question = Question(
        scenario=entry.name,
        source=entry.source_digest,
        case=case["name"],
        parameters=found.parameters,
        device=found.device,
        dtype=found.dtype,
        input_dtype=found.dtype,
        seed=seed,
        threads=threads,
        pass_=PASSES[0],
    )
    setting = Setting(
        environment="default",
        interpreter="",
        variables={},
        isolation="fresh",
        sources="original",
        timeout=float(case["timeout"] or TIMEOUT),
        memory=case["memory"] or MEMORY,
        output=case["output"] or 65536,
        disk=case["disk"] or 2**30,
        keep=0,
        compile_cache="private",
        threads=None,
        matmul_precision="",
        hash_seed=0,
        repeat=0,
        attempt=0,
    )
    mark = Mark(
        role=case["role"],
        expectations=tuple(case["expectations"]),
        why=case["why"],
        cause=case["cause"],
        needs=tuple(case["needs"]),
        reference=None,
        float64=None,
        fork_safe=case["fork_safe"],
        series=(),
    )
    return Spec(question, setting, mark)


# The command.


def check_comment(found: Found, made: Snippet, known: Catalogue, seed: int, threads: int, root: Path) -> list[str]:
    """Check a snippet and return comment lines with the result. Raises SnippetError if it differs from its case."""
    spec, reference = case_spec(found, seed, threads), found.reference()
    missing = requirements.missing_needs([spec], known.machine, Path(tempfile.gettempdir()))
    if missing:
        return [f"It could not be run here: it needs {missing[spec.digest()]}. Nobody has checked it."]
    print("snippet: running the case and the snippet to compare (some seconds)", file=sys.stderr)
    own = None if reference is None else case_spec(reference, seed, threads)
    result = check.check(made, spec, own, root)
    if result.difference:
        raise SnippetError(f"the snippet does not repeat its case: {result.difference}; --unchecked prints it anyway")
    torch = known.machine["torch"]["version"]
    return [f"Run on torch {torch}, Python {sys.version.split()[0]}: {_lower_first(result.seen)}"]


def _lower_first(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        text = _snippet_text(options)
    except (CatalogueError, SnippetError, requirements.NeedError, errors.LaunchError) as error:
        print(f"snippet: {error}", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(text.encode("utf-8"))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.snippet",
        description="Print one case as a file to paste: torch only, nothing of this project. It is run beside the case "
        "first, and refused if it does something else.",
        epilog="`python -m experiments.planning.catalogue` lists scenarios and cases.",
    )
    parser.add_argument("scenario", help="such as checkpoint/attention_policy_ends_before_recomputation")
    parser.add_argument("case", help="with or without its variant, such as chosen_around_the_forward")
    parser.add_argument("--seed", type=int, default=1729, help="seed of the inputs (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="compute threads (default: as many as the scenario asks for)")
    parser.add_argument("--unchecked", action="store_true", help="print it without running anything")
    return parser


def _snippet_text(options: argparse.Namespace) -> str:
    """Return the text of the snippet below a comment on what is known about it."""
    known = catalogue.read_cached()
    entry = _find_entry(known, options)
    found = find_case(entry, options.case)
    path = catalogue.ROOT / "experiments" / "scenarios" / f"{entry.name}.py"
    threads = entry.threads if options.threads is None else options.threads
    made = write_snippet(found, path.read_bytes().decode("utf-8-sig"), options.seed, threads)
    if options.unchecked:
        known_of_it = ["Nobody has checked that it does what the case does: it was asked for unchecked."]
    else:
        known_of_it = check_comment(found, made, known, options.seed, threads, catalogue.ROOT)
    aside = dict.fromkeys(ASIDE[one["kind"]] for one in found.expectations(*ASIDE))
    needed = " and ".join(made.needs) or "nothing else"
    return made.add_header([f"One case as a file of its own: it needs torch and {needed}.", *known_of_it, *aside])


def _find_entry(known: Catalogue, options: argparse.Namespace) -> Entry:
    """Return the scenario with exactly this name, or the only one that matches it as a pattern."""
    if not (options.scenario and options.case):
        raise CatalogueError("name a scenario and a case, as in make snippet SCENARIO=family/name CASE=name")
    exact = [entry for entry in known.entries if entry.name == options.scenario]
    chosen = exact or known.select([options.scenario])
    if len(chosen) > 1:
        raise CatalogueError(f"{options.scenario!r} matches {len(chosen)} scenarios, {chosen[0].name} first; name one")
    if chosen[0].error is not None:
        raise CatalogueError(f"{chosen[0].name} is broken: {chosen[0].error}")
    return chosen[0]


if __name__ == "__main__":
    sys.exit(streams.run_program("snippet", main))
