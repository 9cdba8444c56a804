"""A case as a file to paste runs without this project, shows what its mark says, and does what the case does."""

from __future__ import annotations

import ast
import contextlib
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import roots
from commands import Pasting
from roots import HEAD, PROJECT

from experiments.core.expectations import expectation_to_json
from experiments.planning import catalogue
from experiments.runner.fork_client import Forks
from experiments.scenario import raises, refuses
from experiments.scenario import shows as observes
from experiments.snippet import check as check_module
from experiments.snippet.__main__ import case_spec, find_case, write_snippet
from experiments.snippet.source import SnippetError
from experiments.snippet.text import Wanted, snippet
from experiments.worker.switches import _readers

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
    return {entry.name: entry for entry in catalogue.read_cached(PROJECT, tmp_path_factory.mktemp("cache")).entries}


def labels(entry):
    """Every case in every variant that runs on this CPU, with its mark."""
    here = {"inductor"} if shutil.which("g++") else set()
    for case in entry.cases:
        if "cpu" in case["on"] and {need for need in case["needs"] if not need.startswith("torch")} <= here:
            yield from ((label, case) for label in catalogue.labels(case))


def text(name, entry, label):
    source = (PROJECT / "experiments/scenarios" / f"{name}.py").read_text(encoding="utf-8")
    return write_snippet(find_case(entry, label), source, 1729, entry.threads).text


def pasted(text, folder):
    """What a person sees who saves the text in an empty folder and runs it."""
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-I", "-c", text], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


PASTING = Pasting()
"""The same, but for the start of the interpreter, which costs seconds."""


@pytest.fixture(scope="module", autouse=True)
def pasting():
    with contextlib.closing(PASTING):
        yield


def pasted_quickly(text, folder):
    folder.mkdir(exist_ok=True)
    return PASTING(text, folder)


def shows(name, entry, label, case, folder):
    """Nothing if the pasted text does what the mark says, else what it did."""
    made = text(name, entry, label)
    if "experiments" in made:
        return [f"{name} {label}: names the project"]
    ended = pasted_quickly(made, folder)
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


def made(rest, case="squares", **options):
    return snippet(HEAD + rest, Wanted(case, {}, 3, **options)).text


def runs(text, folder):
    ended = pasted_quickly(text, folder)
    assert ended.returncode == 0, f"{ended.stderr}\n{text}"
    return ended.stdout


SQUARES = "@scenario.reference\ndef squares(weight):\n    return weight.square().sum()\n"


def test_marks_and_other_cases_stay_out():
    text = made(SQUARES + "\n\n@scenario.reference\ndef cubes(weight):\n    return 1\n")
    assert "scenario" not in text
    assert "cubes" not in text
    assert "in inputs(3).items()" in text


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
    source = 'r"""A path\\n\\d stays."""\n' + HEAD.partition('"""\n')[2] + SQUARES
    text = snippet(source, Wanted("squares", {}, 3)).text
    assert ast.get_docstring(ast.parse(text)) == "A path\\n\\d stays."


SCALED = """
@scenario.reference
def scaled(weight, by, name):
    assert weight.dtype is torch.float16
    observe(name, by)
    return weight.sum()
"""


@pytest.mark.parametrize("by", [2, -0.5, True, None, "it's", float("inf"), float("-inf"), float("nan")])
def test_parameters_and_dtype_are_written_into_the_call(tmp_path, by):
    wanted = Wanted("scaled", {"by": by, "name": "a'b"}, 3, "float16")
    text = snippet(HEAD + SCALED, wanted).text
    assert 'name="a\'b")' in text
    assert f"a'b: {by}" in runs(text, tmp_path / "empty").splitlines()


