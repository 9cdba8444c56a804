"""Nothing that a scenario does can hurt the runner: every file of `tests/faults` in one sweep, fresh and forked.

A fault file says with `ENDS` what its case's record holds, and with `FORKED` what of that is otherwise in a fork.
Beside the faults an ordinary scenario runs, whose evidence is compared with that of a sweep without faults.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import roots
from test_sweep import GOOD, project, rows, run, store

from experiments.core.canonical_json import canonical, parse
from experiments.core.observation import Observation
from experiments.core.record import Record
from experiments.core.replay import replays
from experiments.core.tensor_values import Fetch
from experiments.core.verdict import AS_EXPECTED, contexts, judge
from experiments.runner import supervisor
from store.archive import Archive

FAULTS = Path(__file__).resolve().parent / "faults"
NAMES = sorted(path.stem for path in FAULTS.glob("*.py"))
ISOLATIONS = ("fresh", "forked")
PUBLISHED = "TWOFOLD_ALL" in os.environ
"""Whether MLflow gets all of it, which takes as long as the faults do."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc")


def named(fault: str, isolation: str) -> dict:
    """What the fault file says its record holds; read, not executed."""
    made = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse((FAULTS / f"{fault}.py").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("ENDS", "FORKED")
    }
    return {**made["ENDS"], **(made.get("FORKED", {}) if isolation == "forked" else {})}


def sweep(folder: Path, isolation: str, *, faults: bool) -> SimpleNamespace:
    """A finished sweep of the ordinary scenario, between the faults or alone, with a temporary folder of its own."""
    root, temporary = project(folder / "project", ordinary=GOOD), folder / "temporary"
    temporary.mkdir()
    if faults:
        family = root / "experiments" / "scenarios" / "faults"
        shutil.copytree(FAULTS, family, ignore=shutil.ignore_patterns("__pycache__"))
        if isolation == "fresh":
            _spare_references(family)
        else:
            _shorten_timeouts(family)
    asked = (f"isolation={isolation}", "passes=[plain]", "workers=2", *([] if PUBLISHED else ["tracking=none"]))
    ended = run(root, *asked, TMPDIR=str(temporary))
    left = beside(root)
    with Archive.open(f"sqlite:///{root / 'outputs' / 'archive.db'}", root / "outputs" / "blobs") as archive:
        records, fetch = archive.records(), archive.fetch
        made = replays(records)
        verdicts = [judge(replay, context) for replay, context in zip(made, contexts(made, fetch))]
    return SimpleNamespace(
        root=root,
        temporary=temporary,
        isolation=isolation,
        ended=ended,
        left=left,
        records=records,
        fetch=fetch,
        replays=len(made),
        verdicts={(one.spec.question.scenario, one.spec.question.label()): v for one, v in zip(made, verdicts)},
    )


def _spare_references(family: Path) -> None:
    """A fresh process costs a second: only what is compared with its reference keeps it."""
    for path in family.glob("*.py"):
        if named(path.stem, "fresh")["kind"] != "finished":
            path.write_text(path.read_text().replace("@scenario.reference\n", ""))


def _shorten_timeouts(family: Path) -> None:
    """A fork need not import torch before its case begins, so what hangs is waited for less."""
    for path in family.glob("*.py"):
        path.write_text(path.read_text().replace("timeout=15", "timeout=4"))


@pytest.fixture(scope="module", params=[pytest.param("fresh", marks=pytest.mark.slow), "forked"])
def swept(request, tmp_path_factory):
    made = sweep(tmp_path_factory.mktemp("faults"), request.param, faults=True)
    yield made
    for process in made.left:
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("undisturbed"), "forked", faults=False)


