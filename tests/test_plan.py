"""From configuration to frozen specs: complete, in order, each once; and what cannot be planned is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import hydra
import pytest
import samples
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from experiments.planning import catalogue
from experiments.planning.catalogue import Catalogue, CatalogueError, Entry
from experiments.planning.config import (
    Config,
    ConfigError,
    Device,
    Isolation,
    Pass,
    Precision,
    SeriesConfig,
    Sources,
    Suite,
    register_schemas,
)
from experiments.planning.overrides import refusal
from experiments.planning.plan import plan

CONF = Path(__file__).parents[1] / "conf"
NOTE = "checkpoint/attention_policy_ends_before_recomputation"


def case(name, role, variants=({},), dtypes=("float32",), **changes):
    """A case as a worker describes it."""
    made = {
        "name": name,
        "role": role,
        "on": ["cpu", "cuda"],
        "needs": [],
        "cause": None,
        "why": "",
        "reference": None,
        "fork_safe": True,
        "timeout": None,
        "memory": None,
        "output": None,
        "disk": None,
        "gradient": True,
        "warm_up": False,
        "profiled": True,
        "measured": "",
        "expectations": [],
        "takes": [],
        "variants": [{"parameters": dict(one), "dtype": dtype} for one in variants for dtype in dtypes],
    }
    assert set(changes) <= set(made)
    return {**made, **changes}


def entry(name, *cases, **changes):
    made = Entry(
        name=name,
        source_digest="5" * 64,
        error=None,
        title="",
        text="",
        source="somebody",
        threads=1,
        replays=None,
        suites=("full",),
        rounding=True,
        cases=cases,
    )
    return replace(made, **changes)


POLICY = entry(
    "checkpoint/policy",
    case("exact", "reference", takes=["size"]),
    case("by_default", "reference"),
    case("broken", "broken", ({"size": "small", "order": 1}, {"size": "large", "order": 1}), ("float32", "bfloat16")),
    case("repaired", "repair", ({"size": "small"},), timeout=5.0, memory=1000),
    case("control", "control", reference="by_default", why="it cannot", on=["cpu"]),
    case("half", "broken", dtypes=("float16",), on=["cuda"]),
    replays=3,
    suites=("full", "quick"),
)
MASK = entry("attention/mask", case("exact", "reference"), case("wrong", "broken"), threads=4)
FAULTY = entry("checkpoint/faulty", error="SyntaxError: no")


def listed(*entries, gpu=None):
    return Catalogue(machine=samples.facts(gpu=gpu), entries=entries or (MASK, FAULTY, POLICY))


def config(**changes):
    cfg = Config(devices=[Device.present])
    for name, value in changes.items():
        owner, _, field = name.rpartition("__")
        setattr(getattr(cfg, owner) if owner else cfg, field, value)
    return cfg


def labels(made, **wanted):
    return [
        spec.question.label()
        for spec in made.specs
        if spec.question.pass_ == "plain" and all(getattr(spec.setting, k) == v for k, v in wanted.items())
    ]


@pytest.fixture(scope="module")
def real():
    return catalogue.read_cached()


def resolves(made):
    """Every digest in a mark is that of a case in the plan, with the same device, seed and source."""
    known = {spec.question.case_digest(): spec for spec in made.specs}
    for spec in made.specs:
        if spec.digest() in made.missing:
            continue
        for name in (spec.mark.reference, spec.mark.float64):
            if name is None:
                continue
            found = known[name]
            assert found.mark.role == "reference"
            assert found.question.device == spec.question.device
            assert found.question.input_dtype == spec.question.input_dtype
        if spec.mark.float64 is not None:
            assert known[spec.mark.float64].question.dtype == "float64"
        if spec.mark.reference is not None:
            assert known[spec.mark.reference].question.dtype == spec.question.dtype


# The plan.


@pytest.mark.parametrize("replays", [None, 1, 3])
def test_every_case_has_its_reference_and_its_float64_reference(replays):
    made = plan(config(replays=replays), listed())
    resolves(made)
    judged = [spec for spec in made.specs if spec.mark.role != "reference"]
    assert judged
    assert all(spec.mark.reference and spec.mark.float64 for spec in judged)


def test_every_real_case_has_its_reference_and_its_float64_reference(real):
    made = plan(config(), real)
    resolves(made)
    assert not made.broken, [entry.error for entry in made.broken]
    for spec in made.specs:
        if spec.mark.role != "reference":
            assert spec.mark.expectations
            assert (spec.mark.role == "control") == bool(spec.mark.why)
            assert (spec.mark.role == "broken") == (spec.mark.cause is not None)


def test_no_spec_is_planned_twice(real):
    for catalogue_ in (listed(gpu={"name": "a GPU"}), real):
        for cfg in (config(replays=2), config(replays=3, devices=[Device.cpu, Device.cuda, Device.present])):
            counts = Counter(spec.digest() for spec in plan(cfg, catalogue_).specs)
            assert set(counts.values()) == {1}


def test_the_plan_is_the_same_every_time(real):
    first, second = (plan(config(), real), plan(config(), real))
    assert [spec.digest() for spec in first.specs] == [spec.digest() for spec in second.specs]
    assert first == second


def test_scenarios_are_planned_one_after_another(real):
    """Each can be judged when it is done, and its replays stand together."""
    names = [spec.question.scenario for spec in plan(config(), real).specs]
    assert len(set(names)) == sum(a != b for a, b in zip([None, *names], names, strict=False))
    repeats = [spec.setting.repeat for spec in plan(config(scenarios=["checkpoint/policy"]), listed()).specs]
    assert repeats == sorted(repeats)


def test_references_come_before_what_is_compared_with_them():
    specs = plan(config(replays=1), listed()).specs
    place = {spec.question.case_digest(): index for index, spec in reversed(list(enumerate(specs)))}
    for index, spec in enumerate(specs):
        if spec.mark.role != "reference":
            assert max(place[spec.mark.reference], place[spec.mark.float64]) < index


def test_a_reference_takes_its_cases_variants():
    made = plan(config(scenarios=["checkpoint/policy"], replays=1), listed())
    exact = [label for label in labels(made) if label.startswith("exact")]
    sizes = [f"exact[{part}size={size}]" for size in ("small", "large") for part in ("", "dtype=bfloat16,")]
    rulers = [
        f"exact[dtype=float64 of {dtype},size={size}]"
        for size in ("small", "large")
        for dtype in ("float32", "bfloat16")
    ]
    assert sorted(exact) == sorted(sizes + rulers)


def test_a_case_is_compared_with_the_reference_that_it_names():
    made = plan(config(scenarios=["checkpoint/policy"], replays=1), listed())
    known = {spec.question.case_digest(): spec.question.case for spec in made.specs}
    found = {spec.question.case: known[spec.mark.reference] for spec in made.specs if spec.mark.reference}
    assert found == {"broken": "exact", "repaired": "exact", "control": "by_default"}


@pytest.mark.parametrize("kind", ["agrees", "differs"])
@pytest.mark.parametrize("differentiated", ["exact", "case"])
def test_a_case_is_not_compared_where_only_one_is_differentiated(kind, differentiated):
    """ "Other inputs get a gradient" would be the difference, whatever the numbers are."""
    gradients = {name: name == differentiated for name in ("exact", "case")}

    def made(kind):
        expected = [{"kind": kind}]
        exact = case("exact", "reference", gradient=gradients["exact"])
        return entry("a/b", exact, case("case", "broken", gradient=gradients["case"], expectations=expected))

    with pytest.raises(ConfigError, match="case case is compared with exact, and one of them is not differentiated"):
        plan(config(), listed(made(kind)))
    assert plan(config(), listed(made("shows"))).specs


def test_a_reference_that_is_none_is_refused():
    wrong = entry("a/b", case("exact", "reference"), case("wrong", "broken", reference="exakt"))
    with pytest.raises(ConfigError, match="case wrong names 'exakt', which is no reference"):
        plan(config(), listed(wrong))


def test_both_passes_are_planned_but_a_ruler_is_read_once():
    made = plan(config(replays=3), listed())
    passes = {}
    for spec in made.specs:
        passes.setdefault((spec.question.case_digest(), spec.setting.repeat), []).append(spec.question.pass_)
    rulers = {s.question.case_digest() for s in made.specs if s.question.dtype != s.question.input_dtype}
    assert rulers
    for (name, repeat), seen in passes.items():
        assert seen == (["plain"] if name in rulers else ["plain", "profiled"])
        assert not (name in rulers and repeat)


@pytest.mark.parametrize("isolation", [Isolation.fresh, Isolation.audit])
def test_a_case_that_is_not_to_be_profiled_has_its_plain_pass_only(isolation):
    """It, and a reference whose mark says so: each for itself, whatever it is compared with."""
    cases = (
        case("profiled_reference", "reference"),
        case("plain_reference", "reference", profiled=False),
        case("plain", "broken", profiled=False),
        case("other", "repair", reference="plain_reference", dtypes=("float32", "bfloat16")),
    )
    cfg = config(isolation__kind=isolation, isolation__sample=1.0, replays=2)
    made = plan(cfg, listed(entry("a/b", *cases)))
    resolves(made)
    passes = {}
    for spec in made.specs:
        exact = spec.question.dtype != spec.question.input_dtype
        passes.setdefault((spec.question.case, exact), set()).add(spec.question.pass_)
    assert passes == {
        ("profiled_reference", False): {"plain", "profiled"},
        ("profiled_reference", True): {"plain"},
        ("plain_reference", False): {"plain"},
        ("plain_reference", True): {"plain"},
        ("plain", False): {"plain"},
        ("other", False): {"plain", "profiled"},
    }


def test_of_three_replays_the_last_is_from_copied_sources():
    made = plan(config(replays=3), listed(MASK))
    assert Counter((s.setting.repeat, s.setting.sources) for s in made.specs if s.question.case == "wrong") == {
        (0, "original"): 2,
        (1, "original"): 2,
        (2, "copied"): 2,
    }
    alone = plan(config(replays=1), listed(MASK))
    assert {spec.setting.sources for spec in alone.specs} == {"original"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"policy": 3, "mask": 1}),
        ({"replays": 2}, {"policy": 2, "mask": 2}),
        ({"suite": Suite.quick}, {"policy": 1}),
    ],
)
def test_replays_are_the_sweeps_or_the_scenarios_own(changes, expected):
    made = plan(config(**changes), listed())
    counted = {}
    for spec in made.specs:
        name = spec.question.scenario.partition("/")[2]
        counted[name] = max(counted.get(name, 0), spec.setting.repeat + 1)
    assert counted == expected


BOUND = {"kind": "peaks", "phase": "forward", "at_least": 1, "at_most": None}
HELD = {**BOUND, "kind": "holds"}
WITHOUT = {"kind": "recomputes_without", "operator": "aten::mm"}
MEASURED = entry(
    "attention/measured",
    case("exact", "reference", warm_up=True, profiled=False),
    case("bounded", "broken", expectations=[BOUND]),
    case("held", "broken", expectations=[HELD]),
    case("warm", "broken", warm_up=True),
    case("marked", "broken", measured="briefly"),
    case("long", "broken", expectations=[BOUND], measured="at length"),
    case("drawn", "broken", ({"size": 1},)),
    case("looked_at", "broken", expectations=[BOUND, WITHOUT]),
    case("other", "broken"),
)
DRAWN = SeriesConfig(
    title="t", scenario="attention/measured", parameter="size", cases=["drawn"], measure="forward seconds"
)


def repeats(entry_, device="cpu", **changes):
    """For each case of a measured scenario, passes of its repeats."""
    found = {}
    for spec in plan(config(series={"drawn": DRAWN}, **changes), listed(entry_)).specs:
        if spec.question.device == device:
            found.setdefault(spec.question.label(), {}).setdefault(spec.setting.repeat, []).append(spec.question.pass_)
    return {label: ["+".join(passes) for _, passes in sorted(many.items())] for label, many in found.items()}


def test_what_is_measured_is_repeated_without_being_profiled_again():
    """Memory and time move from run to run; operators do not."""
    thrice = ["plain+profiled", "plain", "plain"]
    assert repeats(MEASURED) == {
        "exact": ["plain", "plain", "plain"],
        "exact[dtype=float64 of float32]": ["plain"],
        "bounded": thrice,
        "held": thrice,
        "warm": thrice,
        "marked": thrice,
        "long": ["plain+profiled"],
        "drawn[size=1]": thrice,
        "looked_at": ["plain+profiled"] * 3,
        "other": ["plain+profiled"],
    }


@pytest.mark.parametrize(
    ("changes", "bounded", "long"),
    [
        ({"measured_replays": 5, "long_measured_replays": 5}, 5, 5),
        ({"measured_replays": 1}, 1, 1),
        ({"replays": 1}, 1, 1),
        ({"replays": 2}, 2, 2),
    ],
)
def test_how_often_is_said_by_the_configuration_and_replays_have_the_last_word(changes, bounded, long):
    found = repeats(MEASURED, **changes)
    assert (len(found["bounded"]), len(found["long"])) == (bounded, long)


def test_repeats_of_a_measurement_run_from_the_original_sources():
    """A copy in another folder is for what a scenario itself replays."""
    made = plan(config(), listed(MEASURED))
    assert {spec.setting.sources for spec in made.specs} == {"original"}
    both = plan(config(measured_replays=5), listed(replace(MEASURED, replays=2)))
    placed = {(s.setting.repeat, s.setting.sources) for s in both.specs if s.question.case == "bounded"}
    assert placed == {(0, "original"), (1, "copied"), (2, "original"), (3, "original"), (4, "original")}


def test_the_quick_suite_measures_once():
    found = repeats(replace(MEASURED, suites=("full", "quick")), suite=Suite.quick)
    assert {len(many) for many in found.values()} == {1}


def test_a_point_of_a_figure_and_a_bound_on_memory_are_measured_several_times_or_known_to_take_long(real):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        made = OmegaConf.to_object(hydra.compose("config"))
    runs = Counter(s.question.case_digest() for s in plan(made, real).specs if s.question.pass_ == "plain")
    cases = {(e.name, c["name"]): c for e in real.entries for c in e.cases}
    for spec in plan(made, real).specs:
        kinds = {expectation["kind"] for expectation in spec.mark.expectations}
        if spec.mark.series or kinds & {"peaks", "holds"}:
            long = cases[spec.question.scenario, spec.question.case]["measured"] == "at length"
            assert runs[spec.question.case_digest()] == (1 if long else 3), spec.question.label()


def test_the_quick_suite_holds_what_is_marked_quick(real):
    made = plan(config(suite=Suite.quick), real)
    quick = {one.name for one in real.entries if "quick" in one.suites}
    assert {spec.question.scenario for spec in made.specs} == quick
    assert NOTE in quick
    assert {spec.setting.repeat for spec in made.specs} == {0}


def test_a_spec_carries_what_the_configuration_says():
    cfg = config(
        scenarios=["attention/mask"],
        seed=5,
        hash_seed=7,
        limits__timeout=9.0,
        limits__memory=None,
        limits__keep_deciding=1,
        environment__name="other",
        environment__variables={"MKL_CBWR": "AVX2"},
    )
    spec = plan(cfg, listed()).specs[0]
    assert (spec.question.seed, spec.question.threads, spec.setting.hash_seed) == (5, 4, 7)
    assert (spec.setting.timeout, spec.setting.memory, spec.setting.keep) == (9.0, None, 1)
    assert (spec.setting.environment, spec.setting.variables) == ("other", {"MKL_CBWR": "AVX2"})
    assert spec.setting.attempt == 0


def test_a_case_may_have_limits_of_its_own():
    made = plan(config(), listed())
    found = {(s.setting.timeout, s.setting.memory) for s in made.specs if s.question.case == "repaired"}
    assert found == {(5.0, 1000)}


def test_the_setting_is_no_part_of_the_question():
    """Two environments answer one question, or they could never be compared."""
    first = plan(config(), listed()).specs
    second = plan(config(environment__variables={"A": "1"}, hash_seed=3, limits__timeout=1.0), listed()).specs
    assert [spec.question.digest() for spec in first] == [spec.question.digest() for spec in second]
    assert not {spec.digest() for spec in first} & {spec.digest() for spec in second}


def test_a_pass_that_is_not_asked_for_is_not_planned():
    made = plan(config(passes=[Pass.plain]), listed())
    assert {spec.question.pass_ for spec in made.specs} == {"plain"}
    resolves(made)


# Isolation.


def test_what_may_not_be_forked_runs_fresh():
    """Copied sources are not what the server has imported; some cases say that they must not."""
    unsafe = entry("a/b", case("exact", "reference"), case("safe", "repair"), case("unsafe", "broken", fork_safe=False))
    made = plan(config(isolation__kind=Isolation.forked, replays=2), listed(unsafe))
    found = {
        (s.question.case, s.setting.sources, s.setting.isolation) for s in made.specs if s.mark.role != "reference"
    }
    assert found == {
        ("safe", "original", "forked"),
        ("safe", "copied", "fresh"),
        ("unsafe", "original", "fresh"),
        ("unsafe", "copied", "fresh"),
    }
    assert {spec.setting.isolation for spec in plan(config(), listed(unsafe)).specs} == {"fresh"}


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_an_audit_runs_a_fixed_sample_fresh_as_well(share):
    """Both passes of a replay or neither, under another hash seed, beside everything that is forked."""
    forked = plan(config(isolation__kind=Isolation.forked), listed()).specs
    made = plan(config(isolation__kind=Isolation.audit, isolation__sample=share), listed())
    resolves(made)
    assert made == plan(config(isolation__kind=Isolation.audit, isolation__sample=share), listed())
    assert len({spec.digest() for spec in made.specs}) == len(made.specs)
    assert {spec.digest() for spec in forked} <= {spec.digest() for spec in made.specs}
    extra = [spec for spec in made.specs if spec.setting.hash_seed == 1]
    could = [spec for spec in forked if spec.setting.isolation == "forked"]
    assert len(made.specs) == len(forked) + len(extra)
    assert {spec.setting.isolation for spec in extra} <= {"fresh"}
    assert {0.0: not extra, 0.5: 0 < len(extra) < len(could), 1.0: len(extra) == len(could)}[share]
    whole = Counter(spec.replay_digest() for spec in extra)
    for spec in extra:
        assert whole[spec.replay_digest()] == (1 if spec.question.dtype != spec.question.input_dtype else 2)


# Devices and needs.


def test_devices_present_are_those_of_the_interpreter():
    def devices(catalogue_, *asked):
        return list(dict.fromkeys(s.question.device for s in plan(config(devices=list(asked)), catalogue_).specs))

    with_gpu = listed(POLICY, gpu={"name": "a GPU"})
    assert devices(listed(), Device.present) == ["cpu"]
    assert devices(with_gpu, Device.present) == ["cpu", "cuda"]
    assert devices(with_gpu, Device.cpu, Device.present) == ["cpu", "cuda"]
    assert devices(with_gpu, Device.cuda, Device.cuda) == ["cuda"]


def test_what_cuda_would_have_added_is_said_in_one_line():
    made = plan(config(), listed())
    would = plan(config(devices=[Device.cuda]), listed())
    cases = len({spec.question.case_digest() for spec in would.specs})
    assert made.absent == f"no CUDA device here; one would add {cases} cases ({len(would.specs)} processes)"
    assert plan(config(devices=[Device.cpu]), listed()).absent == ""
    assert plan(config(), listed(POLICY, gpu={"name": "a GPU"})).absent == ""


def test_a_device_that_is_not_here_leaves_its_cases_not_run():
    """They are in the plan, with what is missing: nothing is dropped silently."""
    made = plan(config(devices=[Device.cuda]), listed(POLICY))
    assert made.specs
    assert set(made.missing) == {spec.digest() for spec in made.specs}
    assert set(made.missing.values()) == {"cuda"}


def test_a_case_on_the_cpu_that_needs_cuda_stays_not_run():
    pair = entry("a/b", case("exact", "reference"), case("cpu", "repair"), case("pair", "broken", needs=["cuda"]))
    for gpu in (None, {"name": "a GPU"}):
        made = plan(config(devices=[Device.cpu]), listed(pair, gpu=gpu))
        held = [spec.question.case for spec in made.specs if spec.digest() in made.missing]
        assert held == ["pair", "pair"], "plain and profiled"


@pytest.mark.parametrize(
    ("need", "version", "there"),
    [
        ("torch>=2.11", "2.13.0+cpu", True),
        ("torch>=2.11", "2.11.0", True),
        ("torch>=2.11", "2.6.0", False),
        ("torch<2.11", "2.6.0", True),
        ("torch < 2.11", "2.11.0+cu128", False),
        ("torch>=2.9", "2.13.0a0+git1", True),
        ("torch>=3.0", "2.13.0", False),
    ],
)
def test_a_version_of_torch_is_compared_as_numbers(need, version, there):
    """2.9 is older than 2.13."""
    made = plan(
        config(),
        Catalogue(
            samples.facts(version=version),
            (entry("a/b", case("exact", "reference"), case("c", "broken", needs=[need])),),
        ),
    )
    held = {spec.question.case for spec in made.specs if spec.digest() in made.missing}
    assert held == (set() if there else {"c"})
    assert set(made.missing.values()) == (set() if there else {need})


@pytest.mark.parametrize(
    ("compiler", "held"),
    [
        ({"c++": "g++ 12", "triton": "3.4"}, set()),
        ({"c++": "g++ 12", "triton": None}, {"cuda"}),
        ({"c++": None, "triton": "3.4"}, {"cpu", "cuda"}),
        ({"c++": None, "triton": None}, {"cpu", "cuda"}),
    ],
)
def test_what_torch_cannot_compile_here_stays_not_run(compiler, held):
    """In the plan, both passes, with what is missing. Its reference needs no compiler."""
    compiled = entry("a/b", case("exact", "reference"), case("compiled", "repair", needs=["inductor"]))
    machine = {**samples.facts(gpu={"name": "a GPU"}), "compiler": compiler}
    made = plan(config(devices=[Device.cpu, Device.cuda]), Catalogue(machine=machine, entries=(compiled,)))
    found = [(spec.question.case, spec.question.device) for spec in made.specs if spec.digest() in made.missing]
    assert sorted(found) == sorted(("compiled", device) for device in held for _ in ("plain", "profiled"))
    assert set(made.missing.values()) == ({"inductor"} if held else set())


def test_a_compiler_is_of_no_use_on_a_device_that_is_not_here():
    compiled = entry("a/b", case("exact", "reference"), case("compiled", "repair", needs=["inductor"]))
    machine = {**samples.facts(), "compiler": {"c++": "g++ 12", "triton": "3.4"}}
    made = plan(config(devices=[Device.cuda]), Catalogue(machine=machine, entries=(compiled,)))
    assert set(made.missing) == {spec.digest() for spec in made.specs}
    assert set(made.missing.values()) == {"cuda"}


@pytest.mark.parametrize("need", ["tpu", "torch", "torch==2.6", "torch>=2", "Inductor", "inductor ", ""])
def test_a_need_that_nobody_knows_is_refused(need):
    with pytest.raises(ConfigError, match=r"is unknown; known are cuda, inductor, torch>=X\.Y and torch<X\.Y"):
        plan(config(), listed(entry("a/b", case("exact", "reference"), case("c", "broken", needs=[need]))))


# What is chosen.


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["broken"], {"broken[order=1,size=small]", "broken[order=1,size=large]"}),
        (["broken[[]order=1,size=small[]]"], set()),
        (["broken[order=1,size=small]"], {"broken[order=1,size=small]"}),
        (["broken[*size=l*]"], {"broken[order=1,size=large]"}),
        (["b*[order=1,size=?mall]", "control"], {"broken[order=1,size=small]", "control"}),
        (["*"], {"broken[order=1,size=small]", "broken[order=1,size=large]", "repaired[size=small]", "control"}),
    ],
)
def test_cases_are_chosen_by_name_with_brackets_as_they_stand(patterns, expected):
    """A label is copied from a report, so `[` means itself."""
    cfg = config(scenarios=["checkpoint/policy"], cases=patterns, replays=1)
    if not expected:
        with pytest.raises(ConfigError):
            plan(cfg, listed())
        return
    found = {name for name in labels(plan(cfg, listed())) if not name.startswith(("exact", "by_default"))}
    assert {name for name in found if "bfloat16" not in name} == expected


def test_only_the_references_of_the_chosen_cases_are_run():
    made = plan(config(scenarios=["checkpoint/policy"], cases=["control"], replays=1), listed())
    assert labels(made) == ["by_default", "by_default[dtype=float64 of float32]", "control"]


def test_no_case_at_all_is_refused():
    with pytest.raises(ConfigError, match="no case matches 'nothing'"):
        plan(config(cases=["nothing"]), listed())


def test_an_unknown_scenario_is_refused_with_the_near_miss():
    with pytest.raises(CatalogueError) as caught:
        plan(config(scenarios=["checkpoint/polcy"]), listed())
    assert "no scenario matches 'checkpoint/polcy'; did you mean 'checkpoint/policy'?" in str(caught.value)
    with pytest.raises(CatalogueError):
        plan(config(scenarios=["*", "nowhere/*"]), listed())


def test_a_broken_file_stops_nobody_else():
    made = plan(config(), listed())
    assert [one.name for one in made.broken] == ["checkpoint/faulty"]
    assert {spec.question.scenario for spec in made.specs} == {"attention/mask", "checkpoint/policy"}
    alone = plan(config(scenarios=["checkpoint/faulty"]), listed())
    assert (alone.specs, len(alone.broken)) == ((), 1)


def test_a_suite_that_holds_nothing_of_the_choice_is_refused():
    """suite=quick scenarios=[attention/*] ends with "every chosen scenario is broken"; none is."""
    with pytest.raises(ConfigError, match="quick"):
        plan(config(scenarios=["attention/*"], suite=Suite.quick), listed())


# What is refused.


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"replays": 0}, "replays=0"),
        ({"replays": -1}, "replays=-1"),
        ({"measured_replays": 0}, "measured_replays=0"),
        ({"long_measured_replays": 0}, "long_measured_replays=0"),
        ({"workers": 0}, "workers=0"),
        ({"hash_seed": -1}, "hash_seed=-1"),
        ({"hash_seed": 2**32}, f"hash_seed={2**32}"),
        ({"limits__timeout": 0.0}, "limits.timeout=0.0"),
        ({"limits__timeout": -1.0}, "limits.timeout=-1.0"),
        ({"limits__memory": 0}, "limits.memory=0"),
        ({"limits__output": 0}, "limits.output=0"),
        ({"limits__keep": -1}, "limits.keep=-1"),
        ({"limits__disk": 0}, "limits.disk=0"),
        ({"passes": [Pass.profiled]}, "passes=['profiled']"),
        ({"isolation__sample": 1.5}, "isolation.sample=1.5"),
        ({"devices": []}, "devices=[]"),
        ({"environment__python": "/nowhere/python"}, "environment.python=/nowhere/python"),
        ({"environment__python": "no-such-python"}, "environment.python=no-such-python"),
        ({"environment__threads": 0}, "environment.threads=0"),
        (
            {"environment__variables": {"HTTP_PROXY": "http://me:hunter2@proxy:3128"}},
            "environment.variables.HTTP_PROXY",
        ),
        ({"capsule": "/nowhere/one.pyz"}, "capsule=/nowhere/one.pyz"),
    ],
)
def test_a_value_that_runs_nothing_is_refused_in_a_sentence(changes, text):
    with pytest.raises(ConfigError) as caught:
        plan(config(**changes), listed())
    message = str(caught.value)
    assert message.startswith(text)
    assert len(message) > len(text) + 10
    assert "\n" not in message


@pytest.mark.parametrize(
    "changes",
    [{"seed": 2**53}, {"seed": -(2**70)}, {"limits__timeout": float("nan")}],
    ids=["seed", "far below", "timeout"],
)
def test_a_value_that_a_spec_cannot_carry_is_refused_too(changes):
    """A seed from 2**53 arrives at the worker as text; a limit of NaN seconds never passes."""
    with pytest.raises(ConfigError):
        plan(config(**changes), listed())


def test_the_borders_are_allowed():
    assert plan(config(replays=1, workers=1, hash_seed=2**32 - 1, limits__memory=None), listed()).specs


# Overrides: refused before Hydra starts.


@pytest.fixture(scope="module", autouse=True)
def _schemas():
    register_schemas()


@pytest.fixture(autouse=True)
def _no_hydra_left():
    yield
    assert not GlobalHydra.instance().is_initialized(), "asking for a refusal leaves Hydra as it was"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["seed=3", "replays=null", "workers=2", "dry_run=true"],
        ["scenarios=[checkpoint/*,attention/*]"],
        ["cases=['broken[order=1]']"],
        ["devices=[cpu,cuda]", "device=all"],
        ["suite=quick"],
        ["limits.memory=null", "limits.timeout=0.5"],
        ["tracking=none", "archive=sqlite", "isolation=fresh", "engine=local", "environment=default"],
        ["tracking=server", "tracking.uri=http://127.0.0.1:5000"],
        ["experiment=attention_policy_note"],
        ["+environment.variables.MKL_CBWR=AVX2"],
        ["-m", "seed=1,2,3"],
        ["--multirun", "seed=range(3)", "device=cpu,all"],
        ["hydra.job.chdir=false"],
        ["hydra/launcher=basic"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_what_can_be_composed_is_not_refused(arguments):
    assert refusal(arguments, CONF) == ""


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["scenaros=[a]"], ["no field 'scenaros'", "did you mean 'scenarios'?"]),
        (["limits.timout=3"], ["no field 'limits.timout'", "did you mean 'limits.timeout'?"]),
        (["+nothing_like_it=1"], ["no field 'nothing_like_it'", "--help"]),
        (["tracking=sqlitee"], ["is not one of none, server, sqlite", "did you mean 'sqlite'?"]),
        (["device=tpu"], ["is not one of all, cpu, cuda, present"]),
        (["experiment=nothing"], ["is not one of attention_policy_note"]),
        (["seed=abc"], ["seed", "abc", "Integer"]),
        (["replays=2.5"], ["replays", "2.5"]),
        (["dry_run=perhaps"], ["dry_run", "perhaps"]),
        (["devices=[gpu]"], ["gpu", "present, cpu, cuda"]),
        (["isolation.kind=threads"], ["threads", "fresh"]),
        (["limits=5"], ["limits", "5"]),
        (["tracking=server"], ["tracking.uri"]),
        (["seed=[1"], ["[1"]),
        (["seed"], ["seed"]),
        (["seed=3", "sede=4"], ["'sede'", "did you mean 'seed'?"]),
        (["-m", "seeds=1,2"], ["'seeds'", "did you mean 'seed'?"]),
    ],
)
def test_what_cannot_be_composed_is_refused_in_one_sentence(arguments, texts):
    said = refusal(arguments, CONF)
    assert said
    assert "\n" not in said
    for text in texts:
        assert text in said


def test_several_values_without_a_multirun_are_refused():
    assert "-m" in refusal(["seed=1,2"], CONF)


def test_the_sweep_that_is_run_by_default_can_be_planned(real):
    """Every series of it has points."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        made = OmegaConf.to_object(hydra.compose("config"))
    specs = plan(made, real).specs
    assert {spec.question.scenario for spec in specs} == {one.name for one in real.entries}
    assert made.series
    assert {series["name"] for spec in specs for series in spec.mark.series} == set(made.series)


def test_the_fields_of_the_configuration_are_those_of_the_schema():
    """Nothing in conf/ says other than the schema's defaults, but for what it names."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        made = OmegaConf.to_object(hydra.compose("config"))
    assert isinstance(made, Config)
    named = {"devices": [], "archive": None, "tracking": None, "series": {}}
    assert replace(made, **named) == replace(Config(devices=[]), **named)
    assert set(made.series) <= {path.stem for path in (CONF / "series").glob("*.yaml")}
    assert made.devices == [Device.present]
    assert made.archive.url == "sqlite:///outputs/archive.db"
    assert made.tracking.uri == "sqlite:///outputs/mlflow.db"


@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_has_the_last_word(path):
    """What it says must not be put back by the primary configuration, which is composed before it."""
    wanted = {key: value for key, value in OmegaConf.load(path).items() if key != "defaults"}
    assert wanted.get("scenarios") != ["*"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        made = hydra.compose("config", overrides=[f"experiment={path.stem}"])
        again = hydra.compose("config", overrides=[f"experiment={path.stem}", "scenarios=[attention/*]"])
    composed = OmegaConf.to_container(made, enum_to_str=True)
    assert {key: composed[key] for key in wanted} == wanted
    assert again.scenarios == ["attention/*"]


# Environments.


def test_an_environment_gives_threads_precision_and_sources():
    plain, given = (
        plan(config(**changes), listed()).specs
        for changes in ({}, {"environment__threads": 2, "environment__sources": Sources.copied})
    )
    assert {one.setting.threads for one in plain} == {None}
    assert {(one.setting.threads, one.setting.sources, one.setting.isolation) for one in given} == {
        (2, "copied", "fresh")
    }
    assert {one.question.digest() for one in plain} == {one.question.digest() for one in given}, "or nothing compares"
    precise = plan(config(environment__matmul_precision=Precision.medium), listed()).specs
    assert {one.setting.matmul_precision for one in precise} == {"medium"}


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "environment").glob("*.yaml")))
def test_every_shipped_environment_is_named_after_its_file_and_says_what_it_is(name):
    text = (CONF / "environment" / f"{name}.yaml").read_text()
    assert f"\nname: {name}\n" in text
    assert text.startswith("# ")


# A ruler runs only where somebody asks for one, and all elements are kept only where a verdict may hang on one.

BITWISE, ROUNDED = ({"kind": "agrees", "bitwise": bits} for bits in (True, False))
OFF = {"kind": "differs", "by_at_least": 1.0}


@pytest.mark.parametrize(
    ("expected", "asked", "ruled", "deciding"),
    [
        ([BITWISE], False, False, False),
        ([BITWISE, {"kind": "raises", "type": "E", "text": ""}], False, False, False),
        ([OFF], False, False, True),
        ([ROUNDED], False, True, True),
        ([BITWISE], True, True, True),
    ],
)
def test_a_ruler_and_whole_tensors_are_for_whoever_asks(expected, asked, ruled, deciding):
    cases = [case(f"case{at}", "repair", expectations=[one]) for at, one in enumerate(expected)]
    made = plan(config(), listed(entry("a/b", case("exact", "reference"), *cases, rounding=asked)))
    rulers = [spec for spec in made.specs if spec.question.dtype != spec.question.input_dtype]
    assert bool(rulers) == ruled
    assert {spec.mark.float64 is not None for spec in made.specs if spec not in rulers} == {ruled}
    limits = config().limits
    assert {spec.setting.keep for spec in made.specs} == {limits.keep_deciding if deciding else limits.keep}


def test_a_ruler_is_for_the_reference_that_a_case_is_within_the_rounding_of():
    references = [case("one", "reference"), case("other", "reference")]
    cases = [
        case("bits", "repair", expectations=[BITWISE]),
        case("near", "repair", reference="other", expectations=[ROUNDED]),
    ]
    made = plan(config(), listed(entry("a/b", *references, *cases, rounding=False)))
    assert {spec.question.case for spec in made.specs if spec.question.dtype == "float64"} == {"other"}
