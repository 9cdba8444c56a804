"""How a process ends as its parent sees it, its limits, and that nothing is left running.

Where torch does not matter, a shell script stands in for the interpreter: a process that ends in its own way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import roots
from roots import HEAD, PROJECT, Lab

from experiments.core.canonical_json import canonical, digest
from experiments.core.environment import VARIABLES
from experiments.runner import errors, local, observation_check, source_copy, supervisor
from experiments.runner.fork_client import Forks

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc")

CASES = (
    HEAD
    + """
import ctypes
import os
import signal
import time


@scenario.reference
def squares(weight):
    return weight.square().sum()


@scenario.reference
def waits_in_backward(weight):
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value.clone()

        @staticmethod
        def backward(context, gradient):
            print("ready", os.getpid(), flush=True)
            time.sleep(600)

    return Waits.apply(weight).sum()


@scenario.reference
def ignores_the_request(weight):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(600)
    print("ready", child, flush=True)
    while True:
        time.sleep(600)


@scenario.reference
def waits_with_a_child(weight):
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(600)
    print("ready", child, flush=True)
    time.sleep(600)


@scenario.reference
def finishes_before_its_child(weight):
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(600)
    print("ready", child, flush=True)
    return weight.sum()


@scenario.reference
def holds_the_interpreter_lock(weight):
    print("ready", os.getpid(), flush=True)
    ctypes.PyDLL(None).sleep(600)


@scenario.reference
def grows(weight):
    held = []
    for _ in range(60):
        held.append(b"x" * 2**24)
        time.sleep(0.03)
    return weight.sum()


@scenario.reference
def forges_its_observation(weight):
    with open("../observation.json", "wb") as file:
        file.write(b'{"outcome": {"kind": "fin')
    os._exit(0)
"""
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.of(tmp_path_factory.mktemp("launch"), {"a/cases": CASES})


@pytest.fixture
def played(lab, tmp_path):
    """Run a shell script as if it were the interpreter: ``$2`` is the worker's folder."""

    def play(text, **changes):
        interpreter = roots.script(tmp_path / "interpreter", text)
        return roots.run(lab.spec("a/cases", "squares", interpreter=interpreter, **changes), tmp_path / "ran", lab.root)

    return play


@pytest.fixture
def started(lab, tmp_path):
    """Start a case, wait until it says that it is ready, and give it with the process that it names."""
    running = []

    def start(case, **changes):
        one = supervisor.start(
            lab.spec("a/cases", case, **changes), tmp_path / "ran", supervisor.fresh_starter(lab.root)
        )
        running.append(one)
        return one, roots.until(lambda: ready(tmp_path / "ran"))

    yield start
    for one in running:
        if one.process.poll() is None:
            one.stop()


def ready(folder):
    path = folder / "stdout"
    words = path.read_text().split() if path.exists() else []
    return int(words[1]) if len(words) > 1 else None


def timed_out(running):
    """The record after the time limit has come; the clock is moved, so that the machine's load is no matter."""
    running._deadline = 0
    return roots.until(running.poll, 10)


# Endings.


def test_a_process_that_ends_as_it_should_has_the_worker_s_outcome(lab):
    record = lab.ran("a/cases", "squares").record
    assert (record.outcome.kind, record.ending.exit_code, record.ending.signal) == ("finished", 0, None)
    assert record.ending.duration > 0
    assert record.ending.started_at.endswith("Z")


@pytest.mark.parametrize(
    ("text", "detail", "code", "by"),
    [
        ("exit 3", "exit 3", 3, None),
        ("exit 0", "exit 0, without an observation", 0, None),
        ("kill -SEGV $$", "SIGSEGV", None, "SIGSEGV"),
        ("kill -KILL $$", "SIGKILL", None, "SIGKILL"),
    ],
)
def test_a_process_that_leaves_nothing_is_recorded_as_died(played, text, detail, code, by):
    record = played(text).record
    assert (record.outcome.kind, record.outcome.detail, record.outcome.phase) == ("died", detail, None)
    assert (record.ending.exit_code, record.ending.signal) == (code, by)
    assert record.observation is None