def beside(root: Path) -> dict[int, str]:
    """Processes that run and have to do with the folder: by command line, environment, or where they are."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            facts = [
                (path / "cmdline").read_bytes(),
                (path / "environ").read_bytes(),
                bytes((path / "cwd").readlink()),
            ]
            if any(str(root).encode() in fact for fact in facts) and roots.alive(int(path.name)):
                found[int(path.name)] = facts[0].replace(b"\0", b" ").decode(errors="replace")
    return found


def record_of(swept: SimpleNamespace, fault: str) -> Record:
    (found,) = [
        record
        for record in swept.records
        if (record.spec.question.scenario, record.spec.question.case) == (f"faults/{fault}", "hurts")
    ]
    return found


def stdout(record: Record, fetch: Fetch) -> bytes:
    content = fetch(record.ending.stdout.digest)
    assert content is not None
    return content


def test_the_count_of_faults(capsys):
    with capsys.disabled():
        print(f"\n{len(NAMES)} faults, each in {len(ISOLATIONS)} isolations")
    assert len(NAMES) >= 50
    for fault in NAMES:
        assert named(fault, "fresh")["kind"]


def test_the_sweep_of_faults_goes_on_to_its_end(swept):
    assert swept.ended.returncode == 1, swept.ended.stdout + swept.ended.stderr
    assert "Traceback" not in swept.ended.stderr
    assert {record.spec.question.scenario for record in swept.records} == {
        "tests/ordinary",
        *(f"faults/{fault}" for fault in NAMES),
    }
    assert {record.spec.setting.isolation for record in swept.records} == {swept.isolation}


@pytest.mark.parametrize("fault", NAMES)
def test_a_fault_ends_in_the_record_that_it_names(swept, fault):
    expected, record = named(fault, swept.isolation), record_of(swept, fault)
    if swept.isolation == "forked" and expected.get("detail") == "after 15 seconds":
        expected["detail"] = "after 4 seconds"
    outcome, ending = record.outcome, record.ending
    for name in ("kind", "phase", "detail", "type"):
        if name in expected:
            assert getattr(outcome, name) == expected[name], (outcome, stderr(record, swept.fetch))
    assert (expected.get("message") or "") in (outcome.message or "")
    assert len(outcome.message or "") <= expected.get("longest", 1000)
    assert outcome.detail.startswith(expected.get("detail_begins", ""))
    assert str(swept.root) not in outcome.detail, "a folder of this machine"
    if "signal" in expected:
        assert ending.signal == expected["signal"]
    if "exit_code" in expected:
        assert ending.exit_code == expected["exit_code"]
    if "state" in expected:
        assert {change.name for change in record.observation.state} >= set(expected["state"])
    if "stdout" in expected:
        assert ending.stdout.written == expected["stdout"]["written"]
        assert ending.stdout.kept <= expected["stdout"]["kept_at_most"]
        assert expected["stdout"]["says"].encode() in stdout(record, swept.fetch)
    assert (ending.unreadable is not None) == bool(expected.get("unreadable"))
    if expected.get("unreadable", True) is not True:
        assert ending.unreadable.written == expected["unreadable"]
        assert ending.unreadable.kept <= 70_000


def stderr(record: Record, fetch: Fetch) -> str:
    return (fetch(record.ending.stderr.digest) or b"").decode(errors="replace")[-2000:]


def test_a_fault_is_judged_by_what_it_says_and_nobody_else_is(swept):
    """Only what no expectation has a word for, what was not observed, and what only a fork can do end otherwise."""
    surprising = {
        f"faults/{fault}"
        for fault in NAMES
        if named(fault, swept.isolation)["kind"] in ("out_of_memory", "not_observed")
        or says_nothing_of_its_phase(swept, fault)
    } | ({"faults/kills_its_parent", "faults/joins_another_group"} if swept.isolation == "forked" else set())
    wrong = {scenario: verdict for (scenario, _), verdict in swept.verdicts.items() if verdict.word != AS_EXPECTED}
    assert set(wrong) == surprising, wrong
    assert all(
        verdict.word == AS_EXPECTED for (_, label), verdict in swept.verdicts.items() if not label.startswith("hurts")
    )


def says_nothing_of_its_phase(swept: SimpleNamespace, fault: str) -> bool:
    """Whether nobody can tell if it reached its case: the place where a worker names its phase is gone."""
    expected = named(fault, swept.isolation)
    ended = expected["kind"] in ("died", "timed_out") and expected.get("phase", "any") is None
    return ended and record_of(swept, fault).observation is None


def test_the_evidence_beside_faults_is_that_of_a_sweep_without_them(swept, undisturbed):
    assert undisturbed.ended.returncode == 0, undisturbed.ended.stderr
    assert evidence(swept, "tests/ordinary") == evidence(undisturbed, "tests/ordinary")
    references = {
        record.evidence_digest()
        for record in swept.records
        if record.spec.question.case == "squares" and record.spec.question.dtype == "float32"
    }
    assert len(references) == 1


def evidence(swept: SimpleNamespace, scenario: str) -> dict[str, str]:
    return {
        record.spec.question.digest(): record.evidence_digest()
        for record in swept.records
        if record.spec.question.scenario == scenario
    }


def test_no_fault_leaves_a_process(swept):
    """Those that a fault said it would leave, and whatever has to do with the folder of the sweep."""
    said = [
        int(process)
        for record in swept.records
        for process in re.findall(rb"^left (\d+)$", stdout(record, swept.fetch), re.MULTILINE)
    ]
    assert len(said) >= 4
    assert not [process for process in said if process in swept.left or stray(process)]
    assert not swept.left


def stray(process: int) -> bool:
    """Whether it still runs and is no child of somebody else who got its number."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{process}/cmdline").read_bytes()
        return roots.alive(process) and (b"worker/__main__.py" in line or b"sleep" in line)
    return False