def test_inputs_are_given_their_parameters(tmp_path):
    source = HEAD.replace("inputs(seed)", 'inputs(seed, *, size="large")').replace("(1, 9,", "(1, 9 + len(size),")
    text = snippet(source + SQUARES, Wanted("squares", {"size": "small"}, 3)).text
    assert 'inputs(3, size="small")' in text
    assert runs(text, tmp_path / "empty").rstrip().endswith("1.6250])")  # the thirteenth of 8 + 5


def test_a_case_that_yields_is_differentiated_inside_its_block(tmp_path):
    text = made(
        "@scenario.reference\ndef squares(weight):\n    print('before')\n    yield weight.square().sum()\n"
        "    print('after', weight.grad is not None)\n"
    )
    lines = runs(text, tmp_path / "empty").splitlines()
    assert lines[1:3] == ["before", "after True"]
    assert lines[3].startswith("output: tensor(")


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
        ("doubled", "float32", {}, ["requires a gradient: False", "doubled: tensor(", "output: tensor(4.5000)"]),
        (
            "doubled",
            "float16",
            {"by": 3},
            ["requires a gradient: False", "doubled: tensor(", "output: tensor(6.7500, dtype="],
        ),
        ("says_nothing", "float32", {}, ["requires a gradient: False", "output: None"]),
        ("yields", "float32", {}, ["before", "after None", "output: tensor(4.5000)"]),
    ],
)
def test_a_case_without_a_gradient_is_called_and_no_more(tmp_path, case, dtype, parameters, lines):
    """As the worker runs it: on inputs that require none, and without `backward`."""
    text = snippet(HEAD + UNDIFFERENTIATED, Wanted(case, parameters, 3, dtype, gradient=False)).text
    assert "backward" not in text
    assert unknown(text) == []
    shown = [line for line in runs(text, tmp_path / "empty").splitlines()[1:] if not line.startswith(" ")]
    assert len(shown) == len(lines), shown
    for line, beginning in zip(shown, lines, strict=True):
        assert line.startswith(beginning)


# What a case may depend on at the top of the file.

OPERATOR = """
@torch.library.custom_op("ours::tripled", mutates_args=())
def tripled(values: torch.Tensor) -> torch.Tensor:
    return 3 * values


@tripled.register_fake
def _(values):
    return torch.empty_like(values)


def derivative(ctx, gradient):
    return 3 * gradient


tripled.register_autograd(derivative)


@scenario.reference
def squares(weight):
    return tripled(weight).square().sum()
"""

LOADED = """
import contextlib
import random

torch.manual_seed(11)
random.seed(5)
torch.set_default_dtype(torch.float64)

try:
    from torch.nn.attention import no_such_name as block
except ImportError:
    block = None

if block is None:

    def doubled(weight):
        return 2 * weight

else:

    def doubled(weight):
        raise AssertionError("not this one")


for DIVISOR in (2, 4):
    pass

with contextlib.suppress(KeyError):
    SHIFT = 0.25
    SHIFT = {}["absent"]

FACTOR, *OTHERS = 3.0, 5.0
OTHERS.append(7.0)


class Shifted:
    by = SHIFT


@scenario.reference
def squares(weight):
    factors = random.random() * FACTOR * torch.tensor(OTHERS).sum()
    return (doubled(weight) * torch.rand(8) * factors / DIVISOR + Shifted.by).square().sum()
"""

HANDED_ON = """
import contextlib


def followed(weight, calls):
    calls.append("before")
    yield weight.square().sum()
    observe("calls", calls + ["gradient" if weight.grad is not None else "none"])


@scenario.reference
def squares(weight):
    yield from followed(weight, [])


@scenario.reference
def returned(weight):
    return followed(weight, [])


@scenario.reference
def managed(weight):
    @contextlib.contextmanager
    def block():
        yield

    with block():
        return weight.square().sum()
"""

WARM = """
torch.manual_seed(7)
CALLS = []


@scenario.reference(warm_up=True)
def squares(weight):
    CALLS.append(1)
    observe("calls", len(CALLS))
    return (weight * torch.rand(8)).square().sum()
"""

