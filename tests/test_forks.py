"""A fork of a warm interpreter is as good as a fresh one, its server only imports, a lost one costs no record."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Mapping

import pytest
import roots
from roots import HEAD, PROJECT, Lab
from test_sweep import GOOD, project, rows, run

from experiments.core.record import Record
from experiments.core.spec import Spec
from experiments.planning import catalogue, config, plan
from experiments.runner import fork_client as engine_forks
from experiments.runner import local, supervisor
from experiments.runner.fork_client import Forks

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")

CASES = (
    HEAD
    + """
import os
import signal
import time


@scenario.reference
def tells_its_parent(weight):
    observe("parent", os.getppid(), measurement=True)
    observe("threads", torch.get_num_threads())
    return (weight.outer(weight) @ weight).sum()


@scenario.reference
def waits_the_first_time(weight):
    mark = os.environ["TWOFOLD_TEST_MARK"]
    if not os.path.exists(mark):
        open(mark, "w").close()
        time.sleep(600)
    return weight.square().sum()


@scenario.reference
def takes_a_second(weight):
    time.sleep(1)
    return weight.square().sum()


@scenario.reference
def kills_its_server(weight):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


@scenario.reference
def stops_its_server(weight):
    os.kill(os.getppid(), signal.SIGSTOP)
    return weight.square().sum()
"""
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.of(tmp_path_factory.mktemp("forks"), {"a/cases": CASES})


@pytest.fixture
def forks(lab):
    made = Forks(lab.root)
    yield made
    made.close()


def engine(root: Path, specs: list[Spec], folder: Path, forks: Forks, watch=lambda _: None, workers=2) -> list[Record]:
    """Run the specs as a sweep does."""
    ended = local.run(
        specs, workers=workers, roots={"original": root}, scratch=folder, missing={}, watch=watch, forks=forks
    )
    return [record for record, _ in ended]


def servers(forks: Forks) -> list[int]:
    return [server._process.pid for server in forks._servers.values()]


# As good as fresh.


@pytest.fixture(scope="module")
def listed():
    return catalogue.read("", {})


def planned(listed: catalogue.Catalogue, pass_: str) -> list[Spec]:
    """Every process of the catalogue, in this pass, that may be forked and can run here, once."""
    made = plan.plan(
        config.Config(
            devices=[config.Device.cpu],
            replays=1,
            isolation=config.IsolationConfig(kind=config.Isolation.forked),
            archive=config.ArchiveConfig(url="", blobs=""),
            tracking=config.TrackingConfig(enabled=False, uri="", artifacts=""),
        ),
        listed,
    )
    return [
        spec
        for spec in made.specs
        if spec.digest() not in made.missing and (spec.question.pass_, spec.setting.isolation) == (pass_, "forked")
    ]


def case_of(listed: catalogue.Catalogue, spec: Spec) -> Mapping[str, Any]:
    """What the catalogue says about the case of this spec."""
    question = spec.question
    (entry,) = [one for one in listed.entries if one.name == question.scenario]
    variant = {"parameters": dict(question.parameters), "dtype": question.dtype}
    (found,) = [
        case
        for case in entry.cases
        if case["name"] == question.case
        and question.device in case["on"]
        and (case["role"] == "reference" or variant in case["variants"])
    ]
    return found


def sampled(listed: catalogue.Catalogue, specs: list[Spec]) -> list[Spec]:
    """Of every sixth scenario one case that is not costly, and of those the last by the digest of the question."""
    found: dict[str, Spec] = {}
    for spec in sorted(specs, key=lambda one: one.question.case_digest()):
        if not roots.costly(case_of(listed, spec)):
            found[spec.question.scenario] = spec
    return [found[name] for name in sorted(found)[::6]]


def agree(specs: list[Spec], folder: Path) -> None:
    forks = Forks(PROJECT)
    try:
        forked = engine(PROJECT, specs, folder / "forked", forks)
    finally:
        forks.close()
    fresh = engine(PROJECT, [roots.changed(one, isolation="fresh") for one in specs], folder / "fresh", forks)
    ours, theirs = ({one.spec.question.digest(): one for one in records} for records in (forked, fresh))
    assert len(ours) == len(specs)
    different = [
        (one.spec.question.scenario, one.spec.question.label(), one.outcome, theirs[question].outcome)
        for question, one in ours.items()
        if one.evidence_digest() != theirs[question].evidence_digest()
    ]
    assert not different
    for one in forked:
        kinds = {expectation["kind"] for expectation in one.spec.mark.expectations}
        if not kinds & {"dies", "hangs", "varies"}:
            assert one.outcome.kind in ("finished", "raised"), (one.spec.question, one.outcome)


def test_a_case_of_every_sixth_scenario_has_the_same_evidence_fresh_and_forked(listed, tmp_path):
    """Plain passes: outcome, error, tensors, observed values. The other cases are slow."""
    specs = sampled(listed, planned(listed, "plain"))
    assert len({spec.question.scenario for spec in specs}) == len(specs) >= len(listed.entries) // 6
    agree(specs, tmp_path)


@pytest.mark.slow
def test_every_case_has_the_same_evidence_fresh_and_forked(listed, tmp_path):
    """What the test above leaves out."""
    specs = planned(listed, "plain")
    seen = {spec.digest() for spec in sampled(listed, specs)}
    agree([spec for spec in specs if spec.digest() not in seen], tmp_path)


def test_a_sample_of_profiled_passes_has_the_same_operators_fresh_and_forked(listed, tmp_path):
    """A fixed sample, by digest of the question's text: the rest is in the slow test below."""
    specs = [spec for spec in planned(listed, "profiled") if not roots.costly(case_of(listed, spec))]
    agree(sorted(specs, key=lambda spec: spec.question.case_digest())[::32], tmp_path)


