"""What a reader pastes runs what it says and nothing else, whatever the names in it hold."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
import samples
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from test_across import Lab, facts
from test_report import PLACES, Sweep, markdown_it
from test_sweep import GOOD, project

from experiments.app.make import arguments, override, patterns
from experiments.core.shell_words import exact_pattern
from experiments.planning.config import register_schemas
from reports.mlflow import run_content

ROOT = Path(__file__).resolve().parents[1]
ODD = [
    "it's",
    '"quoted"',
    "$HOME ${HOME} $$ $(HOME)",
    "a=b:=c",
    "broken[size=small,x]",
    " a b ",
    "größe/日本語",
    "$(shell touch pwned)`touch pwned`$(touch pwned)",
    "x;touch pwned;#' ; touch pwned; '\" ; touch pwned ; \"",
    "end\\",
    "${oc.env:HOME}",
    "--help",
]
"""Names that a stranger might choose."""
RECORDER = """import json, os, sys
with open("told", "a") as file:
    print(json.dumps([MODULE, sys.argv[1:], sorted(os.environ)]), file=file)
"""
"""In place of a program: writes down how it was called."""
few = settings(max_examples=150, deadline=None, derandomize=True, database=None)
TEXT = st.text(st.sampled_from("ab$(){}[]'\"\\,=:; #*?%&|<>`~!\n\té日\u202e"), min_size=1, max_size=8)


def read(*overrides):
    """What Hydra and OmegaConf make of overrides, without composing a configuration, which takes longer."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return OmegaConf.to_object(OmegaConf.create({one.key_or_group: one.value() for one in parsed}))


@few
@given(TEXT)
@example("${oc.env:HOME}")
@example("\\${a}")
@example("\\\\'")
@example("end\\")
@example("${")
def test_hydra_takes_a_value_as_the_text_that_it_is(text):
    made = read(override("prove", text), override("scenarios", text, "b", several=True))
    assert made == {"prove": text, "scenarios": [text, "b"]}


def test_a_whole_configuration_has_it_too():
    odd = "it's \\${oc.env:HOME}, é=[x]\\"
    given = {
        "SCENARIO": exact_pattern(odd),
        "PROVE": odd,
        "DEVICE": "cpu",
        "SUITE": "quick",
        "WORKERS": "3",
        "DRY_RUN": "1",
    }
    register_schemas()
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        made = OmegaConf.to_object(hydra.compose("config", overrides=arguments("replay", given)))
    assert (made.scenarios, made.prove, made.devices[0].value) == ([odd], odd, "cpu")
    assert (made.suite.value, made.workers, made.dry_run) == ("quick", 3, True)


@few
@given(TEXT)
@example(" a ")
def test_the_name_of_a_scenario_is_read_as_one_pattern(name):
    assert patterns(exact_pattern(name)) == [name]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("checkpoint/*", ["checkpoint/*"]),
        (" a , b c ,, ", ["a", "b c"]),
        ("a\\,b,\\ c\\ ", ["a,b", " c "]),
        ("end\\", ["end\\"]),
        ("", []),
    ],
)
def test_several_scenarios_have_commas_between_them(value, found):
    assert patterns(value) == found