INSIDE = """
def told(values):
    from experiments.scenario import observe

    observe("largest", values.max())


@scenario.reference
def squares(weight):
    told(weight)
    return weight.square().sum()
"""

RAISES = """
class Unwell(Exception):
    pass


@scenario.reference
def squares(weight):
    observe("weight", weight)
    raise Unwell(f"no {tuple(weight.shape)} {{here}}")


@scenario.reference
def later(weight):
    total = weight.square().sum()
    total.register_hook(lambda _: {}["absent"])
    return total


@scenario.reference
def after(weight):
    yield weight.square().sum()
    raise Unwell("after")
"""

WAYS = {
    "operator": OPERATOR,
    "loaded": LOADED,
    "handed_on": HANDED_ON,
    "warm": WARM,
    "inside": INSIDE,
    "raises": RAISES,
    "page_breaks": "\x0c\n# A line\u2028separator, a paragraph\u2029separator, \x85 and \x1c.\n" + SQUARES,
    "marked": "\ufeff" + (HEAD + SQUARES).replace("\n", "\r\n"),
    "two_threads": HEAD.replace('source="a test"', 'source="a test", threads=2')
    + '@scenario.reference\ndef squares(weight):\n    observe("threads", torch.get_num_threads())\n'
    "    return weight.square().sum()\n",
    "odd $HOME {x} it's": SQUARES,
}
"""Files, or what comes below `HEAD` in one, by what is odd about them."""

SAMPLED = ("operator", "loaded", "handed_on", "warm", "raises", "two_threads")
"""Those that always run; the rest is slow."""

