"""A case as a file to paste runs without this project and shows what its mark says."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import roots
from roots import HEAD, PROJECT

from experiments import catalogue
from experiments.scenario import expectation_to_json, raises, refuses
from experiments.scenario import shows as observes
from experiments.snippet import find, snippet

NOTE = "checkpoint/attention_policy_ends_before_recomputation"
SAMPLE = (
    (NOTE, "chosen_around_the_forward"),
    (NOTE, "chosen_around_forward_and_backward"),
    (NOTE, "one_context_given_twice"),
    (
        "checkpoint/attention_policy_changes_silently_when_reentrant",
        "chosen_around_the_forward[dtype=float16,size=small]",
    ),
    ("checkpoint/attention_backend_differs_between_runs", "not_checkpointed"),
)
"""What always runs; the rest is slow."""

SCENARIOS = sorted(
    path.relative_to(PROJECT / "experiments/scenarios").with_suffix("").as_posix()
    for path in (PROJECT / "experiments/scenarios").rglob("*.py")
    if not path.name.startswith("_")
)


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    return {entry.name: entry for entry in catalogue.cached(PROJECT, tmp_path_factory.mktemp("cache")).entries}


def labels(entry):
    """Every case in every variant that runs on this CPU, with its mark."""
    here = {"inductor"} if shutil.which("g++") else set()
    for case in entry.cases:
        if "cpu" in case["on"] and {need for need in case["needs"] if not need.startswith("torch")} <= here:
            yield from ((label, case) for label in catalogue.labels(case))


def text(name, entry, label):
    found = find(entry, label)
    source = (PROJECT / "experiments/scenarios" / f"{name}.py").read_text(encoding="utf-8")
    return snippet(source, found.case, found.parameters, found.dtype, 1729, found.device, gradient=found.gradient)


def pasted(text, folder):
    """What a person sees who saves the text in an empty folder and runs it."""
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-I", "-c", text], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def shows(name, entry, label, case, folder):
    """Nothing if the pasted text does what the mark says, else what it did."""
    made = text(name, entry, label)
    if "experiments" in made:
        return [f"{name} {label}: names the project"]
    ended = pasted(made, folder)
    wrong = [what for one in case["expectations"] for what in [otherwise(one, ended)] if what]
    kinds = {one["kind"] for one in case["expectations"]}
    if ended.returncode != 0 and not kinds & {"raises", "refuses", "varies"}:
        wrong.append("expected to finish")
    return [f"{name} {label}: {what}; exit {ended.returncode}, {ended.stderr[-300:]}" for what in wrong]


def otherwise(expectation, ended):
    """What of this expectation a person does not see. Empty if nothing; of most, only records can tell."""
    kind = expectation["kind"]
    if kind in ("raises", "refuses") and ended.returncode != 1:
        return "expected to raise"
    if kind == "refuses":
        return "" if f"allocate {expectation['bytes']} bytes" in ended.stderr else f"not refused {expectation['bytes']}"
    if kind == "raises":
        last = [line for line in ended.stderr.splitlines() if line and line[0].isalpha()]
        found = expectation["text"] in ended.stderr and any(line.startswith(expectation["type"]) for line in last)
        return "" if found else f"not raised {expectation['type']} with {expectation['text']!r}"
    if kind == "shows":
        shown = ended.stdout.splitlines()
        return ", ".join(f"not shown {n}: {v}" for n, v in expectation["values"].items() if f"{n}: {v}" not in shown)
    return ""


@pytest.mark.parametrize(("name", "label"), SAMPLE)
def test_a_snippet_shows_what_its_mark_says(listed, tmp_path, name, label):
    entry = listed[name]
    marks = [case for shown, case in labels(entry) if shown == label]
    assert marks, f"{name} has no case {label}"
    assert shows(name, entry, label, marks[0], tmp_path / "empty") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_snippet_shows_what_its_mark_says(listed, tmp_path, name):
    wrong = [
        found
        for label, case in labels(listed[name])
        if (name, label) not in SAMPLE
        for found in shows(name, listed[name], label, case, tmp_path / "empty")
    ]
    assert wrong == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_snippet_is_whole(listed, name):
    """Quicker than running it: it compiles, names nothing that it does not have, and nothing of this project."""
    for label, _ in labels(listed[name]):
        made = text(name, listed[name], label)
        assert "experiments" not in made
        assert unknown(made) == [], (label, made)


def unknown(text):
    """Names that the text uses and neither defines nor imports."""
    tree = ast.parse(text)
    defined = set(dir(__import__("builtins")))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        if isinstance(node, ast.arg):
            defined.add(node.arg)
        if isinstance(node, ast.ExceptHandler) and node.name is not None:
            defined.add(node.name)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            defined.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    return sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - defined)


def test_an_unknown_name_is_found():
    assert unknown("import torch\nfor a in b:\n    torch.c(a)") == ["b"]
    assert unknown("try:\n    a = 1\nexcept ValueError as b:\n    print(a, b, c)") == ["c"]


def test_a_failing_snippet_is_found(listed, tmp_path):
    """The judgement can fail: a broken case under the mark of a repair, and the other way round."""
    marks = {case["name"]: case for _, case in labels(listed[NOTE])}
    broken, repair = marks["one_context_given_twice"], marks["chosen_for_both_runs"]
    assert shows(NOTE, listed[NOTE], broken["name"], repair, tmp_path / "empty")
    assert shows(NOTE, listed[NOTE], "documented", broken, tmp_path / "empty")


@pytest.mark.parametrize(
    ("expectation", "code", "told", "said"),
    [
        (raises(ValueError, "no"), 1, "", "ValueError: no"),
        (refuses(bytes=10), 1, "", "RuntimeError: you tried to allocate 10 bytes."),
        (observes({"a name": [1, False]}, other="x"), 0, "other: x\na name: [1, False]", ""),
    ],
    ids=lambda one: getattr(one, "kind", ""),
)
def test_a_snippet_that_shows_something_else_is_found(expectation, code, told, said):
    def ended(code=code, told=told, said=said):
        return otherwise(expectation_to_json(expectation), SimpleNamespace(returncode=code, stdout=told, stderr=said))

    assert ended() == ""
    assert ended(told=told.replace("x", "y"), said=said.replace("no", "yes").replace("10", "100"))
    assert code == 0 or ended(code=0)
    assert code == 1 or ended(told=told.replace("1", "2"))


def made(rest, case="squares", **parameters):
    return snippet(HEAD + rest, case, parameters, "float32", 3)


def runs(text, folder):
    ended = pasted(text, folder)
    assert ended.returncode == 0, f"{ended.stderr}\n{text}"
    return ended.stdout


SQUARES = "@scenario.reference\ndef squares(weight):\n    return weight.square().sum()\n"


def test_marks_and_other_cases_stay_out():
    text = made(SQUARES + "\n\n@scenario.reference\ndef cubes(weight):\n    return 1\n")
    assert "scenario" not in text
    assert "cubes" not in text
    assert "given = inputs(3)" in text


def test_decorators_that_are_no_marks_stay():
    """Without them the snippet calculates something else."""
    text = made(
        "import contextlib\n\n\n@contextlib.contextmanager\ndef block():\n    yield\n\n\n"
        "@scenario.reference\n@torch.enable_grad()\ndef squares(weight):\n    with block():\n"
        "        return weight.square().sum()\n"
    )
    assert "@contextlib.contextmanager\ndef block" in text
    assert "@torch.enable_grad()\ndef squares" in text
    assert "scenario" not in text


def test_every_statement_about_a_name_stays_with_what_it_uses():
    text = made(
        "BASE = 1\nSIZES = {'a': BASE}\nSIZES['b'] = 2\n\n\n" + SQUARES.replace("weight.square", "SIZES and weight")
    )
    assert "SIZES['b'] = 2" in text
    assert unknown(text) == []


def test_an_annotated_constant_stays():
    text = made("LIMIT: int = 3\n\n\n" + SQUARES.replace("weight.square()", "LIMIT * weight"))
    assert unknown(text) == []


def test_a_docstring_with_a_backslash_stays_as_it_reads():
    text = snippet('r"""A path\\n\\d stays."""\n' + HEAD.partition('"""\n')[2] + SQUARES, "squares", {}, "float32", 3)
    assert ast.get_docstring(ast.parse(text)) == "A path\\n\\d stays."


