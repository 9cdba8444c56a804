"""What a case does to rights, as it shows to an ordinary user: root, as whom tests mostly run, may read all the same.

Where the tests run as root, the sweep is started through `setpriv`, as somebody without groups and capabilities.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
import roots
from conftest import missing
from test_faults import FAULTS, NAMES, beside, named
from test_sweep import GOOD, PROCESSES, archived, project, rows, wait_for

from experiments.core import folders
from experiments.core.record import Record
from experiments.runner import supervisor

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc")

SOMEBODY = 65534
PLAIN = PROCESSES // 2 + 1
"""Plain passes of the ordinary scenario: its reference runs twice, as nothing else tells that it repeats itself."""
OF_RIGHTS = tuple(
    name for name in NAMES if name.startswith(("deletes_", "leaves_folders", "moves_", "replaces_", "sets_", "takes_"))
)
"""The faults whose harm root does not feel."""


TRIED = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
"""What an interpreter must be able to do for them: a sweep starts others."""


@pytest.fixture(scope="module")
def somebody():
    """What a command begins with that an ordinary user is to run: a change of user, and an interpreter."""
    if os.geteuid() != 0:
        yield [sys.executable]
        return
    program = shutil.which("setpriv") or missing("the program setpriv")
    change = [program, f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups", "--inh-caps=-all"]
    with folders.temporary_folder("twofold-python-", Path("/tmp")) as folder:
        folder.chmod(0o755)
        for python in interpreters(folder):
            if subprocess.run([*change, python, "-c", TRIED], cwd="/", capture_output=True).returncode == 0:
                yield [*change, python]
                return
        missing("an interpreter that an ordinary user may start")


def interpreters(folder: Path):
    """This one, and, as it may lie in a folder of root's, the system's own with the same packages."""
    yield sys.executable
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if (
        Path(system).exists()
        and subprocess.run([system, "-m", "venv", "--without-pip", folder / "own"]).returncode == 0
    ):
        (site,) = (folder / "own" / "lib").glob("python*/site-packages")
        (site / "these.pth").write_text(sysconfig.get_path("purelib"))
        yield str(folder / "own" / "bin" / "python")


@pytest.fixture
def home(somebody):
    """A folder of theirs: that of pytest is root's alone."""
    made = Path(tempfile.mkdtemp(prefix="twofold-user-", dir="/tmp"))
    yield made
    for process in beside(made):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)
    assert folders.remove(made)


def given(home: Path, **scenarios: str) -> Path:
    root = project(home / "project", **scenarios)
    (home / "temporary").mkdir()
    return root


def handed_over(home: Path) -> None:
    if os.geteuid() == 0:
        for place, names, files in os.walk(home):
            for name in (".", *names, *files):
                os.chown(Path(place) / name, SOMEBODY, SOMEBODY, follow_symlinks=False)


