"""A bundle is enough: report and claims come from it without an archive, and after `store add` as after a sweep."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import samples
from test_across import Lab, facts, kept
from test_bundle import crafted, members

from experiments.bundle import layout
from reports import build
from reports.__main__ import main
from reports.sources import BundleSource
from store.__main__ import main as store
from store.archive import Archive, ArchiveError
from store.bundles import add_bundle, export_bundle

ROOT = Path(__file__).parents[1]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, where nothing was published and nothing has run."""
    (tmp_path / "published").mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(build, "PUBLISHED", tmp_path / "published")
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path


def sent(lab, place, name, *replays):
    """A bundle of a sweep of these replays, made elsewhere, and the sweep."""
    archive, sweep = kept(place, name, *(one.plain for one in replays), bench=lab.bench)
    with archive:
        export_bundle(archive, [], place / f"{name}.zip", sweeps=[sweep])
    return place / f"{name}.zip", sweep


@pytest.fixture
def ours(place):
    lab = Lab()
    return sent(lab, place, "ours", lab.replay("a"), lab.replay("b"))


@pytest.fixture
def theirs(place):
    """Another machine, whose second case is another, and which ran one more."""
    lab, there = Lab(), facts("two", cap="AVX2")
    replays = [lab.replay("a", on=there), lab.replay("b", (1.0, 2.5), on=there), lab.replay("c", on=there)]
    return sent(lab, place, "theirs", *replays)


def without_sweep(path):
    """The file as it was before bundles carried sweeps."""
    whole = {name: one for name, one in members(path).items() if not name.startswith(layout.OF_SWEEPS)}
    return crafted(path, whole, sealed=False)


def report(capsys):
    return Path(capsys.readouterr().out.strip()).read_text()


def test_a_report_is_written_where_nothing_has_run(place, ours, capsys):
    path, sweep = ours
    assert main([str(path)]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("outputs/reports/ours.md\n", "")
    text = Path("outputs/reports/ours.md").read_text()
    assert f"# Evidence report: sweep `{sweep}`" in text
    assert "Replays: 2 as expected" in text
    assert sorted(one.name for one in Path("outputs").iterdir()) == ["reports"], "no archive is made"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_report_that_cannot_be_written_is_a_sentence_and_leaves_nothing(place, ours, capsys, monkeypatch, number):
    """A full disk left half a file, and none was named by the name that was asked for."""

    def fails(path, content):
        with path.open("wb") as file:
            file.write(content[:10])
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", fails)
    assert main([str(ours[0]), "--to", "here"]) == 2
    out, err = capsys.readouterr()
    why = f"cannot be written: {os.strerror(number)}; name another place with --to FOLDER\n"
    assert re.fullmatch(rf"reports: here/ours\.[a-z.]+ {re.escape(why)}", err)
    assert out == ""
    assert list(Path("here").iterdir()) == []


def test_a_report_below_a_file_is_a_sentence(place, ours, capsys):
    Path("here").touch()
    assert main([str(ours[0]), "--to", "here"]) == 2
    assert "cannot be written: File exists: here; name another place with --to FOLDER" in capsys.readouterr().err


def test_the_report_on_a_bundle_is_that_on_its_sweep(place, ours):
    """The same records, the same bytes, wherever they lie."""
    path, sweep = ours
    with Archive.open(f"sqlite:///{place}/ours.db", place / "ours") as archive, BundleSource(path) as source:
        for published in (None, place / "published"):
            made = build.make_report(archive, sweep, "stem", published)
            assert build.make_report(source, sweep, "stem", published).text == made.text


def test_what_is_changed_in_a_bundle_changes_its_report(place, ours, capsys):
    path, _ = ours
    main([str(path), "--alone"])
    before = report(capsys)
    lab = Lab()
    path, _ = sent(lab, place, "other", lab.replay("a"), lab.replay("b", ended=samples.outcome("raised", "no")))
    main([str(path), "--alone"])
    assert "raised RuntimeError" in report(capsys)
    assert "raised RuntimeError" not in before


def test_an_older_bundle_is_taken_as_one_sweep_and_that_is_said(place, ours, capsys):
    path = without_sweep(ours[0])
    assert main([str(path)]) == 0
    said = capsys.readouterr()
    assert said.err == "reports: ours.zip carries no sweep; its 2 records are taken as one\n"
    text = Path(said.out.strip()).read_text()
    assert "# Evidence report: sweep `ours`" in text
    assert "Replays: 2 as expected" in text


def test_of_an_older_bundle_of_two_computers_one_is_the_subject(place, capsys):
    """Their records are of the same replays, and would be taken for one another's."""
    lab = Lab()
    there = facts("two")
    replays = [lab.replay("a"), lab.replay("b"), lab.replay("a", (1.0, 9.0), on=there)]
    with Archive.open(f"sqlite:///{place}/both.db", place / "both") as archive:
        names = [archive.add_text(one.plain.text(), lab.bench.blobs.get) for one in replays]
        export_bundle(archive, names, place / "both.zip")
    with BundleSource(place / "both.zip") as source:
        assert {one.observation.machine for one in source.records(sweep="both")} == {replays[0].machine}
        assert len(source.records(sweep="both")) == 2
    assert main([str(place / "both.zip")]) == 0
    assert "different values" in report(capsys), "the other one is compared with it"


def test_a_bundle_is_compared_with_those_that_are_named_and_published(place, ours, theirs, capsys):
    path, _ = ours
    assert main([str(path), str(theirs[0])]) == 0
    assert "**1 different values**" in report(capsys)
    shutil.copy(theirs[0], place / "published" / "lab.zip")
    assert main([str(path), "--gate"]) == 1
    assert "1 of 2 differ from what was published" in capsys.readouterr().err
    assert main([str(path), str(theirs[0]), "--alone"]) == 2
    assert "--alone looks at no other setting" in capsys.readouterr().err
    assert main(["--gate", str(path)]) == 2
    assert "--gate takes the name of a setting" in capsys.readouterr().err


@pytest.mark.parametrize("older", [False, True])
def test_a_published_bundle_is_not_compared_with_itself(place, ours, capsys, older):
    path = shutil.copy(without_sweep(ours[0]) if older else ours[0], place / "published" / "lab.zip")
    for named in ([str(path)], [str(path), str(path)], [str(ours[0])]):
        assert main(named) == 0
        text = report(capsys)
        assert "lab.zip" not in text
        assert main([*named, "--gate"]) == 2
        assert "no case was compared with a published setting" in capsys.readouterr().err


def test_junit_and_summary_are_written_of_a_bundle(place, ours, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "summary.md"))
    assert main([str(ours[0]), "--alone", "--junit", str(place / "junit.xml"), "--github-summary"]) == 0
    assert [suite.get("name") for suite in ET.parse(place / "junit.xml").getroot()] == ["verdicts"]
    assert "Of 2 replays: 2 as expected" in (place / "summary.md").read_text()


