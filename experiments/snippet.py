"""One case as a file to paste: torch only, nothing of this project.

    python -m experiments.snippet SCENARIO CASE

Drops the project's import, the `scenario =` line and the marks, keeps what the case needs, and appends the
call. Exit status 0, or 2 if there is no such scenario or case.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import sys
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from . import catalogue, launch
from .catalogue import CatalogueError, Entry
from .record import case_label

OBSERVE = """

def observe(name, value, **_):
    print(f"{name}: {value}")
"""


def snippet(
    source: str,
    case: str,
    parameters: Mapping[str, Any],
    dtype: str,
    seed: int,
    device: str = "cpu",
    *,
    gradient: bool = True,
) -> str:
    """The text to paste for one case of a scenario file with this `source`; `gradient` says whether the case is
    differentiated.

    Raises KeyError if the file defines no function of that name.
    """
    tree = ast.parse(source)
    defined: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _names(node):
            defined.setdefault(name, []).append(node)
    if case not in defined:
        raise KeyError(case)
    kept = _needed(defined, {case, "inputs"})
    lines = source.splitlines()
    pieces = [_text(lines, node, kept) for node in tree.body if _stays(node, kept)]
    docstring = ast.get_docstring(tree) or ""
    escaped = docstring.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    head = f'"""{escaped}\n"""' if docstring else ""
    observed = OBSERVE.strip() if "observe" in kept else ""
    imports = [piece for piece in pieces if piece.startswith(("import ", "from "))]
    rest = [piece for piece in pieces if piece not in imports]
    call = _call(defined, case, parameters, dtype, seed, device, gradient=gradient)
    parts = [head, "\n".join(_with_torch(imports)), observed, *rest, call]
    return "\n\n\n".join(part for part in parts if part) + "\n"


def _names(node: ast.stmt) -> Iterator[str]:
    """What a top-level statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _needed(defined: Mapping[str, Sequence[ast.stmt]], wanted: set[str]) -> set[str]:
    """Names that the wanted ones use, and those that these use."""
    found: set[str] = set()
    waiting = set(wanted)
    while waiting:
        name = waiting.pop()
        found.add(name)
        for node in defined.get(name, ()):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                waiting |= _used(node) - found
    return found


def _used(node: ast.stmt) -> set[str]:
    """Names in a statement, its marks left out."""
    body = list(ast.iter_child_nodes(node))
    marks = [part for part in getattr(node, "decorator_list", []) if _is_mark(part)]
    return {name.id for part in body if part not in marks for name in ast.walk(part) if isinstance(name, ast.Name)}


def _is_mark(decorator: ast.expr) -> bool:
    return any(isinstance(part, ast.Name) and part.id == "scenario" for part in ast.walk(decorator))


def _stays(node: ast.stmt, kept: set[str]) -> bool:
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "experiments":
        return False
    names = set(_names(node))
    return bool(names & kept) and "scenario" not in names


def _text(lines: Sequence[str], node: ast.stmt, kept: set[str]) -> str:
    """The statement as it stands, with the comment above it, without its marks or unused imports."""
    start = node.lineno - 1
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        used = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in kept]
        names = ", ".join(ast.unparse(alias) for alias in used)
        return f"from {node.module} import {names}" if isinstance(node, ast.ImportFrom) else f"import {names}"
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        kept_marks = [f"@{ast.unparse(part)}" for part in node.decorator_list if not _is_mark(part)]
        return "\n".join([*kept_marks, *lines[start : node.end_lineno]])
    while start and lines[start - 1].startswith("#"):
        start -= 1
    return "\n".join(lines[start : node.end_lineno])


def _with_torch(imports: Sequence[str]) -> list[str]:
    return list(imports) if "import torch" in imports else ["import torch", *imports]


def _call(
    defined: Mapping[str, Sequence[ast.stmt]],
    case: str,
    parameters: Mapping[str, Any],
    dtype: str,
    seed: int,
    device: str,
    *,
    gradient: bool,
) -> str:
    """What a person would type below the functions."""
    made = _arguments(defined["inputs"][-1], parameters, first=str(seed))
    taken = _arguments(defined[case][-1], parameters, first="**given")
    lines = ["print(torch.__version__)", "torch.set_num_threads(1)", f"given = inputs({made})"]
    if dtype != "float32" or device != "cpu" or not gradient:
        lines += _cast(dtype, device, gradient=gradient)
    if not gradient:
        return "\n".join([*lines, *_called(defined[case][-1], f"{case}({taken})")])
    lines += _differentiated(defined[case][-1], f"{case}({taken})")
    lines += ["for name, tensor in given.items():", "    print(name, tensor.grad)"]
    return "\n".join(lines)