COMPARED = (
    HEAD.replace("Scenario, observe", "Scenario, agrees, differs, observe, raises, state_differs, varies")
    + """
torch.manual_seed(7)
STREAM = torch.Generator().manual_seed(3)


@scenario.reference
def squares(weight):
    observe("noise", torch.rand(3))
    return (weight * torch.rand(8)).square().sum()


@scenario.broken(differs(by_at_least=1e-3), cause="random state")
def halved(weight):
    observe("noise", torch.rand(3))
    noise = torch.rand(8)
    return ((weight * noise).detach() * weight * noise).sum()


@scenario.repair(agrees(bitwise=True))
def squares_again(weight):
    return squares(weight)


@scenario.reference
def drawn(weight):
    return (weight * torch.rand(8, generator=STREAM)).square().sum()


@scenario.repair(agrees(bitwise=True), reference="drawn")
def drawn_again(weight):
    return drawn(weight)


@scenario.broken(state_differs("deterministic"), cause="ambient state")
def left(weight):
    torch.use_deterministic_algorithms(True)
    return weight.square().sum()


@scenario.broken(varies(at_least=0.5), cause="another thread")
def drawn_anew(weight):
    import os

    return weight.sum() * os.getpid()


@scenario.broken(raises("ScenarioError"), cause="python value")
def beyond(weight):
    return weight


@scenario.broken(raises("Exception"), cause="python value", needs=("torch<1.0",))
def ancient(weight):
    return weight.sum()
"""
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    below = {"a/good": SQUARES, "a/undifferentiated": UNDIFFERENTIATED, **{f"a/{name}": t for name, t in WAYS.items()}}
    scenarios = {name: text if "Scenario(" in text else HEAD + text for name, text in below.items()}
    others = {"a/unseeded": COMPARED.replace("torch.manual_seed(7)", ""), "a/broken": "def (", "a/compared": COMPARED}
    return roots.whole(tmp_path_factory.mktemp("snippets") / "root", {**scenarios, **others})


@pytest.fixture(scope="module")
def entries(root, tmp_path_factory):
    return {entry.name: entry for entry in catalogue.read_cached(root, tmp_path_factory.mktemp("cache")).entries}


@pytest.fixture(scope="module")
def forked(root):
    """Runs a spec in a fork, once: many snippets are compared with one case, and some with its second run."""
    kept, forks = {}, Forks(root)

    def run(spec, folder, root):
        asked = (spec.digest(), folder.name)
        if asked not in kept:
            kept[asked] = roots.run(spec, folder, root, forks.start).record
        return kept[asked]

    with contextlib.closing(forks):
        yield run


@pytest.fixture
def check(root, forked, monkeypatch):
    """What the command compares. The snippet has a process of its own, as there; the case is forked, if it may be."""

    def checked(snippet, spec, reference, *, fresh=False):
        with monkeypatch.context() as patch:
            if not fresh:
                patch.setattr(check_module.supervisor, "run", forked)
            return check_module.check(snippet, spec, reference, root)

    return checked


def of(root, entries, scenario, case):
    """A case of the root as a snippet, and the specs that ask for it and its reference."""
    entry = entries[scenario]
    found = find_case(entry, case)
    reference = found.reference()
    source = (root / "experiments" / "scenarios" / f"{scenario}.py").read_bytes().decode("utf-8")
    specs = [None if one is None else case_spec(one, 3, entry.threads) for one in (found, reference)]
    return write_snippet(found, source, 3, entry.threads), *specs


@pytest.mark.parametrize(
    ("scenario", "case"),
    [
        *((f"a/{name}", "squares") for name in SAMPLED),
        *(pytest.param(f"a/{name}", "squares", marks=pytest.mark.slow) for name in WAYS if name not in SAMPLED),
        pytest.param("a/handed_on", "returned", marks=pytest.mark.slow),
        ("a/handed_on", "managed"),
        ("a/raises", "later"),
        pytest.param("a/raises", "after", marks=pytest.mark.slow),
        ("a/undifferentiated", "doubled"),
        pytest.param("a/undifferentiated", "says_nothing", marks=pytest.mark.slow),
        ("a/undifferentiated", "yields"),
        ("a/compared", "halved"),
        ("a/compared", "squares_again"),
        ("a/compared", "left"),
        ("a/compared", "drawn_anew"),
    ],
)
def test_a_snippet_does_what_its_case_does(root, entries, check, scenario, case):
    """The same outcome, bits and observed values, each in a process of its own."""
    assert check(*of(root, entries, scenario, case)).difference == ""


def test_a_snippet_is_the_same_file_when_it_is_saved_and_run(root, entries, tmp_path):
    """What is checked is what a person runs: threads, observed values and the exception come out."""
    ended = pasted(of(root, entries, "a/raises", "squares")[0].text, tmp_path / "one")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "Unwell: no (8,) {here}"
    assert "threads: 2" in pasted(of(root, entries, "a/two_threads", "squares")[0].text, tmp_path / "two").stdout


def test_a_silent_fault_is_seen(root, entries, tmp_path):
    """The gradients differ by half of themselves, the output and what is observed do not."""
    shown = runs(of(root, entries, "a/compared", "halved")[0].text, tmp_path / "empty")
    found = dict(re.findall(r"^(.*): largest difference from the reference: (.*)$", shown, re.MULTILINE))
    assert found["output"] == found["observed noise"] == "0"
    assert float(found["gradient of weight"]) > 1e-3


def test_where_nothing_is_wrong_every_difference_is_0(root, entries, tmp_path):
    shown = runs(of(root, entries, "a/compared", "squares_again")[0].text, tmp_path / "empty")
    assert re.findall(r"reference: (.*)$", shown, re.MULTILINE) == ["0", "0", "0"]


def test_a_switch_that_is_left_otherwise_is_seen(root, entries, tmp_path):
    shown = runs(of(root, entries, "a/compared", "left")[0].text, tmp_path / "empty")
    assert shown.splitlines()[-1] == "deterministic: False before, True after"


def test_every_switch_of_the_worker_can_be_read_but_one(root, entries):
    """Denormals have no reader: the snippet is refused and says so."""
    source, known = HEAD + SQUARES, set(_readers()) - {"flush_denormal"}
    text = snippet(source, Wanted("squares", {}, 3, switches=sorted(known))).text
    assert unknown(text) == []
    with pytest.raises(SnippetError, match="flush_denormal"):
        snippet(source, Wanted("squares", {}, 3, switches=["flush_denormal"]))


def test_a_case_that_needs_other_threads_gets_them_before_anything_runs():
    text = made("WIDTH = torch.ones(8).sum()\n\n\n" + SQUARES, threads=2)
    assert text.index("torch.set_num_threads(2)") < text.index("WIDTH =")


@pytest.mark.parametrize(
    ("case", "before", "after", "difference"),
    [
        ("squares", "torch.manual_seed(11)", "torch.manual_seed(12)", "output 'loss' is not bit for bit the case's"),
        ("squares", "inputs(3)", "{'weight': 2 * inputs(3)['weight']}", "its inputs are not the case's"),
        ("squares", "torch.manual_seed(11)", "", "output 'loss' is not bit for bit the case's"),
        ("squares", "total.backward()", "(2 * total).backward()", "gradient 'weight' is not bit for bit the case's"),
        ("squares", "total.backward()", "", "gradient 'weight' is not bit for bit the case's"),
        ("squares", "import random\n", "\n", "the case finishes, the snippet raises NameError in inputs"),
        (
            "squares",
            "def doubled(weight):\n        return 2",
            "def other(weight):\n        return 2",
            "raises NameError",
        ),
        ("squares", 'print("torch"', 'import os; os._exit(3); print("torch"', "the case finishes, the snippet dies"),
    ],
)
def test_a_snippet_that_does_something_else_is_found(root, entries, check, case, before, after, difference):
    whole, spec, reference = of(root, entries, "a/loaded", case)
    assert before in whole.text
    damaged = replace(whole, text=whole.text.replace(before, after))
    assert difference in check(damaged, spec, reference).difference


@pytest.mark.parametrize(
    ("case", "before", "after", "difference"),
    [
        ("squares", "no {tuple", "not {tuple", "the case says 'no (8,) {here}', the snippet 'not (8,) {here}'"),
        ("squares", "raise Unwell(f", "raise ValueError(f", "the snippet raises ValueError in forward"),
        ("squares", 'observe("weight", weight)', 'observe("weights", weight)', "output 'weight' is not bit for bit"),
        ("later", "total_.backward()", "", "the case raises KeyError in backward, the snippet finishes"),
        ("after", "next(held, None)\nprint", "held.throw(Unwell('after'))\nprint", ""),
    ],
)
def test_another_exception_is_found(root, entries, check, case, before, after, difference):
    whole, spec, reference = of(root, entries, "a/raises", case)
    assert before in whole.text
    damaged = replace(whole, text=whole.text.replace(before, after))
    found = check(damaged, spec, reference).difference
    assert difference in found if difference else found == ""


def test_other_observed_values_are_found(root, entries, check):
    whole, spec, _ = of(root, entries, "a/inside", "squares")
    damaged = replace(whole, text=whole.text.replace('observe("largest", values.max())', 'observe("largest", 3)'))
    assert "observes other values" in check(damaged, spec, None).difference


def test_a_case_that_does_not_repeat_itself_is_not_compared_by_its_numbers(root, entries, check):
    """Nothing seeds it. Another ending would be found all the same."""
    whole, spec, reference = of(root, entries, "a/unseeded", "squares_again")
    result = check(whole, spec, reference, fresh=True)
    assert (result.difference, check_module.MOVES in result.seen) == ("", True)
    damaged = replace(whole, text=whole.text.replace("total.backward()", "total.backwards()"))
    assert "raises AttributeError" in check(damaged, spec, reference, fresh=True).difference


def test_a_reference_that_the_case_disturbs_is_found(root, entries, check):
    """Both draw from one stream, so in one process the second draws other numbers than it would alone."""
    found = check(*of(root, entries, "a/compared", "drawn_again")).difference
    assert found == "after the case, output 'loss' of the reference is not bit for bit what it is alone"


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (
            "def helper():\n    return scenario.threads\n\n\n" + SQUARES.replace("weight.", "helper() * weight."),
            "helper",
        ),
        ("torch.manual_seed(scenario.threads)\n" + SQUARES, "'scenario', which is this project's"),
        (SQUARES.replace("return", "from experiments import core\n    return"), "imports this project"),
        ("squares = scenario.reference(lambda weight: weight.sum())\n", "defines no function squares"),
    ],
)
def test_what_needs_this_project_is_refused_with_the_reason(rest, said):
    with pytest.raises(SnippetError, match=said):
        made(rest)