def test_the_phase_in_which_a_process_died_is_the_last_that_it_named(played):
    assert played('printf backward > "$2/phase"; exit 3').outcome.phase == "backward"


def test_a_process_may_die_in_its_warm_up(played):
    record = played('printf warm-up > "$2/phase"; exec sleep 600', timeout=0.3).record
    assert (record.outcome.kind, record.outcome.phase) == ("timed_out", "warm-up")


def test_a_phase_that_does_not_exist_is_none(played):
    assert played('printf somewhere > "$2/phase"; exit 3').outcome.phase is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "half",
        '{"outcome":{"kind":"fin',
        "[1,2,3]",
        "{}",
        "\\377\\376",
        '{"outcome":NaN}',
        '{"durations":[],"machine":"","memory":[],"observed":[],"operators":null,"outcome":{},"sources":[],"state":[],'
        '"tensors":[]}',
    ],
)
def test_an_observation_that_cannot_be_read_is_kept(played, content):
    """A torn file is a finding about the machine or torch, so it is kept as it is and nobody guesses."""
    ran = played(f"printf '{content}' > \"$2/observation.json\"")
    assert ran.outcome.kind == "died"
    assert ran.outcome.detail.startswith("exit 0, with an observation that cannot be read: ")
    unreadable = ran.record.ending.unreadable
    assert ran.record.blobs()[unreadable.digest] == "unreadable"
    assert unreadable.written == len(ran.blob(unreadable.digest)) == (len(content) if "377" not in content else 2)


def test_an_observation_that_the_case_left_half_written_is_kept(lab):
    ran = lab.ran("a/cases", "forges_its_observation")
    assert (ran.outcome.kind, ran.outcome.phase) == ("died", "forward")
    assert ran.blob(ran.record.ending.unreadable.digest) == b'{"outcome": {"kind": "fin'


def test_an_observation_counts_only_after_exit_0(lab, tmp_path, played):
    """What a process wrote before it crashed is read, but the ending says that it crashed."""
    whole = lab.ran("a/cases", "squares").folder
    ran = played(f'cp -r "{whole}/observation.json" "{whole}/blobs" "$2"; kill -ABRT $$')
    assert (ran.outcome.kind, ran.outcome.detail) == ("died", "SIGABRT")
    assert ran.record.observation is not None


def test_an_interpreter_that_is_not_there_is_said_so(lab, tmp_path):
    asked = lab.spec("a/cases", "squares", interpreter=str(tmp_path / "no-python"))
    with pytest.raises(errors.LaunchError, match="no-python"):
        supervisor.run(asked, tmp_path / "ran", lab.root)


def test_a_folder_is_used_once(lab, tmp_path):
    with pytest.raises(errors.LaunchError, match="exists"):
        supervisor.run(lab.spec("a/cases", "squares"), tmp_path, lab.root)


# Limits.


def test_a_process_that_takes_too_long_is_ended(played):
    record = played("exec sleep 600", timeout=0.3).record
    assert (record.outcome.kind, record.outcome.detail) == ("timed_out", "after 0.3 seconds")
    assert record.ending.signal == "SIGTERM"
    assert 0.3 <= record.ending.duration < 10


def test_a_case_that_takes_too_long_is_ended_in_its_phase(started):
    running, worker = started("waits_in_backward")
    record = timed_out(running)
    assert (record.outcome.kind, record.outcome.phase) == ("timed_out", "backward")
    assert not roots.alive(worker)


@needs_proc
def test_a_group_that_ignores_the_request_is_killed_with_its_children(started):
    running, child = started("ignores_the_request")
    assert roots.alive(child)
    record = timed_out(running)
    assert (record.outcome.kind, record.outcome.phase, record.ending.signal) == ("timed_out", "forward", "SIGKILL")
    roots.until(lambda: not roots.alive(child), 3)


@needs_proc
def test_a_child_does_not_outlive_a_process_that_finished(started):
    running, child = started("finishes_before_its_child")
    assert roots.until(running.poll).outcome.kind == "finished"
    roots.until(lambda: not roots.alive(child), 3)


@needs_proc
def test_stopping_ends_the_group_without_a_record(started, tmp_path):
    running, child = started("waits_with_a_child")
    running.stop()
    roots.until(lambda: not roots.alive(child), 3)
    assert running.process.poll() == -signal.SIGKILL
    assert not (tmp_path / "ran" / "record.json").exists()


