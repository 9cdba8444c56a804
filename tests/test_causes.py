"""A cause is proven by a counter-replay, or not at all: evidence is changed, and what is said of it changes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.analysis.causes import (
    CANNOT,
    CONTROL,
    CONTROL_DIFFERS,
    FLIP,
    IN_PART,
    NOT_THE_CAUSE,
    OPEN,
    OTHER_BITS,
    PROVEN,
    UNDECIDED,
    VARIES,
    CounterReplay,
    causes,
    counter_replay,
    differing_cases,
    environment,
    flips,
    is_counter_replay,
    plans_counter_replay,
)
from experiments.analysis.flips import BOUNDS, hindrance
from experiments.analysis.settings import (
    CAPABILITY,
    GPU,
    HOST,
    INTERPRETER,
    MKL,
    PRECISION,
    PROCESSOR,
    SOURCES,
    SWITCH,
    SYSTEM,
    THREADS,
    VARIABLE,
    ComputerSetting,
)
from experiments.core.environment import VARIABLES

few = settings(max_examples=80, deadline=None, derandomize=True, database=None)
BENCH = samples.Bench()
_numbers = itertools.count()


def replay(case, number, repeat=0, where="default"):
    """A replay of a case whose evidence is told by a number; None could not run. No two are one record."""
    asked = samples.spec(case, environment=where, repeat=repeat, why=str(next(_numbers)))
    if number is None:
        return BENCH.replay(BENCH.record(asked, ended=replace(samples.outcome("not_run"), detail="needs cuda")))
    return BENCH.replay(BENCH.record(asked, BENCH.tensor("output", "x", [float(number)])))


def made(name, seen, *, cap="AVX512", threads="1", host="x", where="default", **others):
    """A setting that has these numbers by case, one for each repeat; `others` are facts by factor."""
    given_threads = {"switches.threads": threads} if isinstance(threads, str) else threads
    own = {CAPABILITY: {"cpu.capability": cap}, THREADS: given_threads, HOST: {"host": host}}
    several = ((case, many if isinstance(many, tuple) else (many,)) for case, many in seen.items())
    replays = (replay(case, one, at, where) for case, many in several for at, one in enumerate(many))
    return ComputerSetting(name, name, {**own, **others}, tuple(replays))


def twice(seen):
    return {case: many if isinstance(many, tuple) else (many, many) for case, many in seen.items()}


def counter(flipped, control=None, *, factor=CAPABILITY, sweep="proof", ours=None, **facts):
    """A counter-replay of `factor`, flipped by `facts`; both sides ran each case twice unless they say otherwise."""
    base = ours or {}
    seen = {"a": 1, "b": 1} if control is None else control
    facts = facts or {"cap": "AVX2"}
    return CounterReplay(
        sweep,
        made("control", twice(seen), where=environment(CONTROL, factor), **base),
        made("flipped", twice(flipped), where=environment(FLIP, factor), **{**base, **facts}),
    )


OURS = made("ours", {"a": 1, "b": 1, "c": 1})
THEIRS = made("theirs", {"a": 2, "b": 2, "c": 1}, cap="AVX2", threads="2")


def cause(*shown, factor=CAPABILITY, theirs=THEIRS, ours=OURS):
    return next(one for one in causes(ours, theirs, shown) if one.factor == factor)


# What varies by itself.


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"a": (1, 2), "b": 1}, {"a": 2, "b": 2}),
        ({"a": 1, "b": 1}, {"a": (2, 1), "b": 2}),
        ({"a": (1, 1, 3), "b": 1}, {"a": 2, "b": 2}),
    ],
)
def test_a_case_that_does_not_repeat_itself_in_a_setting_proves_no_cause(ours, theirs):
    """Drawn by chance, the counter-replay gives each side's first result twice once in sixteen times."""
    found = cause(counter({"a": 2, "b": 2}), ours=made("ours", ours), theirs=made("theirs", theirs, cap="AVX2"))
    assert (found.word, found.open) == (VARIES, False)