def test_parameters_and_dtype_are_written_into_the_call(tmp_path):
    text = snippet(
        HEAD + "@scenario.reference\ndef scaled(weight, by, name):\n    assert weight.dtype is torch.float16\n"
        "    observe(name, by)\n    return (by * weight).sum()\n",
        "scaled",
        {"by": 2, "name": "a'b"},
        "float16",
        3,
    )
    assert 'scaled(**given, by=2, name="a\'b")' in text
    assert "a'b: 2" in runs(text, tmp_path / "empty")


def test_a_case_that_yields_is_differentiated_inside_its_block(tmp_path):
    text = made(
        "@scenario.reference\ndef squares(weight):\n    print('before')\n    yield weight.square().sum()\n"
        "    print('after', weight.grad is not None)\n"
    )
    lines = runs(text, tmp_path / "empty").splitlines()
    assert lines[1:3] == ["before", "after True"]


UNDIFFERENTIATED = """
@scenario.reference(gradient=False, warm_up=True, profiled=False)
def doubled(weight, by=2):
    print("requires a gradient:", weight.requires_grad)
    observe("doubled", by * weight)
    return (by * weight).sum()


@scenario.reference(gradient=False)
def says_nothing(weight):
    observe("requires a gradient", weight.requires_grad)


@scenario.reference(gradient=False)
def yields(weight):
    print("before")
    yield (2 * weight).sum()
    print("after", weight.grad)


@scenario.reference
def squares(weight):
    return weight.square().sum()
"""