@pytest.mark.slow
def test_every_profiled_pass_has_the_same_operators_fresh_and_forked(listed, tmp_path):
    agree(planned(listed, "profiled"), tmp_path)


UNSEEDED = GOOD.replace('observe("weights",', 'observe("drawn", torch.rand(()).item())\n    observe("weights",')
HASHED = GOOD.replace(
    'observe("weights",', 'observe("order", "".join(set("abcdefghijklmnop")))\n    observe("weights",'
)


def test_an_audit_finds_what_is_not_seeded_and_what_depends_on_hash_order(tmp_path):
    """Children of one server that shared its random state and hash seed would look reproducible."""
    root = project(tmp_path, good=GOOD, unseeded=UNSEEDED, hashed=HASHED)
    ended = run(root, "isolation=audit", "isolation.sample=1.0", "passes=[plain]", "cases=[again]", "tracking=none")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "different values: tests/unseeded again" in ended.stdout, ended.stdout
    assert "different values: tests/hashed again" in ended.stdout, ended.stdout
    assert "tests/good" not in ended.stdout
    assert "audit: 3 of 9 forked replays are identical to a fresh one" in ended.stdout


def test_an_audit_of_what_is_seeded_ends_with_0(tmp_path):
    root = project(tmp_path, good=GOOD)
    ended = run(root, "isolation=audit", "isolation.sample=1.0", "passes=[plain]", "cases=[again]", "tracking=none")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "audit: 3 of 3 forked replays are identical to a fresh one" in ended.stdout


# The server.

COUNTING = """
import os, runpy, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode

server = os.getpid()


class Writes(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        with open({folder!r} + ("/server" if os.getpid() == server else "/child"), "a") as file:
            print(function, file=file)
        return function(*arguments, **(keywords or {{}}))


sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
with Writes():
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_server_runs_no_operator(lab, forks, tmp_path):
    """A child of a process that has run a parallel operator hangs. The children show that operators are seen."""
    (tmp_path / "counting.py").write_text(COUNTING.format(folder=str(tmp_path)))
    python = roots.script(tmp_path / "python", f'exec {sys.executable} "{tmp_path / "counting.py"}" "$@"')
    specs = [lab.spec("a/cases", "tells_its_parent", isolation="forked", interpreter=python, repeat=n) for n in (0, 1)]
    assert [one.outcome.kind for one in engine(lab.root, specs, tmp_path / "ran", forks)] == ["finished"] * 2
    assert "aten" in (tmp_path / "child").read_text()
    assert not (tmp_path / "server").exists(), (tmp_path / "server").read_text()


def test_a_server_has_one_thread(lab, forks, tmp_path):
    """Before it has forked, and after: a lock that another thread held would stay locked in a child for ever."""
    counts = set()

    def watch(_):
        counts.update(len(list(Path(f"/proc/{server}/task").iterdir())) for server in servers(forks))

    specs = [lab.spec("a/cases", "tells_its_parent", isolation="forked", threads=2, repeat=n) for n in range(4)]
    engine(lab.root, specs, tmp_path, forks, watch)
    assert counts == {1}


def test_two_thread_counts_have_two_servers(lab, forks, tmp_path):
    """The count of threads is read when torch is imported, so a fork could not change it."""
    specs = [
        lab.spec("a/cases", "tells_its_parent", isolation="forked", threads=threads, repeat=repeat)
        for threads in (1, 2)
        for repeat in (0, 1)
    ]
    records = engine(lab.root, specs, tmp_path, forks)
    seen = {
        (one.spec.question.threads, observed["threads"], observed["parent"])
        for one in records
        for observed in [{value.name: value.value for value in one.observation.observed}]
    }
    assert {(asked, given) for asked, given, _ in seen} == {(1, 1), (2, 2)}
    assert {server for _, _, server in seen} == set(servers(forks))
    assert len(seen) == 2


def test_a_closed_server_is_gone(lab, tmp_path):
    forks = Forks(lab.root)
    engine(lab.root, [lab.spec("a/cases", "takes_a_second", isolation="forked")], tmp_path, forks)
    (server,) = servers(forks)
    assert roots.alive(server)
    forks.close()
    assert not roots.alive(server)


# What is not forked.

PARENT = """
    with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
        observe("forked", b"--serve" in file.read(), measurement=True)