# What is proven.


@pytest.mark.parametrize(
    ("flipped", "control", "word", "followed", "tried"),
    [
        ({"a": 2, "b": 2}, None, PROVEN, 2, 2),
        ({"a": 2, "b": 2, "c": 1}, {"a": 1, "b": 1, "c": 1}, PROVEN, 2, 2),
        ({"a": 2, "b": 1}, None, IN_PART, 1, 2),
        ({"a": 2, "b": 3}, None, IN_PART, 1, 2),
        ({"a": 1, "b": 1}, None, NOT_THE_CAUSE, 0, 2),
        ({"a": 3, "b": 1}, None, OTHER_BITS, 0, 2),
        ({"a": 3, "b": 3}, None, OTHER_BITS, 0, 2),
        # The control gives other bits than our first run, always or once.
        ({"a": 2, "b": 2}, {"a": 1, "b": 2}, CONTROL_DIFFERS, 1, 2),
        ({"a": 2, "b": 2}, {"a": 1, "b": (1, 2)}, CONTROL_DIFFERS, 1, 2),
        ({"a": 2, "b": 2}, {"a": 3, "b": 3}, CONTROL_DIFFERS, 0, 2),
        ({"a": 1, "b": 1}, {"a": 1, "b": (2,)}, CONTROL_DIFFERS, 0, 1),
        # One run is no repeat, on either side.
        ({"a": (2,), "b": (2,)}, None, UNDECIDED, 0, 0),
        ({"a": 2, "b": (2,)}, None, IN_PART, 1, 1),
        ({"a": 2, "b": 2}, {"a": (1,), "b": (1,)}, UNDECIDED, 0, 0),
        ({"a": 2, "b": 2}, {"a": 1, "b": (1,)}, IN_PART, 1, 1),
        # A case that did not run proves nothing, nor does it speak against it.
        ({"a": 2}, None, IN_PART, 1, 1),
        ({"a": 2, "b": (None, None)}, None, IN_PART, 1, 1),
        ({"a": 2, "b": 2}, {"a": 1}, IN_PART, 1, 1),
        ({"a": 1}, None, UNDECIDED, 0, 1),
        ({"c": 1}, None, UNDECIDED, 0, 0),
        # Flipped it does not repeat itself.
        ({"a": (2, 1), "b": 2}, None, IN_PART, 1, 2),
        ({"a": (1, 2), "b": 1}, None, OTHER_BITS, 0, 2),
    ],
)
def test_a_cause_is_what_control_and_flip_show_twice_in_each_case_that_differs(flipped, control, word, followed, tried):
    found = cause(counter(flipped, control))
    assert (found.word, found.followed, found.tried, found.of) == (word, followed, tried, 2)
    assert (found.ours, found.theirs, found.by, found.why) == ("AVX512", "AVX2", "proof", "")


def test_without_a_counter_replay_nothing_is_proven_however_alone_a_factor_is():
    """The false proof of a first run: another kernel, one case, and the other computer as its own witness."""
    ours = made("here", {"a": 1, "b": 1}, system={"system.release": "6.1"})
    theirs = made("published", {"a": 2, "b": 1}, system={"system.release": "6.18"})
    (found,) = causes(ours, theirs, ())
    assert (found.factor, found.word, found.alone, found.followed, found.by) == (SYSTEM, CANNOT, True, 0, "")
    assert found.why == "it is the computer's"
    (found,) = causes(OURS, made("theirs", {"a": 2}, cap="AVX2"), ())
    assert (found.word, found.alone, found.followed, found.by) == (OPEN, True, 0, "")
    assert [one.alone for one in causes(OURS, THEIRS, ())] == [False, False]