def test_what_changes_nothing_stays_out():
    text = made(
        "import base64\nimport torch.nn.attention\n\nUNUSED = {'a': (1, 2)}\nUSED = len(UNUSED)\n\n\n"
        "def unused():\n    return UNUSED\n\n\nclass Unused:\n    def method(self):\n        return unused()\n\n\n"
        'if __name__ == "__main__":\n    unused()\n\n\n' + SQUARES
    )
    assert "unused" not in text.lower()
    assert "base64" not in text
    assert "import torch.nn.attention" in text


@pytest.mark.parametrize(
    "line",
    [
        "torch.manual_seed(3)",
        "UNUSED = torch.rand(3)",
        "torch.backends.mkldnn.enabled = True",
        "SIZES = {}\nSIZES['a'] = 1",
        "for _ in range(3):\n    torch.rand(1)",
        "assert torch.rand(1) < 2",
        "def unused(values=torch.rand(3)):\n    return values",
        "import functorch",
        "def helper():\n    return 1\n\n\nhelper()",
        "from torch import *",
    ],
)
def test_what_may_change_something_stays_as_it_stands(line):
    assert line in made(line + "\n\n\n" + SQUARES)


def test_a_use_by_any_name_keeps_every_name():
    rest = "WIDTH = 3\n\n\n" + SQUARES.replace("return", "assert globals()['WI' + 'DTH'] == 3\n    return")
    assert "WIDTH = 3" in made(rest)


