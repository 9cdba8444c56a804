"""The archive from the command line, as a process: what it prints, where, and how it ends."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from commands import forked, started

from experiments.core.canonical_json import digest
from experiments.core.observation import Observed, Operator, StateChange
from store.archive import Archive

ROOT = Path(__file__).parents[1]


@pytest.fixture
def archive(tmp_path):
    with Archive.open(f"sqlite:///{tmp_path}/outputs/archive.db", tmp_path / "outputs/blobs") as opened:
        yield opened


@pytest.fixture
def kept(archive):
    """Digest of a record that is there."""
    return archive.add_text(samples.record(seed=1).text(), samples.contents(1).get)


def store(folder, *arguments, status=0, **environment):
    """Run a command in a folder, as somebody would; gives stdout and stderr."""
    ended = (started if environment else forked)("store", folder, *arguments, **environment)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert ended.returncode == status, ended
    return ended.stdout, ended.stderr


def test_list_shows_records_and_their_filters(tmp_path, archive, kept):
    other = archive.add_text(
        samples.record(seed=2, scenario="attention/mask", kind="died").text(), samples.contents(2).get
    )
    lines = store(tmp_path, "list")[0].splitlines()
    assert lines[0].split()[:3] == ["digest", "started", "outcome"]
    assert {line.split()[0] for line in lines[1:]} == {kept[:12], other[:12]}
    for filters in (("--scenario", "checkpoint/*"), ("--outcome", "finished")):
        assert [one["digest"] for one in json.loads(store(tmp_path, "list", "--json", *filters)[0])] == [kept]


def test_list_shows_sweeps_and_their_records(tmp_path, archive):
    asked = samples.spec()
    sweep = archive.begin_sweep([asked, samples.spec("other")], "a" * 64).id
    name = archive.add_text(samples.record(asked=asked).text(), samples.contents().get, sweep)
    assert f"{sweep}" in store(tmp_path, "list", "--sweeps")[0]
    assert "1 of 2" in store(tmp_path, "list", "--sweeps")[0]
    assert json.loads(store(tmp_path, "list", "--sweeps", "--json")[0])[0]["finished"] is False
    assert [one["digest"] for one in json.loads(store(tmp_path, "list", "--sweep", sweep, "--json")[0])] == [name]


def test_show_prints_a_record_for_people(tmp_path, archive, kept):
    archive.add_note(kept, "looked at twice", "somebody")
    shown, _ = store(tmp_path, "show", kept[:10])
    for part in (kept, "checkpoint/policy", "chosen_inside (broken)", "finished", "looked at twice", "query: float32"):
        assert part in shown


def test_show_as_json_is_the_text_whose_digest_it_is(tmp_path, kept):
    shown, _ = store(tmp_path, "show", "--json", kept)
    assert hashlib.sha256(shown.encode()).hexdigest() == kept


def test_nothing_that_is_shown_commands_the_terminal(tmp_path, archive):
    """A message of an error may hold anything; escape sequences can rewrite what was printed before."""
    message = "red \x1b[31m\x07\u202e\x85 and\nnext"
    record = samples.record(kind="raised", message=message, case="bad\x1bcase")
    name = archive.add_text(record.text(), samples.contents().get)
    archive.add_note(name, "\x1b]0;title\x07", "\x1b")
    for shown in (store(tmp_path, "show", name)[0], store(tmp_path, "list")[0], store(tmp_path, "list", "--json")[0]):
        assert not set(shown) & set("\x1b\x07\x85")
    assert r"red \x1b[31m\x07\u202e\x85 and" in store(tmp_path, "show", name)[0]


def test_what_the_terminal_cannot_write_is_escaped(tmp_path, archive):
    name = archive.add_text(samples.record(kind="raised", message="größer ≠").text(), samples.contents().get)
    shown, _ = store(tmp_path, "show", name, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert r"gr\xf6\xdfer \u2260" in shown


def test_check_says_what_does_not_match(tmp_path, kept):
    shown, _ = store(tmp_path, "check")
    assert "1 records" in shown
    name = digest(samples.tensor(1))
    path = tmp_path / "outputs/blobs" / name[:2] / name
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert store(tmp_path, "check", status=1)[0].startswith(f"{name}: blob {name} has the digest")
    assert json.loads(store(tmp_path, "check", "--json", status=1)[0])["problems"][0]["digest"] == name


def test_check_looks_at_another_archive_with_its_blobs_beside_it(tmp_path, kept):
    assert "1 records" in store(tmp_path.parent, "check", tmp_path / "outputs/archive.db")[0]


def test_a_bundle_is_exported_checked_and_added(tmp_path, archive, kept):
    assert store(tmp_path, "export", kept[:8], "sent.zip") == ("sent.zip\n", "")
    assert "no problems" in store(tmp_path, "check", "sent.zip")[0]
    shown, said = store(tmp_path, "add", "sent.zip", "--archive", "sqlite:///other/archive.db")
    assert shown == f"{kept}\n"
    assert said == (
        "store: sent.zip carries no sweep, only records: `python -m reports sent.zip` reports on them\n"
        "1 records are in the archive, 0 of what was given was refused\n"
    )
    content = bytearray((tmp_path / "sent.zip").read_bytes())
    content[len(content) // 3] ^= 1
    (tmp_path / "sent.zip").write_bytes(content)
    assert store(tmp_path, "check", "sent.zip", status=1)[0]
    assert "refused and nothing was added" in store(tmp_path, "add", "sent.zip", status=2)[1]


def test_a_sweep_is_exported(tmp_path, archive):
    asked = samples.spec()
    sweep = archive.begin_sweep([asked], "a" * 64).id
    name = archive.add_text(samples.record(asked=asked).text(), samples.contents().get, sweep)
    made = json.loads(store(tmp_path, "export", "--json", "--sweep", sweep, "sweep.zip")[0])
    assert made == {"file": "sweep.zip", "records": [name]}
    assert "name either records or a sweep" in store(tmp_path, "export", "sweep.zip", status=2)[1]


# Two records side by side.


def pair(archive, *changes, **more):
    """Two records of one case, whose second is changed so; gives their digests."""
    bench = samples.Bench()
    first = bench.record(samples.spec(), bench.tensor("gradient", "x", (1.0, 2.0)), **more)
    second = bench.record(samples.spec(), bench.tensor("gradient", "x", (1.0, 2.0)), **more)
    for change in changes:
        second = change(bench, second)
    second = replace(second, ending=replace(second.ending, duration=9.5))
    return [archive.add_text(one.text(), bench.blobs.get) for one in (first, second)]


def seen(record, **changes):
    return replace(record, observation=replace(record.observation, **changes))


def other_tensor(bench, record):
    return seen(record, tensors=(bench.tensor("gradient", "x", (1.0, 2.5)),))


def other_machine(bench, record):
    machine = {**samples.facts(), "cpu": {**samples.facts()["cpu"], "capability": "AVX2"}}
    return seen(record, machine=bench.keep(json.dumps(machine, sort_keys=True, separators=(",", ":")).encode()))


def other_error(_, record):
    ended = samples.outcome("raised", "a line\nshapes [2, 4]\x1b")
    return replace(seen(record, outcome=ended), outcome=ended)


def other_operators(_, record):
    made = tuple(Operator(0, 0, f"aten::{name}", ((2, 4),)) for name in ("mm", "flash", "sum"))
    return seen(record, operators={"forward": made})


def other_values(_, record):
    changed = (StateChange("a switch", False, True),)
    return seen(record, observed=(Observed("calls", 3, "evidence", None),), state=changed)


def test_records_of_equal_evidence_differ_in_measurements_alone(tmp_path, archive):
    shown, _ = store(tmp_path, "diff", *pair(archive))
    assert "evidence: equal" in shown
    assert re.search(r"duration of the process +1.25 s +9.5 s", shown)
    for part in ("machine: 13 equal, 0 different", "question: 9 equal, 0 different", "tensors: 1 equal, 0 different"):
        assert part in shown


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            other_tensor,
            r"tensors: 0 equal, 1 different\n .*largest difference 0.5, 2.1e\+06 ULP, 1 of 2 with equal bits",
        ),
        (other_error, r"outcome: finished against raised\n(.*\n)+ +message, line 1 +- +a line"),
        (other_operators, r"operators of forward: 0 and 3; 3 of 3 places differ, the first is 0\n +0 < +- +aten::mm"),
        (
            other_values,
            r"observed: 0 equal, 1 different\n +calls +- +3\n\nstate left changed: .*\n +a switch +- +false -> t",
        ),
    ],
)
def test_what_differs_in_the_evidence_is_shown_and_is_status_1(tmp_path, archive, change, says):
    shown, _ = store(tmp_path, "diff", *pair(archive, change), status=1)
    assert "evidence: different" in shown
    assert re.search(says, shown), shown
    assert "\x1b" not in shown


def test_of_facts_only_those_that_differ_are_listed(tmp_path, archive):
    """A machine is no evidence."""
    shown, _ = store(tmp_path, "diff", *pair(archive, other_machine))
    assert re.search(r"machine: 12 equal, 1 different\n +cpu.capability +AVX512 +AVX2\n\n", shown)


def test_operators_are_aligned_with_what_is_around(tmp_path, archive):
    whole = tuple(Operator(0, 0, f"aten::op{at}", ((2,),)) for at in range(30))

    def one_more(_, record):
        return seen(record, operators={"forward": (*whole[:20], Operator(0, 0, "aten::more", ()), *whole[20:])})

    shown, _ = store(tmp_path, "diff", *pair(archive, one_more, operators={"forward": whole}), status=1)
    assert "30 and 31; 1 of 31 places differ, the first is 20" in shown
    assert re.search(r" +19 +aten::op19 \(2\) +aten::op19 \(2\)\n +20 < +- +aten::more \(\)\n +21 ", shown)
    assert "aten::op16 " not in shown


def test_records_are_compared_out_of_bundles(tmp_path, archive):
    first, second = pair(archive, other_tensor)
    for name in (first, second):
        store(tmp_path, "export", name, f"{name[:4]}.zip")
    store(tmp_path, "export", first, second, "both.zip")
    for named in ((first[:9], f"both.zip:{second[:9]}"), (f"{first[:4]}.zip", f"{second[:4]}.zip")):
        assert "largest difference 0.5" in store(tmp_path, "diff", *named, status=1)[0]
    nowhere = ("--archive", "sqlite:///none/archive.db")
    made = json.loads(store(tmp_path, "diff", "--json", f"{first[:4]}.zip", "both.zip:" + first, *nowhere)[0])
    assert (made["records"], made["evidence equal"]) == ([first, first], True)
    assert (
        "both.zip has 2 records whose digest begins with ''" in store(tmp_path, "diff", first, "both.zip", status=2)[1]
    )
    assert (
        "has no record whose digest begins with '00000'"
        in store(tmp_path, "diff", first, "both.zip:00000", status=2)[1]
    )
    assert "no record's digest begins" in store(tmp_path, "diff", first, "0" * 20, status=2)[1]
    assert "none.zip cannot be read" in store(tmp_path, "diff", first, "none.zip", status=2)[1]


def test_folders_are_added_alone_or_together(tmp_path):
    """What a run left behind when its archive failed is taken in later."""
    run = tmp_path / "outputs/sweeps/one"
    for seed in (1, 2):
        samples.folder(run / str(seed), samples.record(seed=seed), seed)
    assert len(store(tmp_path, "add", run / "1")[0].splitlines()) == 1
    assert len(json.loads(store(tmp_path, "add", "--json", run)[0])) == 2
    (run / "1/record.json").write_text("{}")
    shown, said = store(tmp_path, "add", run, status=2)
    assert len(shown.splitlines()) == 1
    assert "one/1: record" in said
    assert "1 of what was given was refused" in said


def test_a_note_is_written(tmp_path, archive, kept):
    store(tmp_path, "note", kept[:8], "under load", "--author", "somebody")
    assert [(note.author, note.text) for note in archive.notes(kept)] == [("somebody", "under load")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("list",), "there is no archive at outputs/archive.db"),
        (("check", "none.zip"), "none.zip cannot be read"),
        (("check", "none.db"), "there is no archive at none.db"),
        (("add", "none"), "none is no bundle (.zip) and holds no record.json"),
        (("add", "none.zip"), "none.zip cannot be read: No such file"),
        (("list", "--archive", "x"), "not a database URL"),
        (("lists",), "invalid choice: 'lists'"),
        ((), "required: COMMAND"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_status_2(tmp_path, arguments, says):
    shown, said = store(tmp_path, *arguments, status=2)
    assert says in said
    assert shown == ""


def test_unknown_records_and_sweeps_are_sentences(tmp_path, kept):
    assert "no record's digest begins with" in store(tmp_path, "show", "0" * 20, status=2)[1]
    assert "there is no sweep 'x'" in store(tmp_path, "list", "--sweep", "x", status=2)[1]


@pytest.mark.parametrize("command", ["list", "show", "diff", "check", "add", "note", "export"])
def test_help_has_examples(tmp_path, command):
    assert f"python -m store {command}" in store(tmp_path, command, "--help")[0]


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path, archive):
    for seed in range(3):
        archive.add_text(samples.record(seed=seed, case="x" * 50_000).text(), samples.contents(seed).get)
    process = subprocess.Popen(
        [sys.executable, "-m", "store", "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert said == b""


def test_only_publishing_imports_mlflow(tmp_path):
    """It takes seconds, and an archive can be read where it is not installed."""
    code = "import sys; sys.modules['mlflow'] = None; from store.__main__ import main; sys.exit(main(['list']))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (ended.returncode, "there is no archive" in ended.stderr) == (2, True)


def test_a_question_mark_in_the_path_of_an_archive_is_explained(tmp_path):
    """It begins what is no part of the path, so that another file was looked for."""
    for address, hint in (("x#1?y/archive.db", True), ("x#1/archive.db", False)):
        _, said = store(tmp_path, "list", "--archive", f"sqlite:///{tmp_path}/{address}", status=2)
        assert said.startswith(f"store: there is no archive at {tmp_path}/x#1")
        assert said.endswith("a ? in a path is written %3F\n") is hint