@pytest.mark.parametrize("side", ["control", "flipped"])
def test_no_record_that_is_to_be_explained_is_a_witness(side):
    proof = counter({"a": 2, "b": 2})
    explained = {"control": OURS, "flipped": THEIRS}[side]
    shared = replace(explained, replays=(*explained.replays, getattr(proof, side).replays[0]))
    assert cause(proof).word == PROVEN
    assert cause(proof, **{"control": {"ours": shared}, "flipped": {"theirs": shared}}[side]).word == OPEN


def test_the_other_setting_itself_is_no_counter_replay():
    theirs = made("theirs", twice({"a": 2, "b": 2}), cap="AVX2")
    itself = CounterReplay("planted", made("c", twice({"a": 1, "b": 1})), theirs)
    (found,) = causes(OURS, theirs, [itself])
    assert (found.word, found.by) == (OPEN, "")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threads": "3", "cap": "AVX2"}, "proof did not flip it alone: CPU capability, threads changed"),
        ({"cap": "AVX512"}, "proof did not flip it alone: nothing changed"),
        ({"threads": "2"}, "proof did not flip it alone: threads changed"),
        ({"cap": "AVX2", "host": "y"}, "proof did not flip it alone: CPU capability, host identity changed"),
        ({"cap": "DEFAULT"}, ""),
    ],
)
def test_a_flip_of_more_of_less_or_to_another_value_shows_nothing(changes, why):
    found = cause(counter({"a": 2, "b": 2}, **changes))
    assert (found.word, found.by, found.why) == (OPEN, "", why)


@pytest.mark.parametrize("changes", [{"host": "y"}, {"threads": "3"}, {MKL: {"variables.MKL_CBWR": "AVX2"}}])
def test_a_control_that_did_not_run_as_ours_is_none(changes):
    """On another computer, say: what somebody else's sweep shows is not shown here."""
    found = cause(counter({"a": 2, "b": 2}, ours=changes))
    assert (found.word, found.by) == (OPEN, "")
    assert found.why.startswith("the control of proof did not run as ours: ")


def test_a_computer_that_does_not_tell_its_host_identity_proves_nothing():
    mute = {"host": ""}
    ours, theirs = made("ours", {"a": 1, "b": 1}, **mute), made("theirs", {"a": 2, "b": 2}, cap="AVX2", **mute)
    assert cause(counter({"a": 2, "b": 2}, ours=mute), ours=ours, theirs=theirs).word == OPEN


PROOF = counter({"a": 2, "b": 2})


@pytest.mark.parametrize("side", ["control", "flipped"])
@pytest.mark.parametrize("at", range(4))
def test_every_record_of_a_counter_replay_bears_the_proof(side, at):
    """Taken away, or with other bits, each of them takes the proof with it."""
    whole = getattr(PROOF, side)
    case, repeat = whole.replays[at].spec.question.case, whole.replays[at].spec.setting.repeat
    gone = replace(whole, replays=tuple(one for one in whole.replays if one is not whole.replays[at]))
    other = replace(gone, replays=(*gone.replays, replay(case, 7, repeat, whole.environment)))
    assert cause(PROOF).word == PROVEN
    assert cause(replace(PROOF, **{side: gone})).word == IN_PART
    assert cause(replace(PROOF, **{side: other})).word == (CONTROL_DIFFERS if side == "control" else IN_PART)


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_counter_replays_what_speaks_against_a_proof_is_shown(order):
    proof = counter({"a": 2, "b": 2}, sweep="proof")
    for weaker, word in (
        (counter({"a": 2, "b": 1}, sweep="weaker"), IN_PART),
        (counter({"a": 1, "b": 1}, sweep="weaker"), NOT_THE_CAUSE),
        (counter({"a": 2}, {"a": 3}, sweep="weaker"), CONTROL_DIFFERS),
    ):
        found = cause(*[proof, weaker][::order])
        assert (found.word, found.by) == (word, "weaker")
    started = counter({"a": 2}, {"a": 1}, sweep="interrupted")
    assert cause(*[proof, started][::order]).by == "proof", "what ran in fewer cases says less"