def test_marks_inside_an_if_are_taken_off(tmp_path):
    block = "if True:\n    LIMIT = 3\n\n    " + SQUARES.strip().replace("\n", "\n    ") + "\n\n    scenario.source\n"
    text = made(block.replace("scenario.source", 'scenario.reference(lambda weight: "other")'))
    assert "scenario" not in text
    assert "output" in runs(text, tmp_path / "empty")


def test_statements_on_one_line_are_told_apart(tmp_path):
    text = made("USED = 2; UNUSED = 3; torch.manual_seed(1)  # both\n\n\n" + SQUARES.replace("return", "return USED *"))
    assert "USED = 2\ntorch.manual_seed(1)  # both\n" in text
    assert "output" in runs(text, tmp_path / "empty")


def test_an_encoding_that_the_file_claims_is_not_claimed_of_the_snippet(tmp_path):
    """A scenario is read as UTF-8 whatever it says; Python would believe the first two lines of a file."""
    name = "größe"
    source = "# -*- coding: latin-1 -*-\n" + HEAD + SQUARES.replace("return", f'observe("{name}", 1)\n    return')
    path = tmp_path / "saved.py"
    path.write_text(snippet(source, Wanted("squares", {}, 3)).add_header(["One case."]), encoding="utf-8")
    ended = subprocess.run([sys.executable, "-I", str(path)], capture_output=True, check=True)
    assert f"{name}: 1" in ended.stdout.decode("utf-8")