def test_claims_are_decided_for_each_file(place, ours, theirs, capsys):
    assert main(["claims", str(ours[0])]) == 0
    alone = capsys.readouterr().out
    assert alone.startswith("checkpoint attention note\n")
    assert main(["claims", str(ours[0]), str(theirs[0])]) == 0
    both = capsys.readouterr().out
    assert [line for line in both.splitlines() if line.endswith(".zip:")] == [f"{ours[0]}:", f"{theirs[0]}:"]
    assert alone in both
    assert main(["claims", "--json", str(ours[0]), str(theirs[0])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [str(ours[0]), str(theirs[0])]
    assert {row["id"] for row in found[str(ours[0])]} >= {"A1", "B1"}


@pytest.mark.parametrize("arguments", [[], ["claims"]])
def test_a_file_that_is_no_bundle_is_a_sentence(place, ours, capsys, arguments):
    (place / "bad.zip").write_bytes(ours[0].read_bytes()[:-9])
    for name, says in (("bad.zip", "is no bundle, or was cut"), ("none.zip", "cannot be read: No such file")):
        assert main([*arguments, str(place / name)]) == 2
        said = capsys.readouterr()
        assert says in said.err
        assert said.out == ""
    assert main([*arguments, str(ours[0]), "--sweep", "another"]) == 2
    assert "there is no sweep 'another' in ours.zip; it has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"nonsense", "cannot be read: not JSON"),
        (b"[" * 99 + b"]" * 99, "cannot be read: nested deeper"),
        (b"[]", "names no version of torch"),
        (b'{"cpu":"one"}', "names no version of torch"),
        (b'{"torch":{"version":2}}', "names no version of torch"),
    ],
)
def test_facts_of_a_machine_that_are_none_are_a_sentence(place, capsys, document, says):
    """A bundle does not say what facts are; who wrote it can have put anything there."""
    lab = Lab()
    replay = lab.replay("a")
    seen = replace(replay.plain.observation, machine=lab.bench.keep(document))
    path, _ = sent(lab, place, "strange", lab.bench.replay(replace(replay.plain, observation=seen)))
    for arguments in ([str(path)], ["claims", str(path)]):
        assert main(arguments) == 2
        assert f"machine document {seen.machine} {says}" in capsys.readouterr().err