def test_two_sweeps_are_not_one_counter_replay():
    halves = counter({"a": 2}, {"a": 1}, sweep="one"), counter({"b": 2}, {"b": 1}, sweep="two")
    assert cause(*halves).word == IN_PART


def test_causes_are_listed_with_what_is_proven_first():
    theirs = made("theirs", {"a": 2, "b": 2}, cap="AVX2", threads="2", host="y")
    shown = [counter({"a": 2, "b": 2}), counter({"a": 1, "b": 1}, factor=THREADS, threads="2")]
    found = [(one.factor, one.word) for one in causes(OURS, theirs, shown)]
    assert found == [(CAPABILITY, PROVEN), (HOST, CANNOT), (THREADS, NOT_THE_CAUSE)]


def test_settings_that_agree_have_no_causes():
    assert causes(OURS, made("theirs", {"a": 1, "b": 1}, cap="AVX2"), []) == []
    assert causes(OURS, made("theirs", {}, cap="AVX2"), []) == []
    assert differing_cases(OURS, THEIRS) == {
        one.spec.question.case_digest() for one in THEIRS.replays if one.spec.question.case in "ab"
    }


MANY = st.lists(st.sampled_from([1, 2, 3]), max_size=3).map(tuple)
SIDE = st.fixed_dictionaries({"a": MANY, "b": MANY})


@few
@given(SIDE, SIDE)
def test_nothing_is_proven_but_by_two_of_each_in_every_case_that_differs(control, flipped):
    found = cause(counter(flipped, control))
    shown = all(
        len(control[case]) >= 2 and set(control[case]) == {1} and len(flipped[case]) >= 2 and set(flipped[case]) == {2}
        for case in "ab"
    )
    assert (found.word == PROVEN) == shown
    assert 0 <= found.followed <= found.tried <= found.of == 2


# Counter-replays out of sweeps.


def swept(*, control=True, flipped=True, host="x", other=False):
    sides = [(CONTROL, "AVX512", control), (FLIP, "AVX2", flipped)]
    listed = []
    for kind, capability, wanted in sides:
        cpu = {**samples.facts()["cpu"], "capability": capability}
        for at in range(2 * wanted):
            asked = samples.spec("a", environment=environment(kind, CAPABILITY), repeat=at)
            document = samples.facts(host if at == 0 or not other else "another", cpu=cpu)
            listed.append(BENCH.replay(BENCH.record(asked, machine=document)))
    return listed


def test_a_sweep_of_a_control_and_a_flip_is_a_counter_replay():
    found = counter_replay("id", swept(), BENCH.machines)
    assert (found.sweep, found.control.environment, found.flipped.environment) == (
        "id",
        "control-CPU-capability",
        "flip-CPU-capability",
    )
    assert len(found.records) == 4


@pytest.mark.parametrize("changes", [{"control": False}, {"flipped": False}, {"other": True}])
def test_a_sweep_without_one_of_each_is_none(changes):
    assert counter_replay("id", swept(**changes), BENCH.machines) is None


def test_a_plan_says_whether_it_is_a_counter_replay():
    names = ["control-threads", "flip-threads"]
    specs = [samples.spec(environment=name) for name in names]
    assert plans_counter_replay(specs)
    assert not plans_counter_replay(specs[:1])
    assert not plans_counter_replay(specs[1:])
    assert not plans_counter_replay([*specs, samples.spec()])
    assert [is_counter_replay(name) for name in (*names, "default", "avx2")] == [True, True, False, False]


@pytest.mark.parametrize("factor", [CAPABILITY, f"{VARIABLE}KMP_BLOCKTIME", "moon.phase", "a/b c"])
def test_an_environment_is_named_for_its_factor_in_characters_that_names_have(factor):
    assert environment(FLIP, factor).startswith(FLIP)
    assert not set(environment(FLIP, factor)) & set(" /")


