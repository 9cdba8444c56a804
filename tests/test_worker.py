"""What a worker sees of a case, in processes of its own: every record here comes from a real one."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import struct
import subprocess
import sys

import pytest
import roots
from roots import HEAD, PROJECT, Lab

from experiments.core.canonical_json import digest
from experiments.core.record import Record
from experiments.core.sampling import SAMPLES, sample_positions
from experiments.runner import source_copy, supervisor

NOTE = "checkpoint/attention_policy_ends_before_recomputation"
BLOCKED = ("hydra", "omegaconf", "mlflow", "sqlalchemy", "alembic", "pydantic", "rich", "numpy")

CASES = (
    HEAD
    + """
import ctypes
import importlib
import os
import signal
import sys


class Own(BaseException):
    pass


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")


@scenario.reference
def squares(weight):
    observe("doubled", weight * 2)
    return weight.square().sum()


@scenario.reference
def leaves(weight):
    sys.exit(4)


@scenario.reference
def interrupted(weight):
    raise KeyboardInterrupt


@scenario.reference
def raises_its_own(weight):
    raise Own("of the case")


@scenario.reference
def raises_unprintable(weight):
    raise Unprintable


@scenario.reference
def raises_at_length(weight):
    raise ValueError("first line\\n\\n" + "x" * 10_000_000)


@scenario.reference
def raises_surrogates(weight):
    raise ValueError("half a pair: \\ud800")


@scenario.reference
def names_its_folder(weight):
    open(os.path.join(os.getcwd(), "missing.txt"))


@scenario.reference
def stops_iterating(weight):
    raise StopIteration("early")


@scenario.reference
def returns_a_vector(weight):
    return weight


@scenario.reference
def returns_nothing(weight):
    pass


@scenario.reference
def has_no_graph(weight):
    return weight.detach().sum()


class Inside:
    def __enter__(self):
        print("enters", flush=True)

    def __exit__(self, kind, *rest):
        print(f"leaves {kind.__name__ if kind else 'quietly'}", flush=True)


