"""A capsule as whoever receives it runs it: elsewhere, with torch and nothing else, and without a trace."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import roots
from test_interpreters import needed
from test_sweep import GOOD, project, run, store

from experiments.capsule import anonymize, archive, main
from experiments.core.canonical_json import digest
from experiments.core.record import Record

TELLING = (
    GOOD.replace("differs(by_at_least=0.001)", 'raises(RuntimeError, "cannot open")')
    .replace("differs, observe", "differs, observe, raises")
    .replace("import torch\n", "import pathlib\nimport platform\n\nimport torch\n", 1)
    .replace(
        "    return loss(scores, 2.0)\n",
        "    home = pathlib.Path.home()\n"
        '    raise RuntimeError(f"cannot open {home}/a and /data/{home.name}/b on {platform.node()}")\n',
    )
)
CASES = 3
"""Of GOOD: its reference, and two more."""


def python(folder: Path, packages: Path | None, customized: str = "") -> str:
    """An interpreter of its own with these packages, and what its `sitecustomize` says."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for path in packages.iterdir() if packages is not None else ():
        (site / path.name).symlink_to(path)
    (site / "sitecustomize.py").write_text(customized)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def torch_alone(tmp_path_factory) -> Path:
    """A folder with torch and what it requires."""
    folder, found = tmp_path_factory.mktemp("packages"), {}
    needed("torch", found)
    for distribution in found.values():
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (folder / top).exists() and not top.endswith(".pth"):
                (folder / top).symlink_to(distribution.locate_file(top))
    return folder