"""
UNSAFE = (
    GOOD.replace("import torch\n", "import os\n\nimport torch\n", 1)
    .replace("def loss(scores, temperature):\n", "def loss(scores, temperature):" + PARENT)
    .replace("@scenario.repair(agrees(bitwise=True))", "@scenario.repair(agrees(bitwise=True), fork_safe=False)")
)


def test_what_must_not_be_forked_and_copied_sources_run_fresh(tmp_path):
    """Seen from inside, and said by the record."""
    root = project(tmp_path, unsafe=UNSAFE)
    ended = run(root, "isolation=forked", "passes=[plain]", "replays=2", "tracking=none", "report=false")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    records = [Record.from_text(text) for (text,) in rows(root / "outputs" / "archive.db", "select text from records")]
    found = {
        (
            one.spec.question.case == "again",
            one.spec.setting.sources,
            one.spec.setting.isolation,
            next(value.value for value in one.observation.observed if value.name == "forked"),
        )
        for one in records
    }
    assert found == {
        (True, "original", "fresh", False),
        (True, "copied", "fresh", False),
        (False, "original", "forked", True),
        (False, "copied", "fresh", False),
    }


# A server that is lost.


def test_a_case_whose_server_is_lost_is_run_again(lab, forks, tmp_path):
    mark = tmp_path / "mark"
    spec = lab.spec("a/cases", "waits_the_first_time", isolation="forked", variables={"TWOFOLD_TEST_MARK": str(mark)})
    lost = []

    def watch(_):
        if mark.exists() and not lost:
            lost.extend(servers(forks))
            os.kill(lost[0], signal.SIGKILL)

    (record,) = engine(lab.root, [spec], tmp_path / "ran", forks, watch)
    assert record.outcome.kind == "finished"
    assert len(lost) == 1
    assert lost != servers(forks)


def test_a_second_loss_is_the_record_of_the_case_that_runs_alone(lab, forks, tmp_path):
    """Which of two cases ended their server nobody can see; the one that runs alone and does it again did."""
    specs = [
        lab.spec("a/cases", "takes_a_second", isolation="forked", repeat=0),
        lab.spec("a/cases", "kills_its_server", isolation="forked"),
        *(lab.spec("a/cases", "takes_a_second", isolation="forked", repeat=repeat) for repeat in (1, 2)),
    ]
    records = engine(lab.root, specs, tmp_path, forks)
    assert len({one.spec.digest() for one in records}) == len(records) == 4
    ended = {(one.spec.question.case, one.outcome.kind, one.outcome.detail) for one in records}
    assert ended == {("takes_a_second", "finished", ""), ("kills_its_server", "died", "the fork server has ended")}


def test_a_server_that_is_stopped_is_given_up(lab, forks, tmp_path, monkeypatch):
    """A stopped server does not say that its child has ended; the sweep does not wait for it."""
    monkeypatch.setattr(supervisor, "PATIENCE", 0.2)
    monkeypatch.setattr(supervisor, "LONGEST_END", 0.5, raising=False)
    spec = lab.spec("a/cases", "stops_its_server", isolation="forked", timeout=1.0)
    (record,) = engine(lab.root, [spec], tmp_path / "ran", forks, give_up_after(forks, 40))
    assert (record.outcome.kind, record.outcome.detail) == ("died", "the fork server does not answer")


def give_up_after(forks: Forks, seconds: float):
    """Wake stopped servers after a while, so that a test which fails does not stay."""
    deadline = engine_forks.time.monotonic() + seconds

    def watch(_):
        if engine_forks.time.monotonic() > deadline:
            for server in servers(forks):
                os.kill(server, signal.SIGKILL)

    return watch