def test_what_is_neither_a_command_nor_a_bundle_is_an_error_of_usage(place, capsys):
    for arguments in (["wirte"], ["write", "folder"], ["claims", "x.db"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
    assert "'x.db' is no bundle (FILE.zip)" in capsys.readouterr().err


# After `store add`.


def test_after_an_add_everything_works_as_after_a_sweep(place, ours, capsys):
    path, sweep = ours
    assert store(["add", str(path)]) == 0
    assert f"ours.zip has a sweep, too: `python -m reports --sweep {sweep}`" in capsys.readouterr().err
    assert main([]) == 0
    said = capsys.readouterr()
    assert re.search(rf"no sweep was run here; taken is {sweep}, added from ours\.zip at 2\d\d\d-\S+Z", said.err)
    assert "Replays: 2 as expected" in Path(said.out.strip()).read_text()
    assert main(["--sweep", sweep]) == 0
    assert capsys.readouterr().err == ""
    assert main(["claims"]) == 0
    assert store(["list", "--sweeps"]) == 0
    assert re.search(rf"{sweep} .* 2 of 2 .* ours\.zip\n", capsys.readouterr().out)
    assert store(["export", "--sweep", sweep, "again.zip"]) == 0
    assert Path("again.zip").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("blobs", [None, "my blobs"])
def test_what_to_do_with_what_was_added_is_told_whole(place, ours, capsys, blobs):
    """The archive that was named was left out, so that the command looked into another."""
    path, sweep = ours
    where = ["--archive", f"sqlite:///{place}/an other.db", *(["--blobs", blobs] if blobs else [])]
    assert store(["add", str(path), *where]) == 0
    (told,) = re.findall(r"`python -m (reports .*)`", capsys.readouterr().err)
    command = shlex.split(told)
    assert command == ["reports", "--sweep", sweep, *where[:2], "--blobs", blobs or f"{place}/blobs"]
    assert main(command[1:]) == 0


def test_an_older_bundle_that_was_added_is_pointed_to(place, ours, capsys):
    path = without_sweep(ours[0])
    assert store(["add", str(path)]) == 0
    assert f"ours.zip carries no sweep, only records: `python -m reports {path}`" in capsys.readouterr().err
    assert main([]) == 2
    assert "no sweep yet that was run here" in capsys.readouterr().err


def test_a_stranger_s_sweep_is_never_the_latest_of_this_computer(place, theirs):
    """Whatever it says of when it began."""
    lab = Lab()
    archive, own = kept(place, "here", lab.replay("a").plain, bench=lab.bench)
    with archive:
        add_bundle(archive, theirs[0])
        assert len(archive.sweeps()) == 2
        assert archive.sweeps()[-1].id != own or archive.sweeps()[0].id != own
        assert build.latest_own_sweep(archive) == build.latest_sweep(archive).id == own


def test_of_added_sweeps_the_one_that_was_added_last_is_taken(place, ours, theirs):
    """The time at which it says that it began is anybody's word."""
    with Archive.open(f"sqlite:///{place}/here.db", place / "here") as archive:
        for path, sweep in (theirs, ours):
            add_bundle(archive, path)
            assert build.latest_sweep(archive).id == sweep
        with pytest.raises(build.ReportError, match="no sweep yet that was run here"):
            build.latest_own_sweep(archive)


def test_a_sweep_that_the_file_has_not_is_a_sentence(ours):
    with BundleSource(ours[0]) as source, pytest.raises(ArchiveError, match=r"there is no sweep 'x' in ours\.zip"):
        source.records(sweep="x")


def test_as_a_process_a_published_bundle_is_enough(tmp_path):
    path = min((ROOT / "store" / "published").glob("*.zip"), key=lambda one: one.stat().st_size)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "reports", "claims", "--json", str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rulings = {row["ruling"] for row in json.loads(ended.stdout)[str(path)]}
    assert "supported" in rulings
    assert list(tmp_path.iterdir()) == []
