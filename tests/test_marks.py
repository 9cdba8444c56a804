"""What the options of a mark change in a worker: no gradient, a warm-up beforehand, and what of memory is measured.

Every record here comes from a real process. Most are forks of one interpreter, which cost little; what a fresh
process could do otherwise runs in both.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from roots import Lab, Ran

from experiments.core.expectations import expectation_to_json
from experiments.core.replay import Replay
from experiments.core.verdict import AS_EXPECTED, NOT_AS_EXPECTED, Context, judge
from experiments.scenario import agrees, differs, holds, peaks

HEAD = '''"""Made for a test."""

import random

import torch

from experiments.scenario import Scenario, observe

scenario = Scenario(source="a test")


@scenario.inputs
def inputs(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    return {
        "weight": (torch.arange(1, 9, dtype=torch.float32) / 16).requires_grad_(),
        "constant": torch.arange(8, dtype=torch.int64),
    }


class Seen(torch.autograd.Function):
    """Says so when it is differentiated."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        print("differentiates", flush=True)
        return gradient


class Inside:
    def __enter__(self):
        print("enters", flush=True)

    def __exit__(self, kind, *rest):
        print("leaves", flush=True)


calls = []


def called():
    calls.append(1)
    return len(calls)


'''

UNDIFFERENTIATED = (
    HEAD
    + """
def doubled(weight, by):
    own = weight.detach().clone().requires_grad_()
    observe("requires a gradient", weight.requires_grad)
    observe("doubled", by * weight)
    return Seen.apply(by * own).sum()


@scenario.reference(gradient=False)
def is_not(weight, constant):
    return doubled(weight, 2)


@scenario.reference(gradient=False)
def is_not_either(weight, constant):
    return doubled(weight, 3)


@scenario.reference
def is_differentiated(weight, constant):
    observe("requires a gradient", weight.requires_grad)
    return Seen.apply(2 * weight).sum()


@scenario.reference(gradient=False)
def returns_nothing(weight, constant):
    observe("doubled", 2 * weight)


@scenario.reference(gradient=False)
def returns_a_vector(weight, constant):
    return weight


@scenario.reference(gradient=False)
def yields(weight, constant):
    with Inside():
        own = weight.detach().clone().requires_grad_()
        yield Seen.apply(own).sum()


@scenario.reference(gradient=False)
def yields_nothing(weight, constant):
    with Inside():
        observe("doubled", 2 * weight)
        yield


@scenario.reference(gradient=False)
def yields_twice(weight, constant):
    yield
    yield


@scenario.reference(gradient=False, warm_up=True)
def is_warmed_up(weight, constant):
    observe("calls", called())
    return doubled(weight, 2)
"""
)

WARM = (
    HEAD
    + """
def draws(weight, constant):
    observe("drawn", [torch.rand(()).item(), random.random()])
    observe("constant", constant)
    constant.add_(1)
    total = (weight * torch.rand(8)).square().sum()
    observe("calls", called())
    return total


@scenario.reference
def cold(weight, constant):
    return draws(weight, constant)


@scenario.reference(warm_up=True)
def warm(weight, constant):
    return draws(weight, constant)


@scenario.reference
def cold_and_yields(weight, constant):
    with Inside():
        yield draws(weight, constant)


@scenario.reference(warm_up=True)
def warm_and_yields(weight, constant):
    with Inside():
        yield draws(weight, constant)


@scenario.reference(warm_up=True)
def differentiates(weight, constant):
    return Seen.apply(weight).sum()


@scenario.reference(warm_up=True)
def multiplies_the_first_time(weight, constant):
    if called() == 1:
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    return weight.square().sum()


@scenario.reference(warm_up=True)
def fails_the_first_time(weight, constant):
    observe("calls", called())
    if called() == 2:
        raise ValueError("cold")
    return weight.square().sum()


@scenario.reference(warm_up=True)
def fails_the_second_time(weight, constant):
    number = called()
    observe("calls", number)
    if number == 2:
        raise ValueError("warm")
    return weight.square().sum()


@scenario.reference(warm_up=True)
def fails_in_the_first_backward(weight, constant):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            raise ValueError("cold")

    return (Fails if called() == 1 else Seen).apply(weight).sum()
"""
)

MEMORY = (
    HEAD
    + """
MIB = 2**18  # elements of float32
held = []


class Allocates(torch.autograd.Function):
    \"\"\"Takes 32 MiB in backward, and gives it up again.\"\"\"

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        torch.ones(32 * MIB)
        return gradient


def frees(weight):
    torch.ones(64 * MIB)
    torch.ones(16 * MIB)
    return Allocates.apply(weight).sum()


def keeps(weight):
    held.append(torch.ones(64 * MIB))
    return weight.square().sum()


@scenario.reference(warm_up=True)
def frees_64_mib(weight, constant):
    return frees(weight)


@scenario.reference
def frees_64_mib_cold(weight, constant):
    return frees(weight)


@scenario.reference(warm_up=True)
def keeps_64_mib(weight, constant):
    return keeps(weight)


@scenario.reference(warm_up=True)
def keeps_many_small(weight, constant):
    held.append([torch.ones(1024) for _ in range(8192)])
    return weight.square().sum()


@scenario.reference(warm_up=True)
def frees_many_small(weight, constant):
    [torch.ones(1024) for _ in range(8192)]
    return weight.square().sum()


@scenario.reference(warm_up=True)
def takes_nothing(weight, constant):
    return weight.square().sum()
"""
)
LATER = WARM.replace("if called() == 1:", "if called() == 2:")
"""What was done the first time is done the second time."""
SCENARIOS = {"a/undifferentiated": UNDIFFERENTIATED, "a/warm": WARM, "a/memory": MEMORY}
FRESH = ("is_not", "is_warmed_up", "cold", "warm", "frees_64_mib", "keeps_64_mib")
"""Cases that run fresh as well."""


def marked(text):
    """Names of the cases in a scenario's text."""
    blocks = text.split("@scenario.reference")[1:]
    return [block.partition("def ")[2].partition("(")[0] for block in blocks]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    made = Lab.of(tmp_path_factory.mktemp("marks"), {**SCENARIOS, "a/later": LATER})
    listed = [(name, case) for name, text in SCENARIOS.items() for case in marked(text)]
    specs = [made.spec(name, case, **asked()) for name, case in listed]
    specs += [made.spec(name, case, **asked("fresh")) for name, case in listed if case in FRESH]
    specs += [made.spec(name, case, **asked(pass_="profiled")) for name, case in listed if name != "a/undifferentiated"]
    specs += [made.spec("a/undifferentiated", "is_not", **asked(pass_="profiled"))]
    specs += [made.spec("a/later", "multiplies_the_first_time", **asked(pass_="profiled"))]
    # One at a time: memory is looked at.
    made.sweep(specs, workers=1)
    return made


def asked(isolation="forked", pass_="plain"):
    return {"isolation": isolation, "pass_": pass_}


def ran(lab, scenario, case, *how, **named) -> Ran:
    return lab.ran(f"a/{scenario}", case, **asked(*how, **named))


def observed(ran):
    return {one.name: one.value for one in ran.seen.observed}


def operators(ran, phase="forward"):
    return [one.name for one in ran.seen.operators[phase]]


# No gradient.


@pytest.mark.parametrize("isolation", ["fresh", "forked"])
def test_a_case_without_a_gradient_is_not_differentiated(lab, isolation):
    """Its scalar could be: it has a graph of its own, whose backward would say so."""
    made = ran(lab, "undifferentiated", "is_not", isolation)
    assert made.outcome.kind == "finished"
    assert made.stdout == b""
    assert set(made.seen.durations) == {"inputs", "forward"}
    assert [row.phase for row in made.seen.memory] == ["inputs", "forward"]
    assert ran(lab, "undifferentiated", "is_differentiated").stdout == b"differentiates\n"


def test_inputs_of_a_case_without_a_gradient_require_none(lab):
    made = ran(lab, "undifferentiated", "is_not")
    assert observed(made) == {"requires a gradient": False}
    assert [tensor.role for tensor in made.seen.tensors] == ["input", "input", "output", "output"]
    assert observed(ran(lab, "undifferentiated", "is_differentiated")) == {"requires a gradient": True}


def test_the_scalar_of_a_case_without_a_gradient_is_an_output(lab):
    made = ran(lab, "undifferentiated", "is_not")
    assert {tensor.name for tensor in made.seen.tensors if tensor.role == "output"} == {"doubled", "loss"}
    assert made.tensor("output", "loss").shape == ()


@pytest.mark.parametrize("case", ["returns_nothing", "yields_nothing"])
def test_a_case_without_a_gradient_may_return_nothing(lab, case):
    made = ran(lab, "undifferentiated", case)
    assert made.outcome.kind == "finished"
    assert [tensor.name for tensor in made.seen.tensors if tensor.role == "output"] == ["doubled"]


def test_a_case_without_a_gradient_returns_a_scalar_or_nothing(lab):
    outcome = ran(lab, "undifferentiated", "returns_a_vector").outcome
    assert (outcome.kind, outcome.phase, outcome.type) == (
        "raised",
        "forward",
        "experiments.scenario.ScenarioError",
    )


def test_a_case_without_a_gradient_that_yields_leaves_its_block(lab):
    for case in ("yields", "yields_nothing"):
        made = ran(lab, "undifferentiated", case)
        assert (made.outcome.kind, made.stdout) == ("finished", b"enters\nleaves\n")


def test_a_case_without_a_gradient_yields_once_too(lab):
    outcome = ran(lab, "undifferentiated", "yields_twice").outcome
    assert (outcome.kind, outcome.type) == ("raised", "experiments.scenario.ScenarioError")
    assert outcome.message.startswith("a case yields once")


def test_a_case_without_a_gradient_is_warmed_up_without_one(lab):
    made = ran(lab, "undifferentiated", "is_warmed_up")
    assert made.stdout == b""
    assert observed(made)["calls"] == 2
    assert set(made.seen.durations) == {"inputs", "warm-up", "forward"}


def test_a_profile_of_a_case_without_a_gradient_has_no_backward(lab):
    made = ran(lab, "undifferentiated", "is_not", pass_="profiled")
    assert "aten::mul" in operators(made)
    assert operators(made, "backward") == []


@pytest.mark.parametrize(
    ("case", "expectation", "word"),
    [
        ("is_not", agrees(bitwise=True), AS_EXPECTED),
        ("is_not", differs(by_at_least=0.5), NOT_AS_EXPECTED),
        ("is_not_either", agrees(bitwise=True), NOT_AS_EXPECTED),
        ("is_not_either", differs(by_at_least=0.5), AS_EXPECTED),
    ],
)
def test_the_outputs_of_cases_without_a_gradient_are_compared(lab, case, expectation, word):
    reference, made = (ran(lab, "undifferentiated", name) for name in ("is_not", case))
    assert judged(made, expectation, reference) == word


def judged(made, expectation, reference=None):
    """The word on what was seen, had the case's mark said this."""
    asked_for = samples.spec(expectations=(expectation_to_json(expectation),), role="repair")
    against = None if reference is None else Replay({"plain": reference.record})
    found = {path.name: path for one in (made, reference or made) for path in (one.folder / "blobs").iterdir()}
    context = Context(against, None, (), lambda name: found[name].read_bytes())
    return judge(Replay({"plain": replace(made.record, spec=asked_for)}), context).word


# A warm-up.


@pytest.mark.parametrize("isolation", ["fresh", "forked"])
def test_a_case_that_is_warmed_up_is_called_twice_and_heard_once(lab, isolation):
    assert observed(ran(lab, "warm", "cold", isolation))["calls"] == 1
    made = ran(lab, "warm", "warm", isolation)
    assert made.outcome.kind == "finished"
    assert [one.name for one in made.seen.observed] == ["drawn", "calls"]
    assert observed(made)["calls"] == 2


@pytest.mark.parametrize("isolation", ["fresh", "forked"])
def test_after_a_warm_up_everything_is_as_if_there_had_been_none(lab, isolation):
    """Random state of torch and of `random`, inputs that the case writes to, and gradients."""
    cold, warm = (ran(lab, "warm", case, isolation) for case in ("cold", "warm"))
    assert observed(warm)["drawn"] == observed(cold)["drawn"]
    assert tensors(warm) == tensors(cold)
    assert ("gradient", "weight") in tensors(warm)


def tensors(ran):
    return {(tensor.role, tensor.name): tensor.digest for tensor in ran.seen.tensors}


def test_a_case_that_yields_ends_its_warm_up_too(lab):
    cold, warm = (ran(lab, "warm", case) for case in ("cold_and_yields", "warm_and_yields"))
    assert cold.stdout == b"enters\nleaves\n"
    assert warm.stdout == 2 * cold.stdout
    assert tensors(warm) == tensors(cold)


def test_a_warm_up_is_differentiated_as_well(lab):
    """Else backward would be the first of its kind, and compile what it compiles."""
    assert ran(lab, "warm", "differentiates").stdout == b"differentiates\n" * 2


def test_a_warm_up_is_a_phase_with_its_time_and_memory(lab):
    seen = ran(lab, "warm", "warm").seen
    assert set(seen.durations) == {"inputs", "warm-up", "forward", "backward"}
    assert [row.phase for row in seen.memory] == ["inputs", "warm-up", "forward", "backward"]
    assert "warm-up" not in ran(lab, "warm", "cold").seen.durations


@pytest.mark.parametrize("case", ["fails_the_first_time", "fails_in_the_first_backward"])
def test_what_a_warm_up_raises_is_the_outcome(lab, case):
    made = ran(lab, "warm", case)
    outcome = made.outcome
    assert (outcome.kind, outcome.phase, outcome.type, outcome.message) == ("raised", "warm-up", "ValueError", "cold")
    assert made.seen.observed == ()
    assert outcome.fingerprint() == "ValueError in warm-up: cold"


def test_what_is_raised_after_a_warm_up_has_its_own_phase(lab):
    made = ran(lab, "warm", "fails_the_second_time")
    assert (made.outcome.kind, made.outcome.phase, made.outcome.message) == ("raised", "forward", "warm")
    assert observed(made) == {"calls": 2}


def test_a_profile_does_not_contain_the_warm_up(lab):
    first, second = (ran(lab, name, "multiplies_the_first_time", pass_="profiled") for name in ("warm", "later"))
    assert "aten::mm" not in {one.name for listed in first.seen.operators.values() for one in listed}
    assert "aten::mm" in operators(second)
    cold, warm = (ran(lab, "warm", case, pass_="profiled") for case in ("cold", "warm"))
    for phase in ("forward", "backward"):
        assert operators(cold, phase)
        assert operators(warm, phase) == operators(cold, phase)


# Memory.

MIB = 2**20


def row(ran, phase="forward"):
    (found,) = [one for one in ran.seen.memory if one.phase == phase]
    return found


def told(ran):
    """Skip where the system does not tell a process its memory."""
    if row(ran).peak is None or row(ran).after is None:
        pytest.skip("the system does not tell what a process holds")
    return ran


@pytest.mark.parametrize("isolation", ["fresh", "forked"])
def test_memory_that_a_phase_takes_and_gives_up_is_its_peak(lab, isolation):
    made = row(told(ran(lab, "memory", "frees_64_mib", isolation)))
    assert 63 * MIB <= made.growth(peak=True) <= 72 * MIB
    assert abs(made.growth(peak=False)) <= 4 * MIB


@pytest.mark.parametrize("isolation", ["fresh", "forked"])
def test_memory_that_a_phase_takes_and_keeps_is_held_at_its_end(lab, isolation):
    """The 64 MiB of its warm-up lie below what there was when the phase began."""
    made = row(told(ran(lab, "memory", "keeps_64_mib", isolation)))
    assert 63 * MIB <= made.growth(peak=False) <= 68 * MIB
    assert 63 * MIB <= made.growth(peak=True) <= 72 * MIB


def test_every_phase_has_its_own_peak(lab):
    """Backward takes 32 MiB; the 64 of the forward pass are not counted again."""
    made = row(told(ran(lab, "memory", "frees_64_mib")), "backward")
    assert 31 * MIB <= made.growth(peak=True) <= 40 * MIB
    assert abs(made.growth(peak=False)) <= 4 * MIB


def test_a_warmed_up_case_that_takes_nothing_holds_nothing(lab):
    made = row(told(ran(lab, "memory", "takes_nothing")))
    assert 0 <= made.growth(peak=True) <= 2 * MIB
    assert abs(made.growth(peak=False)) <= MIB


def test_small_pieces_that_are_free_again_are_not_held(lab):
    """The C library keeps them to hand them out again; they are given back before a size is read."""
    kept, freed = (row(told(ran(lab, "memory", case))) for case in ("keeps_many_small", "frees_many_small"))
    assert 31 * MIB <= kept.growth(peak=False) <= 48 * MIB
    assert abs(freed.growth(peak=False)) <= 4 * MIB
    assert 31 * MIB <= freed.growth(peak=True) <= 48 * MIB


@pytest.mark.parametrize(
    ("case", "expectation", "word"),
    [
        ("frees_64_mib", peaks(at_least=60 * MIB, at_most=80 * MIB), AS_EXPECTED),
        ("frees_64_mib", holds(at_most=4 * MIB), AS_EXPECTED),
        ("frees_64_mib", holds(at_least=60 * MIB), NOT_AS_EXPECTED),
        ("frees_64_mib", peaks("backward", at_least=60 * MIB), NOT_AS_EXPECTED),
        ("keeps_64_mib", holds(at_least=60 * MIB, at_most=80 * MIB), AS_EXPECTED),
        ("keeps_64_mib", holds("backward", at_least=60 * MIB), NOT_AS_EXPECTED),
    ],
)
def test_measured_memory_is_judged_by_what_is_expected(lab, case, expectation, word):
    assert judged(told(ran(lab, "memory", case)), expectation) == word


@pytest.mark.parametrize("case", ["frees_64_mib", "frees_64_mib_cold"])
def test_the_profiled_pass_tells_the_largest_single_allocation(lab, case):
    """To the byte: forward takes 64 and 16 MiB, backward 32. The plain pass carries no instrument that could tell."""
    made = ran(lab, "memory", case, pass_="profiled")
    assert (row(made).largest, row(made, "backward").largest) == (64 * MIB, 32 * MIB)
    assert row(made, "inputs").largest is None
    assert {one.largest for one in ran(lab, "memory", case).seen.memory} == {None}


def test_a_warm_up_has_no_largest_allocation(lab):
    """It is not in the profile."""
    assert row(ran(lab, "memory", "frees_64_mib", pass_="profiled"), "warm-up").largest is None