def _cast(dtype: str, device: str, *, gradient: bool) -> list[str]:
    return [
        "given = {",
        f"    name: tensor.detach().to({device!r}, torch.{dtype} if tensor.is_floating_point() else tensor.dtype)",
        *(["    .requires_grad_(tensor.requires_grad)"] if gradient else []),
        "    for name, tensor in given.items()",
        "}",
    ]


def _differentiated(node: ast.stmt, call: str) -> list[str]:
    return [f"for total in {call}:", "    total.backward()"] if _yields(node) else [f"{call}.backward()"]


def _called(node: ast.stmt, call: str) -> list[str]:
    return [f"for total in {call}:", "    print(total)"] if _yields(node) else [f"print({call})"]


def _yields(node: ast.stmt) -> bool:
    return any(isinstance(part, ast.Yield) for part in ast.walk(node))


def _arguments(node: ast.stmt, parameters: Mapping[str, Any], first: str) -> str:
    assert isinstance(node, ast.FunctionDef)
    names = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    return ", ".join([first, *(f"{name}={value!r}" for name, value in sorted(parameters.items()) if name in names)])


# The command.


@dataclass(frozen=True)
class Found:
    """A case in one variant, and where it runs."""

    case: str
    parameters: Mapping[str, Any]
    dtype: str
    device: str
    gradient: bool


def find(entry: Entry, wanted: str) -> Found:
    """The case of a label such as ``case[dtype=float16,size=small]``; a bare case name is its first variant,
    on the CPU if it has one there. Raises CatalogueError if there is none.
    """
    labels: dict[str, Found] = {}
    for case in sorted(entry.cases, key=_device):
        for variant in case["variants"] if case["role"] != "reference" else _reference_variants(entry):
            found = Found(case["name"], variant["parameters"], variant["dtype"], _device(case), case["gradient"])
            labels.setdefault(case_label(found.case, found.parameters, found.dtype, found.dtype), found)
            labels.setdefault(found.case, found)
    if wanted not in labels:
        near = difflib.get_close_matches(wanted, labels, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(labels))}"
        raise CatalogueError(f"{entry.name} has no case {wanted!r}; {hint}")
    return labels[wanted]


def _device(case: Mapping[str, Any]) -> str:
    return "cpu" if "cpu" in case["on"] and "cuda" not in case["needs"] else "cuda"


def _reference_variants(entry: Entry) -> Iterator[Mapping[str, Any]]:
    """A reference takes the variants of the cases that are compared with it."""
    others = sorted((case for case in entry.cases if case["role"] != "reference"), key=_device)
    found = [variant for case in others for variant in case["variants"]]
    yield from found or [{"parameters": {}, "dtype": "float32"}]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.snippet",
        description="Print one case as a file to paste: torch only, nothing of this project.",
        epilog="`python -m experiments.catalogue` lists scenarios and cases.",
    )
    parser.add_argument("scenario", help="such as checkpoint/attention_policy_ends_before_recomputation")
    parser.add_argument("case", help="with or without its variant, such as chosen_around_the_forward")
    parser.add_argument("--seed", type=int, default=1729, help="seed of the inputs (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if not (options.scenario and options.case):
            raise CatalogueError("name a scenario and a case, as in make snippet SCENARIO=family/name CASE=name")
        entries = catalogue.cached().select([options.scenario])
        if entries[0].error is not None:
            raise CatalogueError(f"{entries[0].name} is broken: {entries[0].error}")
        found = find(entries[0], options.case)
    except (CatalogueError, launch.LaunchError) as error:
        print(f"snippet: {error}", file=sys.stderr)
        return 2
    path = catalogue.ROOT / "experiments" / "scenarios" / f"{entries[0].name}.py"
    text = path.read_text(encoding="utf-8")
    parts = (found.case, found.parameters, found.dtype, options.seed, found.device)
    print(snippet(text, *parts, gradient=found.gradient), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