class Differentiated(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        print("differentiates", flush=True)
        return gradient


@scenario.reference
def yields_inside(weight):
    with Inside():
        yield Differentiated.apply(weight).sum()


@scenario.reference
def yields_twice(weight):
    yield weight.sum()
    yield weight.sum()


@scenario.reference
def yields_nothing(weight):
    return
    yield


@scenario.reference
def fails_after_its_yield(weight):
    yield weight.sum()
    raise ValueError("afterwards")


@scenario.reference
def observes(weight):
    kept = weight.detach().clone()
    observe("vector", kept)
    kept.zero_()
    observe("scalar", weight.max())
    observe("flag", True)
    observe("text", "a word")
    observe("not a number", float("nan"))
    observe("large", 2**60)
    observe("seconds", 0.25, measurement=True, tolerance=0.1)
    observe("empty", torch.zeros(0))
    return weight.sum()


@scenario.reference
def observes_a_list_and_changes_it(weight):
    calls = [1]
    observe("calls", calls)
    calls.append(object())
    return weight.sum()


@scenario.reference
def observes_an_object(weight):
    observe("object", object())
    return weight.sum()


@scenario.reference
def observes_a_tensor_twice(weight):
    observe("same", weight * 1)
    observe("same", weight * 2)
    return weight.sum()


@scenario.reference
def observes_a_value_twice(weight):
    observe("same", 1)
    observe("same", 2)
    return weight.sum()


@scenario.reference
def observes_something_deep(weight, depth):
    value = 1
    for _ in range(depth):
        value = [value]
    observe("deep", value)
    return weight.sum()


@scenario.reference
def switches_flash_off(weight):
    torch.backends.cuda.enable_flash_sdp(False)
    return weight.sum()


@scenario.reference
def imports(weight):
    for name in ("hydra", "omegaconf", "mlflow", "sqlalchemy", "alembic", "pydantic", "rich", "numpy"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            observe(name, str(error))
    return weight.sum()


@scenario.reference
def whose_modules(weight):
    import experiments

    observe("experiments", os.path.relpath(experiments.__path__[0], ROOT))
    observe("its marker", getattr(experiments, "THEIRS", False))
    observe("path", [entry for entry in sys.path if entry.endswith("worker")])
    return weight.sum()


@scenario.reference
def writes(weight):
    sys.stdout.write("out\\n")
    sys.stderr.write("err\\n")
    os.write(1, bytes([0xFF, 0xFE, 0x0A]))
    return weight.sum()


@scenario.reference
def closes_stdout(weight):
    sys.stdout.close()
    return weight.sum()


@scenario.reference
def leaves_a_thread_behind(weight):
    import threading

    threading.Thread(target=signal.pause if hasattr(signal, "pause") else input).start()
    return weight.sum()


@scenario.reference
def shows_its_environment(weight):
    observe("sees", [name in os.environ for name in ("TWOFOLD_TEST_SECRET", "AWS_SECRET_ACCESS_KEY")])
    print(dict(os.environ), flush=True)
    return weight.sum()


@scenario.reference
def exits_quietly(weight):
    os._exit(0)


@scenario.reference
def exits_with_3(weight):
    os._exit(3)


@scenario.reference
def aborts(weight):
    os.abort()


@scenario.reference
def reads_address_0(weight):
    ctypes.string_at(0)


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""
)

PARTLY = '''"""Inputs of several kinds."""

import torch

from experiments.scenario import Scenario, observe

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    return {
        "third": torch.tensor([1 / 3, -2 / 3]).requires_grad_(),
        "unused": torch.ones(2, 2).requires_grad_(),
        "mask": torch.tensor([True, False]),
        "constant": torch.ones(2),
    }


@scenario.reference
def uses_some(third, unused, mask, constant):
    return (third * constant)[mask].sum()
'''

LARGE = '''"""Tensors that are too large to be kept whole."""

import torch

from experiments.scenario import Scenario, observe

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    return {"weight": torch.ones(1).requires_grad_()}


@scenario.reference
def observes(weight):
    generator = torch.Generator().manual_seed(1)
    one = torch.randint(-4096, 4097, (300, 70), generator=generator) / 16
    other = one + torch.randint(-48, 49, (300, 70), generator=generator) / 4096
    observe("one", one)
    observe("other", other)
    observe("their distance", float((one.double() - other.double()).norm()))
    observe("positions", torch.arange(21000, dtype=torch.int64).reshape(300, 70).t())
    return weight.sum()
'''


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    crlf = CASES.split("class Own")[0].rstrip().replace("import ctypes", "") + "\n\n\n@scenario.reference\n"
    crlf += "def squares(weight):\n    return weight.square().sum()\n"
    scenarios = {"a/cases": CASES, "a/partly": PARTLY, "a/large": LARGE, "a/crlf": crlf.replace("\n", "\r\n")}
    scenarios["a/does_not_import"] = HEAD + "raise LookupError('not today')\n"
    scenarios["a/is_no_python"] = "def ("
    with contextlib.closing(Lab.of(tmp_path_factory.mktemp("worker"), scenarios, forked=True)) as made:
        yield made


@pytest.fixture(scope="module")
def note(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("note"), PROJECT)


def numbers(content, kind):
    return struct.unpack(f"<{len(content) // struct.calcsize(kind)}{kind}", content)


# The calculation of the note.


def test_the_note_s_broken_case_raises_in_backward(note):
    outcome = note.ran(NOTE, "chosen_around_the_forward").outcome
    assert (outcome.kind, outcome.phase) == ("raised", "backward")
    assert outcome.type == "torch.utils.checkpoint.CheckpointError"
    assert "RuntimeError" in outcome.bases
    assert outcome.fingerprint().startswith(
        "torch.utils.checkpoint.CheckpointError in backward: torch.utils.checkpoint: "
        "Recomputed values for the following tensors have different metadata"
    )
    assert "[1, 2, 8, 4]" in outcome.fingerprint()


def test_a_traceback_names_no_folder_of_this_machine(note):
    """Records are published, and two machines' records are compared."""
    text = note.ran(NOTE, "chosen_around_the_forward").outcome.traceback
    named = [line.split('"')[1] for line in text.splitlines() if line.startswith("  File ")]
    assert "torch/utils/checkpoint.py" in named
    assert [name for name in named if name.startswith("/")] == []
    assert str(PROJECT) not in text


def test_a_traceback_begins_in_the_scenario(lab):
    lines = lab.ran("a/cases", "raises_its_own").outcome.traceback.splitlines()
    assert lines[1].startswith('  File "experiments/scenarios/a/cases.py", line ')
    assert lines[1].endswith("in raises_its_own")
    assert lines[-1] == "scenario_under_test.Own"


def test_the_note_s_recomputation_takes_another_operator(note):
    operators = note.ran(NOTE, "chosen_around_the_forward", pass_="profiled").seen.operators
    names = {phase: {operator.name for operator in listed} for phase, listed in operators.items()}
    assert set(names) == {"forward", "recomputation", "backward"}
    assert "aten::_scaled_dot_product_attention_math" in names["forward"]
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" not in names["forward"]
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names["recomputation"]
    assert "aten::_scaled_dot_product_attention_math" not in names["recomputation"]


def test_operators_have_shapes_and_depth(note):
    operators = note.ran(NOTE, "chosen_around_the_forward", pass_="profiled").seen.operators["forward"]
    outer = next(operator for operator in operators if operator.name == "aten::scaled_dot_product_attention")
    inner = next(operator for operator in operators if operator.name == "aten::_scaled_dot_product_attention_math")
    assert outer.shapes[:3] == ((1, 2, 8, 4),) * 3
    assert inner.depth > outer.depth


def test_the_note_s_inputs_are_the_published_ones(note):
    seen = note.ran(NOTE, "chosen_around_the_forward")
    assert [seen.tensor("input", name).digest[:12] for name in ("query", "key", "value")] == [
        "c26076816f7a",
        "e200faed6099",
        "9115c1732719",
    ]


def test_the_plain_pass_carries_no_profiler(note):
    assert note.ran(NOTE, "chosen_around_the_forward").seen.operators is None


def test_both_passes_see_the_same_ending(note):
    plain, profiled = (note.ran(NOTE, "chosen_around_the_forward", pass_=name) for name in ("plain", "profiled"))
    assert plain.seen.tensors == profiled.seen.tensors
    assert plain.outcome.fingerprint() == profiled.outcome.fingerprint()


def test_both_passes_see_the_same_gradients(lab):
    plain, profiled = (lab.ran("a/cases", "squares", pass_=name) for name in ("plain", "profiled"))
    assert plain.seen.tensors == profiled.seen.tensors
    assert [tensor.role for tensor in plain.seen.tensors] == ["input", "gradient", "output", "output"]


def test_the_worker_s_own_operators_are_not_in_the_profile(lab):
    """The copy of an observed tensor is our doing; the multiplication is the case's."""
    names = [operator.name for operator in lab.ran("a/cases", "squares", pass_="profiled").seen.operators["forward"]]
    assert "aten::mul" in names
    assert "aten::clone" not in names


def test_fresh_equals_fresh(note, tmp_path):
    """Another process, another hash seed and a verified copy of the sources leave the same evidence."""
    case = "chosen_around_the_forward"
    first = note.ran(NOTE, case, pass_="profiled")
    copied = source_copy.copy_sources(PROJECT, tmp_path / "copied")
    assert {name: digest((copied.root / name).read_bytes()) for name in copied.digests} == copied.digests
    again = roots.run(
        note.spec(NOTE, case, pass_="profiled", hash_seed=4711, repeat=1, sources="copied"),
        tmp_path / "again",
        copied.root,
    )
    assert again.record.evidence_digest() == first.record.evidence_digest()
    assert again.seen.sources == first.seen.sources
    assert again.seen.machine == first.seen.machine


def test_two_processes_of_one_setting_read_the_same_machine(lab):
    first, second = lab.ran("a/cases", "squares"), lab.ran("a/cases", "squares", repeat=1)
    assert first.machine() == second.machine()
    assert first.record.evidence_digest() == second.record.evidence_digest()
    assert first.record.spec.replay_digest() != second.record.spec.replay_digest()


def test_a_record_reads_back_as_it_was_written(note):
    ran = note.ran(NOTE, "chosen_around_the_forward", pass_="profiled")
    text = (ran.folder / "record.json").read_text(encoding="utf-8")
    assert Record.from_text(text) == ran.record
    assert Record.from_text(text).text() == text


def test_a_folder_holds_every_content_that_its_record_names(note, lab):
    for ran in (note.ran(NOTE, "chosen_around_the_forward"), lab.ran("a/large", "observes")):
        assert {name: digest(ran.blob(name)) for name in ran.record.blobs()} == {
            name: name for name in ran.record.blobs()
        }


# What a worker does without.


@pytest.fixture(scope="module")
def blocker(tmp_path_factory):
    """A folder for PYTHONPATH with which none of these packages is there: neither imported nor found."""
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        return None if name.partition('.')[0] in {BLOCKED!r} else PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Blocker()\n"
    )
    return {"PYTHONPATH": str(folder)}