# Flipping.


ODD = "it is no variable that a calculation depends on, or has an odd value: set it yourself and sweep"
"""What somebody else's evidence says is not put into the environment of our processes as it is."""
THEIR_OWN = "it is the computer's"


def with_(factor, **facts):
    return made("theirs", {"a": 2}, **{"host": facts["host"]} if factor == HOST else {factor: facts})


@pytest.mark.parametrize(
    ("factor", "facts", "said"),
    [
        (CAPABILITY, {"cpu.capability": "AVX2"}, ""),
        (CAPABILITY, {"cpu.capability": "SVE"}, "no processor is told to be SVE by a variable"),
        (MKL, {"variables.MKL_CBWR": "AVX2"}, ""),
        (f"{VARIABLE}KMP_BLOCKTIME", {"variables.KMP_BLOCKTIME": "0"}, ""),
        (THREADS, {"switches.threads": "4"}, ""),
        (THREADS, {}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "many"}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "9" * 99}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "0"}, "it does not tell how many it has"),
        # Nine digits of it are a number that is allowed, and all of it is 1,999,999.
        (THREADS, {"switches.threads": "000000001999999"}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "1024"}, ""),
        (THREADS, {"switches.threads": "1025"}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "04"}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "\N{ARABIC-INDIC DIGIT FOUR}"}, "it does not tell how many it has"),
        (THREADS, {"switches.threads": "4\n"}, "it does not tell how many it has"),
        (f"{VARIABLE}MKL_NUM_THREADS", {"variables.MKL_NUM_THREADS": "8"}, ""),
        (f"{VARIABLE}MKL_NUM_THREADS", {"variables.MKL_NUM_THREADS": "1999999"}, ODD),
        (f"{VARIABLE}OMP_STACKSIZE", {"variables.OMP_STACKSIZE": "64M"}, ""),
        (f"{VARIABLE}OMP_STACKSIZE", {"variables.OMP_STACKSIZE": "512G"}, ODD),
        (f"{VARIABLE}OMP_PROC_BIND", {"variables.OMP_PROC_BIND": "close,spread"}, ""),
        (f"{VARIABLE}OMP_PROC_BIND", {"variables.OMP_PROC_BIND": ",".join(["close"] * 99)}, ODD),
        (f"{VARIABLE}PYTORCH_CUDA_ALLOC_CONF", {"variables.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, ""),
        (f"{VARIABLE}PYTORCH_CUDA_ALLOC_CONF", {"variables.PYTORCH_CUDA_ALLOC_CONF": "backend:planted.so"}, ODD),
        (f"{VARIABLE}KMP_AFFINITY", {"variables.KMP_AFFINITY": "granularity=fine,compact,1,0"}, ""),
        (PRECISION, {"switches.matmul_precision": "planted"}, "it tells no precision that torch has"),
        (f"{VARIABLE}LD_PRELOAD", {"variables.LD_PRELOAD": "planted.so"}, ODD),
        (f"{VARIABLE}KMP_BLOCKTIME", {"variables.KMP_BLOCKTIME": "0; rm"}, ODD),
        (MKL, {"variables.MKL_CBWR": "AVX2\nLD_PRELOAD=planted.so"}, ODD),
        (PRECISION, {"switches.matmul_precision": "high"}, ""),
        (INTERPRETER, {"torch.version": "2.14"}, ""),
        (SOURCES, {"setting.sources": "copied"}, ""),
        (HOST, {"host": "y"}, "it is the computer itself"),
        (PROCESSOR, {"cpu.model": "y"}, THEIR_OWN),
        (GPU, {"gpu.name": "y"}, THEIR_OWN),
        (SYSTEM, {"system.name": "y"}, THEIR_OWN),
        (f"{SWITCH}grad", {"switches.grad": "False"}, "no setting changes it"),
        ("moon.phase", {"moon.phase": "full"}, "no setting changes it"),
    ],
)
def test_what_cannot_be_flipped_here_says_why(factor, facts, said):
    known = {f"{SWITCH}grad": {"switches.grad": "True"}, "moon.phase": {"moon.phase": "new"}}
    ours = made("ours", {"a": 1}, **known, **{PRECISION: {"switches.matmul_precision": "highest"}})
    theirs = with_(factor, **facts)
    assert hindrance(factor, ours, theirs) == said
    more = replace(theirs, factors={**theirs.factors, f"{VARIABLE}MKL_DYNAMIC": {"variables.MKL_DYNAMIC": "1"}})
    found = {one.factor: (one.word, one.why) for one in causes(ours, more, [])}
    assert found[factor] == (CANNOT if said else OPEN, said)