@needs_proc
def test_a_process_over_its_memory_limit_is_killed(lab):
    """The case grows in steps up to 1 GB above what torch takes, and would then finish."""
    limit = 600 * 2**20
    ran = lab.ran("a/cases", "grows", memory=limit)
    assert (ran.outcome.kind, ran.outcome.phase) == ("out_of_memory", "forward")
    assert ran.outcome.detail == f"over {limit} bytes"
    assert ran.record.ending.signal == "SIGKILL"
    assert ran.record.observation is None


# Output.


def test_long_output_is_cut_in_its_middle_visibly(played):
    ran = played("printf 'first '; head -c 100000 /dev/zero; printf ' last'; printf 'short' >&2; exit 3", output=1000)
    out = ran.record.ending.stdout
    assert out.written == 100011
    assert ran.stdout.startswith(b"first \0")
    assert ran.stdout.endswith(b"\0 last")
    assert b"\n[99011 bytes cut here]\n" in ran.stdout
    assert out.kept == len(ran.stdout) < 1100
    assert ran.stderr == b"short"


def test_output_up_to_the_limit_is_whole(played):
    ran = played("printf '%1000s' x; exit 3", output=1000)
    assert ran.stdout == b"x".rjust(1000)
    assert ran.record.ending.stdout == supervisor.Output(digest(ran.stdout), 1000, 1000)


def test_output_that_is_not_utf_8_is_kept_as_it_is(played):
    assert played(r"printf '\377\376\000'; exit 3").stdout == b"\xff\xfe\x00"


# What is not started.


def test_a_missing_need_leaves_a_record(lab, tmp_path):
    asked = lab.spec("a/cases", "squares", needs=("cuda",))
    record = supervisor.not_run_record(asked, tmp_path / "ran", "cuda")
    assert (record.outcome.kind, record.outcome.phase, record.outcome.detail) == ("not_run", None, "needs cuda")
    assert (record.ending.exit_code, record.ending.signal, record.observation) == (None, None, None)
    assert all((tmp_path / "ran" / "blobs" / name).is_file() for name in record.blobs())


def test_a_scenario_that_changed_after_the_plan_is_noticed(tmp_path):
    root = roots.root(tmp_path / "root", {"a/cases": CASES})
    asked = roots.spec(root, "a/cases", "squares")
    assert observation_check.find_source_change(asked, root) is None
    path = root / "experiments/scenarios/a/cases.py"
    path.write_text(CASES + "\n")
    assert "it has changed" in observation_check.find_source_change(asked, root)
    path.unlink()
    assert "it has changed" in observation_check.find_source_change(asked, root)


def test_the_engine_does_not_start_what_it_cannot_run(lab, tmp_path):
    missing, planned = lab.spec("a/cases", "squares"), lab.spec("a/cases", "squares", source=digest("older"))
    watched: list[int] = []
    ended = local.run(
        [missing, planned],
        workers=2,
        roots={"original": lab.root},
        scratch=tmp_path / "scratch",
        missing={missing.digest(): "cuda"},
        watch=watched.append,
        forks=Forks(lab.root),
    )
    assert [(record.outcome.kind, record.outcome.detail) for record, _ in ended] == [
        ("not_run", "needs cuda"),
        ("not_run", "needs the scenario file as it was planned: it has changed"),
    ]


def test_an_engine_that_is_left_early_leaves_nothing_running(lab, tmp_path):
    quick = lab.spec("a/cases", "squares", interpreter=roots.script(tmp_path / "quick", "exit 3"))
    slow = lab.spec("a/cases", "squares", interpreter=roots.script(tmp_path / "slow", "echo $$; exec sleep 600"))
    running = local.run(
        [quick, slow],
        workers=2,
        roots={"original": lab.root},
        scratch=tmp_path / "scratch",
        missing={},
        watch=[].append,
        forks=Forks(lab.root),
    )
    record, _ = next(running)
    assert record.outcome.kind == "died"
    out = tmp_path / "scratch" / slow.digest()[:16] / "stdout"
    process = int(roots.until(out.read_text))
    assert roots.alive(process)
    running.close()
    assert not roots.alive(process)