@pytest.mark.parametrize(
    ("case", "dtype", "parameters", "lines"),
    [
        ("doubled", "float32", {}, ["requires a gradient: False", "doubled: tensor(", "tensor(4.5000)"]),
        ("doubled", "float16", {"by": 3}, ["requires a gradient: False", "doubled: tensor(", "tensor(6.7500, dtype="]),
        ("says_nothing", "float32", {}, ["requires a gradient: False", "None"]),
        ("yields", "float32", {}, ["before", "tensor(4.5000)", "after None"]),
    ],
)
def test_a_case_without_a_gradient_is_called_and_no_more(tmp_path, case, dtype, parameters, lines):
    """As the worker runs it: on inputs that require none, and without `backward`."""
    text = snippet(HEAD + UNDIFFERENTIATED, case, parameters, dtype, 3, gradient=False)
    assert "backward" not in text
    assert unknown(text) == []
    shown = [line for line in runs(text, tmp_path / "empty").splitlines()[1:] if not line.startswith(" ")]
    assert len(shown) == len(lines), shown
    for line, beginning in zip(shown, lines, strict=True):
        assert line.startswith(beginning)


# The command.


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    scenarios = {"a/good": HEAD + SQUARES, "a/broken": "def (", "a/undifferentiated": HEAD + UNDIFFERENTIATED}
    return roots.whole(tmp_path_factory.mktemp("snippets") / "root", scenarios)


def command(root, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "experiments.snippet", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prints_what_can_be_pasted(root, tmp_path):
    ended = command(root, "a/good", "squares", "--seed", "5")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "inputs(5)" in ended.stdout
    assert "weight tensor(" in runs(ended.stdout, tmp_path / "empty")


def test_the_command_knows_which_case_is_differentiated(root):
    """Both from one file: its mark says so."""
    texts = {case: command(root, "a/undifferentiated", case).stdout for case in ("doubled", "squares")}
    assert "backward" not in texts["doubled"]
    assert "print(doubled(**given))" in texts["doubled"]
    assert "squares(**given).backward()" in texts["squares"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a/good", "square"), "a/good has no case 'square'; did you mean 'squares'?"),
        (("a/good", "zzzzz"), "a/good has no case 'zzzzz'; it has squares"),
        (("a/goood", "squares"), "did you mean 'a/good'?"),
        (("a/broken", "squares"), "a/broken is broken: SyntaxError"),
    ],
)
def test_what_is_not_there_is_refused_with_the_near_one(root, arguments, said):
    ended = command(root, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