def start(somebody: list[str], root: Path, *overrides: str) -> subprocess.Popen:
    where = {"HOME": str(root.parent), "TMPDIR": str(root.parent / "temporary"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        [*somebody, "-m", "experiments", "tracking=none", "report=false", "passes=[plain]", *overrides],
        cwd=root,
        env=os.environ | where,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(somebody: list[str], root: Path, *overrides: str) -> tuple[int, str]:
    driver = start(somebody, root, *overrides)
    out, err = driver.communicate(timeout=600)
    assert "Traceback" not in err, err
    return driver.returncode, out + err


def nothing_left(root: Path) -> bool:
    sweeps = [path for path in (root / "outputs" / "sweeps").iterdir() if path.is_dir()]
    return not sweeps and not list((root.parent / "temporary").iterdir()) and not beside(root)


def swept_with(faults: tuple[str, ...], somebody: list[str], home: Path, isolation: str) -> None:
    """Each fault ends as its file says, which is how it ends for root; the others go on; the same command works."""
    root = given(home, ordinary=GOOD)
    family = root / "experiments" / "scenarios" / "faults"
    family.mkdir()
    for name in faults:
        shutil.copyfile(FAULTS / f"{name}.py", family / f"{name}.py")
    handed_over(home)
    for sweep in (1, 2):
        status, said = run(somebody, root, f"isolation={isolation}", "workers=2")
        assert status == 0, said
        texts = rows(root / "outputs" / "archive.db", "select text from records")
        records = [Record.from_text(text) for (text,) in texts]
        assert len(records) == sweep * (2 * len(faults) + PLAIN)
        for record in records:
            question, outcome = record.spec.question, record.outcome
            if question.case != "hurts":
                assert outcome.kind == "finished", (question, outcome)
                continue
            expected = named(question.scenario.partition("/")[2], isolation)
            found = {name: getattr(outcome, name) for name in ("kind", "phase", "detail") if name in expected}
            assert found == {name: expected[name] for name in found}, (question.scenario, outcome)
        assert nothing_left(root)


def test_a_fault_ends_for_an_ordinary_user_as_it_does_for_root(somebody, home):
    assert len(OF_RIGHTS) >= 12
    swept_with(OF_RIGHTS, somebody, home, "forked")


@pytest.mark.slow
def test_a_fault_in_a_fresh_process_ends_for_an_ordinary_user_as_it_does_for_root(somebody, home):
    swept_with(OF_RIGHTS, somebody, home, "fresh")


LEAVING = (
    GOOD.replace("import torch\n", "import os\nimport time\n\nimport torch\n", 1)
    + """

@scenario.control(agrees(bitwise=True), why="the first time it hurts its folder and waits to be killed")
def hurts(scores):
    mark = os.environ["TWOFOLD_TEST_MARK"]
    if not os.path.exists(mark):
        os.mkdir("inside")
        os.mkfifo("../record.json")
        for place in ("inside", "../..", ".."):
            os.chmod(place, 0)
        open(mark, "w").close()
        time.sleep(600)
    return loss(scores, 1.0)
"""
)


def test_what_a_killed_driver_leaves_without_rights_stops_nobody(somebody, home):
    """Neither folders that cannot be looked into nor a pipe in the place of a record."""
    root = given(home, leaving=LEAVING)
    handed_over(home)
    asked = ("isolation=fresh", "workers=1", f"+environment.variables.TWOFOLD_TEST_MARK={home / 'mark'}")
    driver = start(somebody, root, *asked)
    wait_for(lambda: driver.poll() is not None or (home / "mark").exists())
    driver.kill()
    driver.communicate()
    wait_for(lambda: not beside(root), 30)
    status, said = run(somebody, root, *asked)
    assert status == 0, said
    assert "resuming sweep" in said
    assert archived(root) == PLAIN + 1
    assert nothing_left(root)


ABOVE = (
    GOOD.replace("import torch\n", "import os\n\nimport torch\n", 1)
    .replace("    return loss(scores, 2.0)\n", '    os.chmod("../..", 0)\n    return loss(scores, 2.0)\n')
    .replace("differs(by_at_least=0.001)", "dies()")
    .replace("differs, observe", "dies, observe")
)


def test_the_rights_of_the_sweep_s_folder_are_given_back(somebody, home):
    """The case cannot write down what it did; those after it can."""
    root = given(home, above=ABOVE)
    handed_over(home)
    for _ in range(2):
        status, said = run(somebody, root, "isolation=forked", "workers=1")
        assert status == 0, said
        assert nothing_left(root)


# What cannot be put right.


class _Ended:
    pid = 0

    def poll(self):
        return 0

    def close(self):
        pass


@contextlib.contextmanager
def being_somebody():
    """This process, for as long as it takes, without what makes root root."""
    before = os.geteuid(), os.getegid()
    os.setegid(SOMEBODY)
    os.seteuid(SOMEBODY)
    try:
        yield
    finally:
        os.seteuid(before[0])
        os.setegid(before[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="somebody else's folder can only be planted by root")
def test_a_folder_that_cannot_be_read_is_the_end_of_its_case_alone(lab_spec, home):
    """What belongs to somebody else stays where it is, and the record lies beside it."""
    scratch = home / "scratch"
    scratch.mkdir()
    handed_over(home)
    with being_somebody():
        running = supervisor.start(lab_spec, scratch / "one", lambda *_: _Ended())
    (scratch / "one" / "blobs" / "inside").mkdir(mode=0o700)
    os.chown(scratch / "one" / "blobs", 0, 0)
    (scratch / "one" / "blobs").chmod(0o700)
    with being_somebody():
        record = running.poll()
    assert running.folder == scratch / "one-2"
    assert (record.outcome.kind, record.outcome.detail) == (
        "died",
        "its folder cannot be read: Permission denied",
    )
    assert Record.from_text((running.folder / "record.json").read_text()) == record
    with being_somebody():
        assert folders.free_path(scratch / "one") == scratch / "one-2", "what was archived makes room for the next"
    assert (scratch / "one" / "blobs" / "inside").is_dir()


@pytest.fixture
def lab_spec(tmp_path):
    root = roots.root(tmp_path / "root", {"tests/ordinary": GOOD})
    return roots.spec(root, "tests/ordinary", "plainly", isolation="fresh")