# What make does with a value.


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout that is set up, with real make and recorders for programs."""
    root = tmp_path_factory.mktemp("checkout")
    modules = [
        *(
            "experiments/__main__.py",
            "experiments/planning/catalogue.py",
            "experiments/snippet/__main__.py",
            "experiments/app/benchmark.py",
        ),
        *("reports/mlflow/__main__.py", "pytest.py", "reports/__main__.py"),
    ]
    for name in modules:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RECORDER.replace("MODULE", repr(name.removesuffix(".py"))))
    for name in (
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "experiments/app/make.py",
        "experiments/app/install.py",
    ):
        shutil.copy(ROOT / name, root / name)
    programs(root)
    return root


def programs(root):
    """An environment that needs no set-up: our own interpreter, and nothing to check with."""
    folder = root / ".venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("ruff", "mypy"):
        (folder / name).symlink_to("/bin/true")
    (folder / "python").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (folder / "python").chmod(0o755)
    (root / ".state").mkdir()
    (root / ".state" / "installed").touch()


def told(root, line):
    """How programs were called by a line that was pasted into a shell."""
    (root / "told").unlink(missing_ok=True)
    ended = subprocess.run(["sh", "-c", line], cwd=root, capture_output=True, text=True, timeout=300)
    assert not list(root.rglob("pwned*")), line
    found = (root / "told").read_text().splitlines() if (root / "told").exists() else []
    return ended, [json.loads(one) for one in found]


HOSTILE = ["$(shell touch pwned-make)x", "`touch pwned`$(touch pwned)", "';touch pwned;'", '";touch pwned;"']
VARIABLES = {
    "run-all": ("SCENARIO", "DEVICE", "SUITE", "WORKERS", "DRY_RUN", "ARGS", "PROVE"),
    "capsule": ("SCENARIO",),
    "replay": ("PROVE", "ENVIRONMENT", "PYTHON", "SCENARIO"),
    "catalogue": ("SCENARIO",),
    "snippet": ("SCENARIO", "CASE", "UNCHECKED"),
    "ui": ("PORT",),
    "bench": ("ROUNDS",),
    "test": ("ARGS",),
    ".state/installed": ("PYTHON", "TORCH"),
}


@pytest.mark.parametrize("target", VARIABLES)
def test_no_value_of_a_variable_is_ever_run(checkout, target):
    """`make` expands what it is given where it is used, and where it is exported, with -n too."""
    given = " ".join(f"{name}={shlex.quote(HOSTILE[0])}" for name in VARIABLES[target])
    told(checkout, f"make -n {target} {given}")
    told(checkout, f"{given} make -n {target}")
    for value in HOSTILE:
        # What ARGS cannot be split into ends it before the others are looked at.
        some = " ".join(f"{name}={shlex.quote(value)}" for name in VARIABLES[target] if name != "ARGS")
        told(checkout, f"make {target} {some}")
    if "ARGS" in VARIABLES[target]:
        told(checkout, f"make {target} ARGS={shlex.quote(HOSTILE[1])}")


def test_what_sets_up_is_not_run_either(checkout):
    again = f"touch -d '2000-01-01' .state/installed; make .state/installed PYTHON={shlex.quote(sys.executable)}"
    for value in HOSTILE:
        ended, _ = told(checkout, f"{again} TORCH={shlex.quote(value)}")
        assert f"TORCH={value} is no version" in ended.stderr
        ended, _ = told(checkout, f"touch -d '2000-01-01' .state/installed; make PYTHON={shlex.quote(value)} ui")
        assert f"make: no {value} here" in ended.stderr
    (checkout / ".state" / "installed").touch()


def test_a_program_gets_the_words_and_not_the_variables(checkout):
    line = "make run-all SCENARIO='a*, b' DEVICE=cpu SUITE=quick WORKERS=2 DRY_RUN=1 ARGS=\"seed=2 'passes=[plain]'\""
    ended, [(module, words, environment)] = told(checkout, line)
    assert (ended.returncode, module) == (0, "experiments/__main__")
    asked = ["scenarios=['a*','b']", "device='cpu'", "suite='quick'", "workers='2'", "dry_run=true"]
    assert words == [*asked, "seed=2", "passes=[plain]"]
    assert not {"SCENARIO", "DEVICE", "PORT", "ARGS", "PYTHON"} & set(environment)
    _, [(_, words, _)] = told(checkout, "make capsule SCENARIO=a")
    assert words == ["capsule=capsule.pyz", "scenarios=['a']"]
    _, [(_, words, _)] = told(checkout, "make replay PYTHON=/x/python")
    assert words == ["environment=interpreter", "environment.python='/x/python'"]
    _, [(_, words, _)] = told(checkout, "make replay PYTHON=/x/python ENVIRONMENT=avx2")
    assert words == ["environment='avx2'", "environment.python='/x/python'"]
    _, [(module, words, _)] = told(checkout, "make test ARGS=\"-k 'a or b'\"")
    fixed = ["tests", "-n", "auto", "--dist", "loadfile", "-m", "not slow"]
    assert (module, words) == ("pytest", [*fixed, "-k", "a or b"])
    _, [(module, words, _)] = told(checkout, "make ui")
    assert (module, words) == ("reports/mlflow/__main__", ["ui", "--port=5000"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("make replay", "make: say where to replay: ENVIRONMENT="),
        ('make run-all ARGS="\'"', "make: ARGS=' is not split into words: no closing quotation"),
        ("make snippet SCENARIO=a,b CASE=c", "make: SCENARIO names 2 scenarios; a snippet is of one"),
    ],
)
def test_what_cannot_be_handed_on_is_a_sentence(checkout, line, says):
    ended, called = told(checkout, line)
    assert (ended.returncode, called) == (2, [])
    assert says in ended.stderr


# What reports print.


def pasted(text):
    """The commands of a report, as they stand there."""
    tokens = markdown_it.MarkdownIt("commonmark").parse(text)
    return [line for one in tokens if one.type == "fence" and one.info == "sh" for line in one.content.splitlines()]


@pytest.mark.parametrize("name", ODD)
def test_how_to_repeat_it_runs_what_it_says_for_any_name(checkout, name):
    made = Sweep(scenario=f"{name}/{name}", parameter=name)
    run, snippet = pasted(made.text())
    ended, [(module, words, _)] = told(checkout, run)
    assert (ended.returncode, module) == (0, "experiments/__main__")
    assert read(*words) == {"scenarios": [f"{name}/{name}"]}
    _, [(module, words, _)] = told(checkout, snippet)
    case = f"{PLACES['case']}[size={name}]"
    assert (module, words) == ("experiments/snippet/__main__", ["--", f"{name}/{name}", case])


@pytest.mark.parametrize("name", ODD)
def test_how_to_repeat_it_in_mlflow_does_too(checkout, name):
    case = name.strip()  # Make takes spaces before a value away, and no function is called so.
    question = samples.spec(case, scenario=f"{name}/{name}").question
    run, snippet, _ = run_content._repeat_commands(question, {"plain": "0" * 64}).splitlines()
    _, [(_, words, _)] = told(checkout, run)
    assert read(*words) == {"scenarios": [f"{name}/{name}"], "device": "cpu"}
    _, [(_, words, _)] = told(checkout, snippet)
    assert words == ["--", f"{name}/{name}", case]


@pytest.mark.parametrize("name", [*ODD, "all", "here", "x;touch$${IFS}/pwned;#", "\x1b[31mred\nfake: proven"])
def test_the_name_of_a_setting_can_be_typed_after_prove(checkout, name):
    """A table shows it, and says `make replay PROVE=SETTING` above: nobody quotes it."""
    lab = Lab()
    found = lab.across([lab.replay()], ("x.zip", [lab.replay(environment=name, on=facts("ho;st", "2.9;.1"))]))
    (setting,) = [one.name for one in found.others]
    assert setting not in ("all", "here")
    assert shlex.quote(setting) == setting
    ended, [(_, words, _)] = told(checkout, f"make replay PROVE={setting}")
    assert (ended.returncode, read(*words)) == (0, {"prove": setting})


@pytest.mark.slow
def test_the_commands_of_a_real_report_repeat_it(tmp_path):
    """Nothing stands in for anything: a scenario whose file has such a name is swept, reported, and run as printed."""
    name = 'it\'s $(touch pwned) ${HOME} $HOME=[é],`touch pwned` "q" ; touch pwned #'
    root = project(tmp_path, **{name: GOOD})
    for file in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / file, root)
    programs(root)
    quick = "ARGS=\"isolation=forked tracking=none 'passes=[plain]'\""
    ended, _ = told(root, f"make run-all {quick}")
    assert "4 as expected, 0 not as expected" in ended.stdout, ended.stderr
    (path,) = (root / "outputs" / "reports").glob("*.md")
    run, snippet = pasted(path.read_text())
    ended, _ = told(root, f"{run} {quick}")
    assert "4 as expected, 0 not as expected" in ended.stdout, ended.stderr
    ended, _ = told(root, snippet)
    assert (ended.returncode, "Run on torch" in ended.stdout) == (0, True), ended.stderr