def test_every_variable_that_is_recorded_has_bounds_of_its_own():
    assert set(BOUNDS) == set(VARIABLES)


def test_a_capability_that_this_processor_lacks_cannot_be_flipped():
    weak = made("ours", {"a": 1}, cap="AVX2")
    assert hindrance(CAPABILITY, weak, OURS) == "this processor, as it was run, has no AVX512"
    assert hindrance(CAPABILITY, OURS, weak) == ""


def test_a_variable_that_is_set_here_alone_is_not_set_there():
    ours = made("ours", {"a": 1}, **{MKL: {"variables.MKL_CBWR": "AVX2"}})
    found = causes(ours, made("theirs", {"a": 2}, threads="2"), [])
    assert {one.factor: (one.word, one.why) for one in found} == {
        MKL: (CANNOT, "it is set here and not there: unset it and sweep again"),
        THREADS: (OPEN, ""),
    }


FLIPS = {
    CAPABILITY: ({"cpu.capability": "AVX2"}, {"variables": {"ATEN_CPU_CAPABILITY": "avx2"}}),
    MKL: ({"variables.MKL_CBWR": "AVX2"}, {"variables": {"MKL_CBWR": "AVX2"}}),
    f"{VARIABLE}KMP_BLOCKTIME": ({"variables.KMP_BLOCKTIME": "0"}, {"variables": {"KMP_BLOCKTIME": "0"}}),
    THREADS: ({"switches.threads": "4"}, {"threads": 4}),
    PRECISION: ({"switches.matmul_precision": "high"}, {"matmul_precision": "high"}),
    INTERPRETER: ({"torch.version": "2.14"}, {"interpreter": True}),
    SOURCES: ({"setting.sources": "copied"}, {"sources": "copied"}),
}


@pytest.mark.parametrize("factor", FLIPS)
def test_a_flip_is_ours_with_one_factor_as_it_is_there(factor):
    ours = made("ours", {"a": 1}, **{PRECISION: {"switches.matmul_precision": "highest"}})
    theirs = made("theirs", {"a": 2}, host="y", **{factor: FLIPS[factor][0]})
    (found,) = flips(ours, theirs, [])
    nothing = {"variables": {}, "threads": None, "matmul_precision": "", "sources": "", "interpreter": False}
    assert {name: getattr(found, name) for name in nothing} == {**nothing, **FLIPS[factor][1]}
    assert found.factor == factor


def test_what_was_decided_is_not_flipped_again():
    def listed(*shown):
        return [one.factor for one in flips(OURS, THEIRS, shown)]

    assert listed() == [CAPABILITY, THREADS]
    assert listed(counter({"a": 1, "b": 1})) == [THREADS]
    assert listed(counter({"a": 2, "b": 2})) == [THREADS]
    assert listed(counter({"a": 2, "b": 2}, {"a": 3, "b": 3})) == [THREADS], "again it would be the same"
    assert listed(counter({"a": 2})) == [CAPABILITY, THREADS], "an interrupted sweep is taken up"
    assert flips(OURS, OURS, []) == []