# Sources and environment.


def test_copied_sources_are_what_a_worker_runs(tmp_path):
    root = roots.whole(tmp_path / "root", {"a/cases": CASES, "a/b/deep": CASES})
    copied = source_copy.copy_sources(root, tmp_path / "copy")
    assert {"experiments/worker/__main__.py", "experiments/scenarios/a/b/deep.py"} <= set(copied.digests)
    for name, expected in copied.digests.items():
        assert digest((tmp_path / "copy" / name).read_bytes()) == expected == digest((root / name).read_bytes())


def test_a_copy_that_differs_is_refused(tmp_path, monkeypatch):
    root = roots.root(tmp_path / "root", {"a/cases": CASES})
    monkeypatch.setattr(source_copy.shutil, "copyfile", lambda path, copy: copy.write_bytes(path.read_bytes() + b"\n"))
    with pytest.raises(errors.LaunchError, match="differs from its original"):
        source_copy.copy_sources(root, tmp_path / "copy")


def test_the_environment_is_a_list_of_names(played, monkeypatch):
    """Beside what an interpreter needs: no name that is not on the list, whatever the caller has."""
    monkeypatch.setenv("TWOFOLD_TEST_SECRET", "s")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    ran = played("env; exit 3", variables={"SETTING": "1"}, hash_seed=5, threads=3)
    made = dict(line.split("=", 1) for line in ran.stdout.decode().splitlines() if "=" in line)
    caches = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    own = {"LC_ALL", "PYTHONHASHSEED", "TMPDIR", "TEMP", "SETTING", "TORCHINDUCTOR_COMPILE_THREADS", *caches}
    shells = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert set(made) - set(supervisor.NEEDED) - set(VARIABLES) - shells == own
    assert (made["PYTHONHASHSEED"], made["OMP_NUM_THREADS"], made["MKL_CBWR"]) == ("5", "3", "COMPATIBLE")
    assert {made[name] for name in caches} == {str(ran.folder / "tmp" / "compiled")}


def test_the_working_folder_is_the_worker_s_own_and_does_not_stay(played):
    ran = played("pwd; touch litter; exit 3")
    assert ran.stdout.decode().strip() == str((ran.folder / "tmp").resolve())
    assert not (ran.folder / "tmp").exists()


# A parent that is killed.

DRIVER = """
import sys, time
from pathlib import Path
from experiments.core.canonical_json import parse
from experiments.core.spec import Spec
from experiments.runner import supervisor
spec = Spec.from_json(parse(Path(sys.argv[1]).read_text()))
running = supervisor.start(spec, Path(sys.argv[2]), supervisor.fresh_starter(Path(sys.argv[3])))
print(running.process.pid, flush=True)
time.sleep(600)
"""


@needs_proc
@pytest.mark.parametrize("case", ["waits_in_backward", "holds_the_interpreter_lock", "waits_with_a_child"])
def test_a_killed_parent_leaves_nothing_running(lab, tmp_path, case):
    """Nobody is left to wait for the workers: they end themselves, even when stuck in C with the lock held."""
    (tmp_path / "spec.json").write_text(canonical(lab.spec("a/cases", case).to_json()))
    folder = tmp_path / "ran"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path / "spec.json"), str(folder), str(lab.root)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    group = 0
    try:
        group = int(driver.stdout.readline())
        child = roots.until(lambda: ready(folder))
        assert {group, child} <= members(group)
        driver.kill()
        driver.wait()
        roots.until(lambda: not members(group), 3)
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()
        if group and members(group):
            os.killpg(group, signal.SIGKILL)


def members(group):
    """Who is in the process group and runs."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its) == group and state not in ("Z", "X"):
            found.add(int(path.parent.name))
    return found


# An answer that does not come.


def test_an_interpreter_that_cannot_list_says_why(lab, tmp_path):
    broken = roots.script(tmp_path / "python", "echo 'ImportError: no torch here' >&2; exit 1")
    with pytest.raises(errors.LaunchError, match="could not list the scenarios: ImportError: no torch here"):
        supervisor.describe(lab.root, broken, tmp_path / "catalogue.json", {})