@pytest.fixture(scope="module")
def bare(torch_alone, tmp_path_factory) -> str:
    return python(tmp_path_factory.mktemp("bare"), torch_alone)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A clone without evidence, which has made a capsule: it sweeps first."""
    root = project(tmp_path_factory.mktemp("home"), good=GOOD, telling=TELLING)
    ended = run(root, "capsule=one.pyz", "tracking=none", "isolation=forked", "passes=[plain]")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "no evidence of this machine yet: sweeping first" in ended.stderr
    assert "one.pyz: " in ended.stdout
    return root


def carried(home: Path, folder: Path) -> Path:
    """The capsule, in an empty folder of somebody who has an `experiments` of their own."""
    (folder / "experiments").mkdir(parents=True)
    (folder / "experiments" / "__init__.py").write_text("raise RuntimeError('the wrong experiments')\n")
    shutil.copyfile(home / "one.pyz", folder / "one.pyz")
    return folder


def start(program: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the capsule where neither home nor the place for temporary files can be written."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere/annamaria", "TMPDIR": "/nowhere", **variables}
    return subprocess.run(
        [program, "one.pyz", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def elsewhere(home, bare, tmp_path_factory):
    """The capsule run once with torch alone, looked at by several tests."""
    folder = carried(home, tmp_path_factory.mktemp("elsewhere") / "empty")
    return folder, start(bare, folder, USER="annamaria", LOGNAME="annamaria")


def evidence(folder: Path) -> Path:
    (found,) = folder.glob("evidence-*.zip")
    return found


# Making it.


def test_the_same_evidence_makes_the_same_bytes(home, tmp_path):
    other = tmp_path / "another clone"
    shutil.copytree(home, other, ignore=shutil.ignore_patterns("*.pyz", "__pycache__"))
    ended = run(other, "capsule=again.pyz", "tracking=none", "isolation=forked", "passes=[plain]")
    assert ended.returncode == 0, ended.stderr
    assert "sweeping first" not in ended.stderr
    assert (other / "again.pyz").read_bytes() == (home / "one.pyz").read_bytes()


def test_another_sweep_of_the_same_evidence_makes_the_same_bytes(home, tmp_path):
    """A capsule holds what is to be compared, and nothing of when and how fast it was."""
    other = project(tmp_path / "other", good=GOOD, telling=TELLING)
    assert run(other, "capsule=one.pyz", "tracking=none", "isolation=forked", "passes=[plain]").returncode == 0
    assert (other / "one.pyz").read_bytes() == (home / "one.pyz").read_bytes()


def test_it_holds_the_program_as_it_lies_here(home):
    with zipfile.ZipFile(home / "one.pyz") as file:
        for name in (
            "runner/supervisor.py",
            "core/verdict.py",
            "core/agreement.py",
            "worker/case.py",
            "worker/__main__.py",
        ):
            assert file.read(f"{archive.PACKAGE}/{name}") == (roots.PROJECT / "experiments" / name).read_bytes()
        assert f"{archive.PACKAGE}/scenarios/tests/good.py" in file.namelist()
        assert not [name for name in file.namelist() if "config" in name or "catalogue" in name]
    assert (home / "one.pyz").stat().st_size < archive.LARGEST


def test_it_imports_the_standard_library_alone(home, tmp_path):
    """Whatever else is installed: an interpreter without any package lists the cases."""
    ended = start(python(tmp_path / "nothing", None), carried(home, tmp_path / "empty"), "--list")
    assert ended.returncode == 0, ended.stderr
    assert "tests/good\n  reference cpu  plainly\n" in ended.stdout
    assert re.search(r"broken +cuda +otherwise", ended.stdout), "home has no such device, elsewhere may"


def test_one_that_would_be_too_large_is_refused(home, tmp_path, monkeypatch):
    content = archive.read(home / "one.pyz")
    monkeypatch.setattr(archive, "LARGEST", 1000)
    with pytest.raises(archive.CapsuleError, match="choose fewer scenarios"):
        archive.write(tmp_path / "two.pyz", home, content)
    assert list(tmp_path.iterdir()) == []


# Running it.


def test_it_agrees_on_the_same_machine_with_torch_alone(elsewhere):
    _, ended = elsewhere
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^case +here +there +agreement +first difference", ended.stdout)
    assert len(re.findall(r"^\w.* finished +identical$", ended.stdout, re.MULTILINE)) == 2 * CASES - 1
    assert f"{2 * CASES} cases: {2 * CASES} identical" in ended.stdout
    assert re.search(
        r"^otherwise +RuntimeError in forward +RuntimeError in forward +identical", ended.stdout, re.MULTILINE
    )
    assert "Traceback" not in ended.stderr


def test_it_leaves_nothing_but_the_evidence(elsewhere):
    folder, ended = elsewhere
    assert {path.name for path in folder.iterdir()} == {"experiments", evidence(folder).name, "one.pyz"}
    assert re.fullmatch(r"evidence-.+-\d{4}-\d\d-\d\d\.zip", evidence(folder).name)
    assert f"evidence: {evidence(folder).name}" in ended.stdout
    assert not Path("/nowhere").exists()


def test_its_evidence_is_taken_in_at_home_once(home, elsewhere):
    file = str(evidence(elsewhere[0]))
    assert store(home, "check", file).returncode == 0
    before = len(json.loads(store(home, "list", "--json").stdout))
    for _ in range(2):
        assert store(home, "add", file).returncode == 0
        assert len(json.loads(store(home, "list", "--json").stdout)) == before + 6
    ended = subprocess.run(
        [sys.executable, "-m", "reports", "write"], cwd=home, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    shown = (home / ended.stdout.strip()).read_text()
    assert re.search("has exactly the evidence of .*capsule", shown)


def test_under_another_capability_it_says_how_far_it_agrees(home, bare, tmp_path):
    folder = carried(home, tmp_path / "empty")
    ended = start(bare, folder, "--json", "--only", "tests/good", ATEN_CPU_CAPABILITY="default")
    found = json.loads(ended.stdout)
    ranks = [case["rank"] for case in found["cases"]]
    assert len(ranks) == CASES
    assert ended.returncode == found["exit status"] == (0 if max(ranks) <= 2 else 1), found
    assert found["other facts"]["variables.ATEN_CPU_CAPABILITY"] == {"here": "default", "there": "not set"}
    assert all(case["rule"] for case in found["cases"])


def altered(home: Path, target: Path, change) -> None:
    """The capsule with another evidence of home."""
    content = archive.read(home / "one.pyz")
    records = tuple(change(record) if record.spec.question.case == "again" else record for record in content.records)
    archive.write(target, home, replace(content, records=records))


def test_something_that_differs_is_named_and_ends_with_1(home, bare, tmp_path):
    folder = carried(home, tmp_path / "empty")
    died = lambda record: replace(  # noqa: E731
        record, outcome=replace(record.outcome, kind="died", phase=None, detail="SIGSEGV"), observation=None
    )
    altered(home, folder / "one.pyz", died)
    ended = start(bare, folder, "--only", "again")
    assert ended.returncode == 1
    assert re.search(
        r"^again +finished +died \(SIGSEGV\) +different outcome +plain pass: finished", ended.stdout, re.MULTILINE
    )
    assert evidence(folder), "what differs is what somebody wants to see"


def test_what_was_not_run_at_home_is_listed_and_no_failure(home, bare, tmp_path):
    folder = carried(home, tmp_path / "empty")
    content = archive.read(home / "one.pyz")
    kept = tuple(record for record in content.records if record.spec.question.case != "again")
    archive.write(folder / "one.pyz", home, replace(content, records=kept))
    ended = start(bare, folder, "--only", "tests/good")
    assert ended.returncode == 0
    assert re.search(r"^again +finished +no record +not compared +it was not run where", ended.stdout, re.MULTILINE)
    only = start(bare, folder, "--only", "again")
    assert "plainly" in only.stdout, "the reference of a case comes with it"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "nothing*"), "no case matches nothing*; --list shows them"),
        (("--device", "cuda"), "nothing can be run here: the cases need cuda"),
        (("--output", "nowhere"), "--output nowhere: there is no such folder"),
        (("--workers", "0"), "'0' is no number of processes; give 1 or more"),
        (("--planted",), "unrecognized arguments: --planted"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_run_is_said_and_ends_with_2(home, bare, tmp_path, arguments, said):
    folder = carried(home, tmp_path / "empty")
    ended = start(bare, folder, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["experiments", "one.pyz"]


def test_without_torch_it_says_what_it_takes(home, tmp_path):
    ended = start(python(tmp_path / "nothing", None), carried(home, tmp_path / "empty"))
    assert ended.returncode == 2
    assert "No module named 'torch'" in ended.stderr
    assert "/path/to/python capsule.pyz" in ended.stderr


def test_a_damaged_one_is_refused(home, bare, tmp_path):
    folder = carried(home, tmp_path / "empty")
    with zipfile.ZipFile(home / "one.pyz") as file, zipfile.ZipFile(folder / "one.pyz", "w") as damaged:
        for name in file.namelist():
            content = file.read(name)
            damaged.writestr(name, content[:-1] + b"\xff" if name == "content.bin" else content)
    ended = start(bare, folder)
    assert ended.returncode == 2
    assert "is damaged: a tensor has not its digest; get the capsule again" in ended.stderr


def test_help_says_ranks_and_statuses(home, bare, tmp_path):
    ended = start(bare, carried(home, tmp_path / "empty"), "--help")
    for word in ("equal within rounding", "1 something differs", "2 could not run", "--anonymous", "--workers"):
        assert word in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    "stop",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_interrupted_it_leaves_nothing(home, tmp_path, bare, stop):
    """Within the first of its cases, each of which takes the seconds that a fresh interpreter does."""
    folder = carried(home, tmp_path / "empty")
    command = [bare, "one.pyz", "--workers", "1"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    roots.until(lambda: list(folder.glob(".capsule-*/running/*/phase")))
    process.send_signal(stop)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, "")
    assert "interrupted; nothing was written" in err
    assert sorted(path.name for path in folder.iterdir()) == ["experiments", "one.pyz"]


# What is in the evidence.


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_anonymous_evidence_names_no_host_no_user_and_no_path(home, bare, tmp_path):
    folder = carried(home, tmp_path / "empty")
    ended = start(bare, folder, "--anonymous", USER="annamaria", LOGNAME="annamaria")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert evidence(folder).name.startswith("evidence-anonymous-")
    found = contents(evidence(folder))
    (told,) = {
        record.outcome.message
        for name, text in found.items()
        if name.startswith("records/") and (record := Record.from_text(text.decode())).outcome.kind == "raised"
    }
    assert told == "cannot open home/a and PATH on NAME", "what it was about is still there"
    hosts = {json.loads(text)["host"] for text in found.values() if text.startswith(b'{"compiler"')}
    assert hosts == {"anonymous"}
    for text in found.values():
        for word in (b"annamaria", str(tmp_path).encode(), b"/nowhere"):
            assert word not in text
    assert store(home, "check", str(evidence(folder))).returncode == 0


MESSAGES = [
    "torch.utils.checkpoint: A different number of tensors was saved",
    "expected torch.float32 but found torch: float16",
    "module 'torch' has no attribute 'x'",
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_host_called_torch_damages_no_message(message):
    hidden = anonymize.NameHider(names=["annamaria"], ordinary=["torch"])
    assert hidden.clean_value(message) == message


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("connected as anna@torch", "connected as anna@NAME"),
        ("user=torch may not", "user=NAME may not"),
        ("opened by user torch", "opened by user NAME"),
        ("at http://torch/x of torch.nn", "at http://NAME/x of torch.nn"),
        ("/home/torch/x.txt", "PATH"),
        ("written by annamaria", "written by NAME"),
    ],
)
def test_a_word_is_hidden_where_it_can_only_be_a_name(text, shown):
    hidden = anonymize.NameHider(names=["annamaria"], ordinary=["torch"])
    # Below a first paragraph, which is compared and stays.
    assert hidden.clean_value(f"first\n\n{text}") == f"first\n\n{shown}"


def test_what_is_compared_stays_the_same_text(home, monkeypatch):
    """Every message, value and switch of the evidence, for every word that a host may be called."""
    content = archive.read(home / "one.pyz")
    content = replace(content, machine={**content.machine, "host": "another"})
    words = {word for one in content.records for word in re.findall(r"[A-Za-z]{2,}", one.text())}
    monkeypatch.setattr(anonymize, "_local_names", lambda: sorted(words))
    hidden = anonymize.NameHider.for_this_host(content, content.records, content.blobs.get)
    added: dict[str, bytes] = {}
    for record in content.records:
        clean = anonymize.anonymize_record(record, content.blobs.get, added, hidden)
        assert clean.outcome.fingerprint() == record.outcome.fingerprint()
        assert clean.evidence() == record.evidence()


def test_what_could_not_be_hidden_is_said(home, tmp_path, monkeypatch, capsys):
    # A capsule holds less than its records rest on.
    monkeypatch.setattr(main.writer, "members", lambda *_: {})
    monkeypatch.setattr(main, "_sweep_members", lambda *_: {})
    content = archive.read(home / "one.pyz")
    hidden = anonymize.NameHider(names=["annamaria"], ordinary=["float32"])
    # Every record has this word, in what it was asked.
    made = main._write_evidence(content.records, content.blobs.get, tmp_path, hidden)
    said = capsys.readouterr().err
    assert "--anonymous has left 'float32', which names this host or user" in said
    assert made.name in said
    assert "annamaria" not in said


def test_evidence_names_the_host_in_its_file_name_only(elsewhere):
    path = evidence(elsewhere[0])
    assert path.name.startswith(f"evidence-{platform.node()}-")
    found = contents(path)
    machines = [json.loads(text) for text in found.values() if text.startswith(b'{"compiler"')]
    assert machines
    assert all(re.fullmatch(r"[0-9a-f]{12}", machine["host"]) for machine in machines)
    assert not [name for name, text in found.items() if str(path.parent).encode() in text]


def test_a_second_run_keeps_the_first_evidence(home, bare, elsewhere):
    folder, _ = elsewhere
    first = evidence(folder)
    kept = digest(first.read_bytes())
    assert start(bare, folder, "--only", "again").returncode == 0
    second = folder / first.name.replace(".zip", "-2.zip")
    assert second.is_file()
    assert digest(first.read_bytes()) == kept
    second.unlink()


def test_evidence_that_cannot_be_written_takes_nothing_else_with_it(home, elsewhere, monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(main, "_write_evidence", full)
    asked = main._parser().parse_args([])
    asked.json = False
    content = archive.read(home / "one.pyz")
    machine = content.machine
    status = main._report_results(content, content.records, home / "nothing ran here", machine, asked)
    said = capsys.readouterr()
    assert status == 2
    assert "6 cases: 6 identical" in said.out
    assert "evidence could not be written to .: No space left on device; give --output FOLDER" in said.err


# Other systems.

UNLIKE = """
import os, sys
for name in ("fork", "forkpty", "killpg", "waitid", "getpgrp", "setpgid", "setsid", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["resource"] = None
"""
"""A system without process groups, forks and limits, as Windows is; what else Windows lacks cannot be shown here."""


def test_it_runs_where_there_are_no_forks_groups_or_limits(home, torch_alone, tmp_path):
    program = python(tmp_path / "unlike", torch_alone, UNLIKE)
    folder = carried(home, tmp_path / "empty")
    ended = start(program, folder, "--workers", "2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "this system has no process groups: what a case starts and leaves behind is not ended" in ended.stderr
    assert f"{2 * CASES} cases: {2 * CASES} identical" in ended.stdout
    assert {path.name for path in folder.iterdir()} == {"experiments", evidence(folder).name, "one.pyz"}