def test_names_of_the_file_are_not_taken(tmp_path):
    """What the snippet adds must not write over what the case reads."""
    taken = "prepared given total held run quiet observed difference ours theirs switches before state"
    names = re.findall(r"\w+", taken)
    table = "\n".join(f"{name} = {index}" for index, name in enumerate(names))
    asserted = "\n    ".join(f"assert {name} == {index}" for index, name in enumerate(names))
    rest = f"{table}\n\n\n" + SQUARES.replace("return", f"observe('a', 1)\n    {asserted}\n    return")
    text = made(rest, warm_up=True, reference="squares", switches=("grad",))
    assert "largest difference" in runs(text, tmp_path / "empty")


def test_processes_that_load_the_file_again_do_not_run_it_again():
    text = made("CONTEXT = 'spawn'\n\n\n" + SQUARES.replace("weight.square", "CONTEXT and weight.square"))
    last = [line for line in text.splitlines() if line and not line.startswith(" ")][-1]
    assert last == 'if __name__ == "__main__":'


# The command.


def command(root, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "experiments.snippet", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_the_command_prints_what_was_run(root, tmp_path):
    ended = command(root, "a/good", "squares", "--seed", "5", "--threads", "2")
    assert (ended.returncode, ended.stderr.count("\n")) == (0, 1), ended.stderr
    assert "running the case and the snippet to compare" in ended.stderr
    comment = " ".join(line[2:] for line in ended.stdout.splitlines() if line.startswith("# "))
    assert comment.startswith("One case as a file of its own: it needs torch and nothing else. Run on torch ")
    assert comment.endswith("it finishes, as the case itself does, with the same bits.")
    assert "inputs(5)" in ended.stdout
    assert "torch.set_num_threads(2)" in ended.stdout
    assert "gradient of weight: tensor(" in runs(ended.stdout, tmp_path / "empty")


def test_a_name_that_a_shell_or_a_pattern_would_read_is_a_name(root):
    ended = command(root, "a/odd $HOME {x} it's", "squares", "--unchecked")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_command_says_which_exception_came_out(root):
    ended = command(root, "a/raises", "squares")
    assert (ended.returncode, "it raises Unwell in forward, as the case" in ended.stdout) == (0, True), ended.stderr


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("drawn_again", "does not repeat its case: after the case, output 'loss' of the reference"),
        ("beyond", "its case: the case itself raises experiments.scenario.ScenarioError in forward"),
    ],
)
def test_a_snippet_that_does_not_repeat_its_case_is_refused(root, case, said):
    ended = command(root, "a/compared", case)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    unchecked = command(root, "a/compared", case, "--unchecked")
    assert (unchecked.returncode, unchecked.stderr) == (0, "")
    assert "# Nobody has checked that it does what the case does" in unchecked.stdout


def test_a_case_that_cannot_run_here_is_printed_and_says_so(root):
    ended = command(root, "a/compared", "ancient")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "# It could not be run here: it needs torch<1.0. Nobody has checked it." in ended.stdout


def test_what_varies_is_said_to_vary(root):
    ended = command(root, "a/compared", "drawn_anew")
    comment = ended.stdout.partition('"""')[0].replace("\n# ", " ")
    assert "Its ending varies from run to run." in comment, ended.stderr


def test_the_command_knows_which_case_is_differentiated(root):
    """Both from one file: its mark says so."""
    texts = {case: command(root, "a/undifferentiated", case, "--unchecked").stdout for case in ("doubled", "squares")}
    assert "backward" not in texts["doubled"]
    assert "total = case(**given, **parameters)" in texts["doubled"]
    assert "total.backward()" in texts["squares"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a/good", "square"), "a/good has no case 'square'; did you mean 'squares'?"),
        (("a/good", "zzzzz"), "a/good has no case 'zzzzz'; it has squares"),
        (("a/goood", "squares"), "did you mean 'a/good'?"),
        (("a/*", "squares"), "'a/*' matches 15 scenarios"),
        (("a/broken", "squares"), "a/broken is broken: SyntaxError"),
    ],
)
def test_what_is_not_there_is_refused_with_the_near_one(root, arguments, said):
    ended = command(root, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