def test_the_block_blocks(lab, blocker):
    assert [name for name in BLOCKED if importlib.util.find_spec(name) is None] == [], "nothing to block"
    ran = lab.ran("a/cases", "imports", variables=blocker)
    missing = {name: f"No module named {name!r}" for name in BLOCKED}
    assert {one.name: one.value for one in ran.seen.observed} == missing


def test_the_worker_needs_the_standard_library_and_torch_only(note, blocker):
    case = "chosen_around_the_forward"
    blocked = note.ran(NOTE, case, pass_="profiled", variables=blocker)
    assert blocked.record.evidence_digest() == note.ran(NOTE, case, pass_="profiled").record.evidence_digest()


def test_a_listing_needs_the_standard_library_and_torch_only(lab, blocker, tmp_path):
    listed = supervisor.describe(lab.root, "", tmp_path / "catalogue.json", blocker)
    errors = {entry["name"]: entry["error"] for entry in listed["scenarios"]}
    assert errors["a/cases"] is None


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A user's own `experiments`, which leaves a file when it is imported, in the working directory."""
    folder = tmp_path / "theirs"
    (folder / "experiments").mkdir(parents=True)
    loaded = tmp_path / "loaded"
    for name in ("__init__", "scenario", "record"):
        text = f"THEIRS = True\nopen({str(loaded)!r}, 'w').close()\n"
        (folder / "experiments" / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    return {"PYTHONPATH": str(folder)}, loaded


def test_a_user_s_own_experiments_folder_is_not_touched(lab, theirs, tmp_path):
    variables, loaded = theirs
    ran = lab.ran("a/cases", "whose_modules", variables=variables)
    supervisor.describe(lab.root, "", tmp_path / "catalogue.json", variables)
    assert ran.observed("experiments").value == "experiments"
    assert ran.observed("its marker").value is False
    assert ran.observed("path").value == []
    assert not loaded.exists()
    subprocess.run([sys.executable, "-c", "import experiments"], env={**os.environ, **variables}, check=True)
    assert loaded.exists(), "the trap does not work"


def test_another_interpreter_runs_the_worker(lab, tmp_path):
    """Isolated, so that Python itself ignores variables and the user's folders."""
    other = roots.script(tmp_path / "python", f'exec "{sys.executable}" -I "$@"')
    ran = lab.ran("a/cases", "squares", interpreter=other, environment="other")
    assert ran.record.evidence_digest() == lab.ran("a/cases", "squares").record.evidence_digest()


# Endings that the worker sees.


@pytest.mark.parametrize(
    ("case", "type_", "message"),
    [
        ("leaves", "SystemExit", "4"),
        ("interrupted", "KeyboardInterrupt", ""),
        ("raises_its_own", "scenario_under_test.Own", "of the case"),
        (
            "raises_unprintable",
            "scenario_under_test.Unprintable",
            "[Unprintable cannot be printed: its __str__ raised ValueError]",
        ),
        ("raises_surrogates", "ValueError", "half a pair: \\ud800"),
        ("stops_iterating", "StopIteration", "early"),
        (
            "returns_a_vector",
            "experiments.scenario.ScenarioError",
            "a case returns the scalar to differentiate, not a tensor of shape [8]",
        ),
        (
            "returns_nothing",
            "experiments.scenario.ScenarioError",
            "a case returns the scalar to differentiate, not NoneType",
        ),
        (
            "yields_nothing",
            "experiments.scenario.ScenarioError",
            "a case returns the scalar to differentiate, not NoneType",
        ),
    ],
)
def test_whatever_a_case_raises_is_the_observation(lab, case, type_, message):
    outcome = lab.ran("a/cases", case).outcome
    assert (outcome.kind, outcome.phase, outcome.type, outcome.message) == ("raised", "forward", type_, message)


def test_a_long_message_is_cut_visibly(lab):
    ran = lab.ran("a/cases", "raises_at_length")
    message = ran.outcome.message
    assert len(message) < 70_000
    assert "[cut here: 10000012 characters in all, SHA-256 " in message
    assert ran.outcome.fingerprint() == "ValueError in forward: first line"


def test_a_message_names_no_folder_of_this_machine(lab):
    outcome = lab.ran("a/cases", "names_its_folder").outcome
    assert outcome.type == "FileNotFoundError"
    assert "temporary/missing.txt" in outcome.message
    assert str(lab.folder) not in outcome.message


def test_an_error_of_torch_in_backward_has_that_phase(lab):
    outcome = lab.ran("a/cases", "has_no_graph").outcome
    assert (outcome.kind, outcome.phase, outcome.type) == ("raised", "backward", "RuntimeError")


@pytest.mark.parametrize(
    ("scenario", "type_", "message"),
    [
        ("a/does_not_import", "LookupError", "not today"),
        ("a/is_no_python", "SyntaxError", "("),
    ],
)
def test_a_file_that_does_not_import_raises_in_inputs(lab, scenario, type_, message):
    outcome = lab.ran(scenario, "squares").outcome
    assert (outcome.kind, outcome.phase, outcome.type) == ("raised", "inputs", type_)
    assert message in outcome.message


def test_a_file_that_changed_since_the_plan_is_not_run(lab):
    outcome = lab.ran("a/cases", "squares", source=digest("another file")).outcome
    assert (outcome.kind, outcome.phase) == ("raised", "inputs")
    assert "the file has changed since the plan was made" in outcome.message


def test_a_case_that_is_not_in_the_file_raises_in_inputs(lab):
    outcome = lab.ran("a/cases", "squared").outcome
    assert (outcome.phase, outcome.message) == ("inputs", "no case squared with {} in float32 on cpu")


@pytest.mark.parametrize(
    ("case", "detail"),
    [
        ("exits_quietly", "exit 0, without an observation"),
        ("exits_with_3", "exit 3"),
        ("aborts", "SIGABRT"),
        ("reads_address_0", "SIGSEGV"),
    ],
)
def test_a_case_that_takes_the_process_with_it_is_recorded_as_died(lab, case, detail):
    record = lab.ran("a/cases", case).record
    assert (record.outcome.kind, record.outcome.phase, record.outcome.detail) == ("died", "forward", detail)
    assert record.observation is None
    assert (record.ending.signal is not None) == detail.startswith("SIG")


def test_a_thread_that_is_left_behind_does_not_keep_the_process(lab):
    ran = lab.ran("a/cases", "leaves_a_thread_behind", timeout=30.0)
    assert ran.outcome.kind == "finished"


def test_a_case_that_closes_stdout_has_finished(lab):
    """The observation is in place by then: an error while flushing must not turn it into a death."""
    ran = lab.ran("a/cases", "closes_stdout")
    assert (ran.outcome.kind, ran.outcome.detail) == ("finished", ""), ran.stderr


# Generators.


def test_a_case_that_yields_stays_inside_its_block_while_gradients_are_computed(lab):
    ran = lab.ran("a/cases", "yields_inside")
    assert ran.outcome.kind == "finished"
    assert ran.stdout.split(b"\n")[:-1] == [b"enters", b"differentiates", b"leaves quietly"]


def test_a_case_yields_once(lab):
    outcome = lab.ran("a/cases", "yields_twice").outcome
    assert (outcome.phase, outcome.message) == ("backward", "a case yields once, the scalar to differentiate")


def test_what_a_case_raises_after_its_yield_is_kept(lab):
    outcome = lab.ran("a/cases", "fails_after_its_yield").outcome
    assert (outcome.kind, outcome.phase, outcome.message) == ("raised", "backward", "afterwards")


# Observed values.


def test_observed_values_are_kept_as_they_were(lab):
    ran = lab.ran("a/cases", "observes")
    assert [(one.name, one.value, one.kind, one.tolerance) for one in ran.seen.observed] == [
        ("scalar", 0.5, "evidence", None),
        ("flag", True, "evidence", None),
        ("text", "a word", "evidence", None),
        ("not a number", "nan", "evidence", None),
        ("large", str(2**60), "evidence", None),
        ("seconds", 0.25, "measurement", 0.1),
    ]
    vector = numbers(ran.blob(ran.tensor("output", "vector").digest), "f")
    assert vector == tuple(number / 16 for number in range(1, 9)), "the case wrote to it afterwards"
    assert ran.tensor("output", "empty").shape == (0,)


def test_a_measurement_is_not_evidence(lab):
    observed = [name for name, _ in lab.ran("a/cases", "observes").record.evidence()["observed"]]
    assert "scalar" in observed
    assert "seconds" not in observed


def test_an_observed_list_is_kept_as_it_was(lab):
    """As for tensors: what counts is the value when it was observed."""
    ran = lab.ran("a/cases", "observes_a_list_and_changes_it")
    assert ran.observed("calls").value == [1]


def test_what_cannot_be_kept_is_not_observed_and_no_fault_of_the_case(lab):
    ran = lab.ran("a/cases", "observes_an_object")
    assert (ran.outcome.kind, ran.outcome.message) == ("not_observed", None)
    assert ran.outcome.detail == (
        "observed value 'object' cannot be kept: RecordError: object has no JSON form (the case itself: finished)"
    )
    assert ran.tensor("output", "loss").whole, "all else is there"


@pytest.mark.parametrize("case", ["observes_a_tensor_twice", "observes_a_value_twice"])
def test_a_name_is_observed_once(lab, case):
    """With two values under one name nobody could say which a replay must repeat."""
    outcome = lab.ran("a/cases", case).outcome
    assert outcome.kind == "not_observed", outcome
    assert "'same' is there already" in outcome.detail


@pytest.mark.parametrize("depth", [60, 61, 62])
def test_a_deep_value_ends_the_case_at_most(lab, depth):
    """It lies deeper in the record than in the observation: what the worker can write, its parent must too."""
    ran = lab.ran("a/cases", "observes_something_deep", parameters={"depth": depth})
    assert ran.outcome.kind in ("finished", "not_observed")
    assert (ran.folder / "record.json").is_file()


# Tensors.


def test_an_input_that_gets_no_gradient_is_recorded_as_such(lab):
    ran = lab.ran("a/partly", "uses_some")
    gradient = ran.tensor("gradient", "unused")
    assert (gradient.dtype, gradient.shape, gradient.digest, gradient.whole) == (None, None, None, False)
    assert [tensor.name for tensor in ran.seen.tensors if tensor.role == "gradient"] == ["third", "unused"]


@pytest.mark.parametrize(("dtype", "third"), [("float16", 0.333251953125), ("bfloat16", 0.333984375)])
def test_inputs_are_rounded_to_the_dtype(lab, dtype, third):
    ran = lab.ran("a/partly", "uses_some", dtype=dtype, input_dtype=dtype)
    given = ran.tensor("input", "third")
    assert given.dtype == dtype
    kind, shift = ("e", 0) if dtype == "float16" else ("H", 16)
    first = numbers(ran.blob(given.digest), kind)[0]
    assert (struct.unpack("<f", struct.pack("<I", first << shift))[0] if shift else first) == third
    assert ran.tensor("gradient", "third").dtype == dtype
    assert ran.tensor("input", "mask").dtype == "bool"


def test_a_float64_reference_calculates_from_the_rounded_inputs(lab):
    """Otherwise the rounding of the inputs would be counted as an error of the calculation."""
    ran = lab.ran("a/partly", "uses_some", dtype="float64", input_dtype="bfloat16")
    given = ran.tensor("input", "third")
    assert given.dtype == "float64"
    assert numbers(ran.blob(given.digest), "d") == (0.333984375, -0.66796875)
    assert given.norm == math.hypot(0.333984375, 0.66796875)
    assert given.largest == 0.66796875


def test_a_large_tensor_leaves_samples_and_a_sketch(lab):
    ran = lab.ran("a/large", "observes")
    one = ran.tensor("output", "one")
    assert (one.whole, one.shape) == (False, (300, 70))
    assert not (ran.folder / "blobs" / one.digest).exists()
    assert len(numbers(ran.blob(one.samples), "f")) == SAMPLES
    assert one.digest not in ran.record.blobs()


def test_samples_lie_at_the_positions_that_the_record_s_module_names(lab):
    """Row-major, whatever the strides: this one is transposed."""
    ran = lab.ran("a/large", "observes")
    kept = numbers(ran.blob(ran.tensor("output", "positions").samples), "q")
    assert list(kept) == [position % 300 * 70 + position // 300 for position in sample_positions(21000)]


def test_sketches_tell_how_far_two_tensors_are_apart(lab):
    ran = lab.ran("a/large", "observes")
    one, other = (numbers(ran.blob(ran.tensor("output", name).sketch), "d") for name in ("one", "other"))
    assert math.dist(one, other) == pytest.approx(ran.observed("their distance").value, rel=0.1)


def test_how_much_is_kept_whole_is_the_setting_s(lab):
    assert lab.ran("a/cases", "squares").tensor("input", "weight").whole
    assert not lab.ran("a/cases", "squares", keep=31).tensor("input", "weight").whole


# State, memory, sources.


def test_a_switch_that_the_case_leaves_changed_is_recorded(lab):
    (change,) = lab.ran("a/cases", "switches_flash_off").seen.state
    assert (change.name, change.before, change.after) == ("sdpa.flash", True, False)


def test_every_phase_has_its_time_and_memory(lab):
    seen = lab.ran("a/cases", "squares").seen
    assert set(seen.durations) == {"inputs", "forward", "backward"}
    assert [memory.phase for memory in seen.memory] == ["inputs", "forward", "backward"]


@pytest.mark.parametrize("scenario", ["a/cases", "a/crlf"])
def test_sources_are_kept_as_they_are(lab, scenario):
    """The scenario's digest among the sources is the one that the question names, whatever its line ends."""
    ran = lab.ran(scenario, "squares")
    (source,) = [one for one in ran.seen.sources if one.name == f"experiments/scenarios/{scenario}.py"]
    assert source.digest == ran.record.spec.question.source
    assert digest(ran.blob(source.digest)) == source.digest
    assert "torch/utils/checkpoint.py" in [one.name for one in ran.seen.sources]


# Output and environment.


def test_output_is_kept_byte_for_byte(lab):
    """Not everything that a process writes is UTF-8."""
    ran = lab.ran("a/cases", "writes")
    assert sorted(ran.stdout.splitlines()) == [b"out", b"\xff\xfe"]
    assert ran.stderr == b"err\n"


def found(folder, text):
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_a_secret_of_the_caller_reaches_neither_worker_nor_record(lab, monkeypatch):
    secrets = {"TWOFOLD_TEST_SECRET": "correct-horse-battery", "AWS_SECRET_ACCESS_KEY": "staple-wJalrXUtnFEMI"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KMP_BLOCKTIME", "1729")
    ran = lab.ran("a/cases", "shows_its_environment")
    assert ran.observed("sees").value == [False, False]
    assert [path for value in secrets.values() for path in found(ran.folder, value)] == []
    assert ran.machine()["variables"]["KMP_BLOCKTIME"] == "1729"
    assert len(found(ran.folder, "1729")) >= 2, "the search finds nothing"


def test_an_allowed_variable_is_inherited_and_recorded(lab, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    machine = lab.ran("a/cases", "squares", repeat=7).machine()
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    usual = lab.ran("a/cases", "squares", repeat=8).machine()
    assert machine["variables"]["ATEN_CPU_CAPABILITY"] == "default"
    assert machine["cpu"]["capability"] in ("DEFAULT", "NO AVX")
    assert "ATEN_CPU_CAPABILITY" not in usual["variables"]
    if usual["cpu"]["architecture"] == "x86_64":
        assert usual["cpu"]["capability"] != machine["cpu"]["capability"]


def test_a_variable_of_the_setting_wins_over_the_caller_s(lab, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    machine = lab.ran("a/cases", "squares", variables={"MKL_CBWR": "AVX2"}).machine()
    assert machine["variables"]["MKL_CBWR"] == "AVX2"


def test_threads_are_those_of_the_question(lab, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    machine = lab.ran("a/cases", "squares", threads=2).machine()
    assert machine["switches"]["threads"] == 2
    assert machine["variables"]["OMP_NUM_THREADS"] == "2"


def test_the_record_names_no_folder_of_this_machine(lab):
    ran = lab.ran("a/cases", "has_no_graph")
    assert found(ran.folder, str(lab.folder)) == []