def test_no_fault_leaves_a_file(swept):
    assert not list(swept.temporary.iterdir())
    assert not [path for path in (swept.root / "outputs" / "sweeps").iterdir() if path.is_dir()]


def test_the_archive_of_faults_checks(swept):
    checked = store(swept.root, "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    database = swept.root / "outputs" / "archive.db"
    assert rows(database, "select count(*), count(distinct spec) from sweep_records") == [(len(swept.records),) * 2]
    largest = max(
        len(record.text()) for record in swept.records if "observes_15_mb" not in record.spec.question.scenario
    )
    assert largest < 300_000


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_the_pages_on_faults_hold_no_control_character(swept):
    """A report is read in a terminal, and what a case printed must not move the cursor there."""
    pages = list((swept.root / "outputs" / "reports").rglob("*.md"))
    assert pages
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert not CONTROL.search(text), (path.name, CONTROL.search(text))
        assert len(text) < 2_000_000
    assert not CONTROL.search(swept.ended.stdout), CONTROL.search(swept.ended.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED, reason="make test-all publishes the sweep of faults")
def test_mlflow_shows_no_fault_as_running(swept):
    assert "MLflow: not" not in swept.ended.stderr
    database = swept.root / "outputs" / "mlflow.db"
    counts = dict(rows(database, "select status, count(*) from runs group by status"))
    assert sum(counts.values()) == swept.replays + 2
    assert "RUNNING" not in counts


# Whatever stands in an observation.


class _Ended:
    """A process that has ended with 0. What it left is all that counts here."""

    pid = 0

    def poll(self):
        return 0

    def close(self):
        pass


ODD = (None, True, -1, 10**40, 1.5, "", "other", "\\ud800", "\x1b[31m", [], {}, [[]], {"a": 1}, ["x"], "f" * 64)


def test_a_fault_anywhere_in_an_observation_leaves_a_record_that_the_archive_takes(tmp_path):
    """Every value of a real observation in turn is replaced by odd ones: the driver neither fails nor keeps
    what cannot be read again.
    """
    root = roots.root(tmp_path / "root", {"tests/ordinary": GOOD})
    spec = roots.spec(root, "tests/ordinary", "plainly", isolation="fresh")
    ran = roots.run(spec, tmp_path / "ran", root)
    whole, contents = parse((ran.folder / "observation.json").read_text()), ran.folder / "blobs"
    assert Observation.from_json(whole)
    kinds = set()
    with Archive.open(f"sqlite:///{tmp_path / 'archive.db'}", tmp_path / "blobs") as archive:
        for number, changed in enumerate(mutations(whole)):
            folder = tmp_path / "odd"
            running = supervisor.start(spec, folder, lambda *_: _Ended())
            shutil.copytree(contents, folder / "blobs", dirs_exist_ok=True)
            (folder / "observation.json").write_text(canonical(changed), encoding="utf-8")
            record = running.poll()
            assert Record.from_text(record.text()).text() == record.text(), (number, changed)
            archive.add(folder)
            kinds.add(record.outcome.kind)
            shutil.rmtree(folder)
    assert kinds >= {"died", "finished"}


def mutations(value, turn=None):
    """`value` with one thing inside it replaced: the whole by every odd thing, each inner one by the next five."""
    yield from ODD if turn is None else itertools.islice(turn, 5)
    turn = turn or itertools.cycle(ODD)
    if isinstance(value, dict):
        for key, inside in value.items():
            for changed in mutations(inside, turn):
                yield {**value, key: changed}
    elif isinstance(value, list) and value:
        for changed in mutations(value[0], turn):
            yield [changed, *value[1:]]
