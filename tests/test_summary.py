"""A summary stays below what GitHub shows, a gate fails where something differs from what was published."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_across import Lab, facts, kept
from test_report import OPENING, TOGETHER, assert_safe

from experiments.core.verdict import AS_EXPECTED, CANNOT_SAY, NOT_AS_EXPECTED, Verdict
from reports import build
from reports.__main__ import main
from reports.ci import github_summary
from store.bundles import export_bundle

ROOT = Path(__file__).parents[1]
VERDICTS = [Verdict(word, ()) for word in (AS_EXPECTED, AS_EXPECTED, NOT_AS_EXPECTED, CANNOT_SAY)]
few = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@pytest.fixture
def lab():
    return Lab()


# What is in it.


def beside(lab, cases=1, **words):
    """A sweep beside a setting that differs in every case."""
    said = {"message": "no", "environment": "avx2", "scenario": "checkpoint/policy", "host": "two", **words}
    names = [f"case{at:02}" for at in range(cases)]
    theirs = [
        lab.replay(
            name,
            scenario=said["scenario"],
            environment=said["environment"],
            on=facts(said["host"], cap="AVX2"),
            ended=samples.outcome("raised", said["message"]),
        )
        for name in names
    ]
    return lab.across([lab.replay(name, scenario=said["scenario"]) for name in names], ("lab", theirs))


def text(found, sweep="a-sweep", report="outputs/reports/a-sweep.md"):
    return "\n\n".join("\n".join(one) for one in github_summary.sections(sweep, VERDICTS, found, Path(report)))


def test_it_says_what_came_of_the_sweep_and_where_its_report_is(lab):
    made = text(beside(lab))
    assert made.startswith(
        "# Twofold: sweep `a-sweep`\n\nOf 4 replays: 2 as expected, 1 not as expected, 1 cannot say."
    )
    assert "Report: `outputs/reports/a-sweep.md`" in made
    titles = [line[3:] for line in made.splitlines() if line.startswith("## ")]
    assert titles == [
        "This setting among others",
        "From planned to same",
        "Proven causes",
        "1 pair differs beyond rounding",
    ]


def test_with_no_other_setting_it_says_so(lab):
    for found in (None, lab.across([lab.replay()])):
        assert text(found).endswith("It was not compared with another setting.")
        assert "## " not in text(found)


def test_proven_causes_are_listed_and_their_absence_is_said(lab):
    assert "No cause is proven: " in text(beside(lab))
    other = ("archive", [lab.replay(numbers=(1.0, 3.0), on=facts(cap="AVX2"))])
    assert "No cause is proven: " in text(lab.across([lab.replay()], other)), "it is no witness of its own"
    proof = ("a-proof", lab.proof("plain", (1.0, 2.0), (1.0, 3.0)))
    made = text(lab.across([lab.replay()], other, counter=[proof]))
    assert "| `default-capability-avx2` | CPU capability | `AVX512` | `AVX2` | 1 of 1 | `a-proof` |" in made
    assert "No cause is proven" not in made
    assert "Proven causes" not in text(lab.across([lab.replay()], ("lab", [lab.replay(on=facts("two"))])))


def test_at_most_so_many_pairs_are_shown_and_the_rest_counted(lab):
    for number in (github_summary.SHOWN, github_summary.SHOWN + 3):
        made = text(beside(lab, number))
        assert f"## {number} pairs differ beyond rounding" in made
        assert made.count("| different outcome | a pass ended otherwise |") == github_summary.SHOWN
        assert ("And 3 more: see the report." in made) == (number > github_summary.SHOWN)


@pytest.mark.parametrize("place", ["message", "environment", "scenario", "host", "sweep", "report"])
def test_no_text_becomes_markup(place):
    for word in (*TOGETHER, *OPENING):
        inside, outside = ({}, {place: word}) if place in ("sweep", "report") else ({place: word}, {})
        assert_safe(text(beside(Lab(), **inside), **outside) + "\n")


# Where it goes.

PARTS = [["# Head", "", "one"], ["## Second", "", "x" * 500], ["## Third", "", "three"]]


def test_it_is_appended_to_what_other_steps_have_written(tmp_path):
    path = tmp_path / "summary.md"
    assert github_summary.append_sections(path, PARTS) == []
    path.write_text("Another step's.\n" + path.read_text())
    assert github_summary.append_sections(path, PARTS[:1]) == []
    long = "x" * 500
    whole = f"\n# Head\n\none\n\n## Second\n\n{long}\n\n## Third\n\nthree\n"
    assert path.read_text() == f"Another step's.\n{whole}\n# Head\n\none\n"


def test_what_does_not_fit_is_left_out_whole_and_named(tmp_path):
    path = tmp_path / "summary.md"
    path.write_bytes(b"y" * 100)
    assert github_summary.append_sections(path, PARTS, limit=400) == ["Second"]
    made = path.read_text()[100:]
    assert made == (
        "\n# Head\n\none\n\n## Third\n\nthree\n\n"
        "**Left out, as the file would grow beyond what GitHub shows: Second. See the report.**\n"
    )


def test_a_file_that_is_full_stays_as_it_is(tmp_path):
    path = tmp_path / "summary.md"
    path.write_bytes(b"y" * github_summary.LIMIT)
    assert github_summary.append_sections(path, PARTS) == ["Head", "Second", "Third"]
    assert path.stat().st_size == github_summary.LIMIT


def test_the_limit_is_what_github_shows(tmp_path):
    path = tmp_path / "summary.md"
    assert github_summary.append_sections(path, [["# Head", "x" * (github_summary.LIMIT - 10)]]) == []
    assert path.stat().st_size == github_summary.LIMIT - 1
    (tmp_path / "other.md").write_bytes(b"y")
    too_long = [["# Head", "x" * (github_summary.LIMIT - 10)]]
    assert github_summary.append_sections(tmp_path / "other.md", too_long) == ["Head"]


@few
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=5),
    st.integers(0, 200),
    st.integers(1, 900),
)
def test_a_file_stays_below_its_limit_and_every_section_is_shown_or_named(tmp_path_factory, sizes, there, limit):
    path = tmp_path_factory.mktemp("summary") / "summary.md"
    path.write_bytes(b"y" * there)
    parts = [[f"## Part{at}", "ü" * size] for at, size in enumerate(sizes)]
    left = github_summary.append_sections(path, parts, limit)
    made = path.read_text()[there:]
    assert path.stat().st_size < max(limit, there + 1)
    for part in parts:
        title = part[0].removeprefix("## ")
        assert ("\n".join(part) in made) == (title not in left)
        if made:
            assert title in made


# From the command line.


@pytest.fixture
def place(lab, tmp_path, monkeypatch):
    """A folder with an archive of one sweep of two cases, and bundles of two other computers, of which one differs."""
    monkeypatch.delenv(github_summary.VARIABLE, raising=False)
    theirs = [lab.replay("a", on=facts("two", cap="AVX2")), lab.replay("b", (1.0, 2.5), on=facts("two", cap="AVX2"))]
    agreeing = [lab.replay("a", on=facts("three"))]
    (tmp_path / "published").mkdir()
    for name, made in (("lab", theirs), ("office", agreeing)):
        archive, sweep = kept(tmp_path, name, *(one.plain for one in made), bench=lab.bench)
        with archive:
            digests = [cell.digest for cell in archive.cells(sweep=sweep)]
            export_bundle(archive, digests, tmp_path / "published" / f"{name}.zip")
    own = [lab.replay("a").plain, lab.replay("b").plain]
    archive, _ = kept(tmp_path, "ours", *own, bench=lab.bench)
    archive.close()
    monkeypatch.setattr(build, "PUBLISHED", tmp_path / "published")
    return tmp_path


def reports(place, *arguments):
    where = ["--archive", f"sqlite:///{place}/ours.db", "--blobs", f"{place}/ours", "--to", f"{place}/reports"]
    return main([*arguments, *where])


@pytest.mark.parametrize("arguments", [[], ["write"], ["--alone"], ["write", "--alone"]])
def test_without_a_command_the_report_is_written(place, capsys, arguments):
    assert reports(place, *arguments) == 0
    out, err = capsys.readouterr()
    path = Path(out.strip())
    assert path.parent == place / "reports"
    assert ("among others" in path.read_text()) == ("--alone" not in arguments)
    assert err == ""


def test_alone_no_bundle_is_opened(place):
    (place / "published" / "lab.zip").write_bytes(b"not a zip")
    assert reports(place, "--alone") == 0


def test_a_damaged_bundle_is_an_error_in_words(place, capsys):
    (place / "published" / "lab.zip").write_bytes(b"not a zip")
    assert reports(place) == 2
    assert capsys.readouterr().err.startswith("reports: lab.zip is refused")


def test_a_command_that_is_none_is_refused_with_those_that_are(place, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["wirte"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("'wirte'", "write", "claims", "publish"))


@pytest.mark.parametrize(("arguments", "said"), [(["--help"], "Without COMMAND"), (["write", "-h"], "examples:")])
def test_help_has_examples_and_exit_statuses(capsys, arguments, said):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert said in shown
    assert "exit status: 0" in shown.lower()


def test_junit_is_written_where_it_is_asked_for(place, capsys):
    path = place / "new" / "junit.xml"
    assert reports(place, "--junit", str(path)) == 0
    first = path.read_bytes()
    assert reports(place, "--junit", str(path)) == 0
    assert path.read_bytes() == first
    assert [suite.get("name") for suite in ET.fromstring(first)] == [
        "verdicts",
        "default-capability-avx2-two",
        "default-thre",
    ]
    assert reports(place, "--junit", str(path), "--alone") == 0
    assert [suite.get("name") for suite in ET.parse(path).getroot()] == ["verdicts"]
    assert reports(place, "--junit", str(place)) == 2
    assert "reports: " in capsys.readouterr().err


def test_the_summary_goes_into_the_file_that_github_names(place, capsys, monkeypatch):
    monkeypatch.setenv(github_summary.VARIABLE, str(place / "summary.md"))
    assert reports(place, "--github-summary") == 0
    made = (place / "summary.md").read_text()
    assert capsys.readouterr().out.strip() in made
    assert "Of 2 replays: 2 as expected" in made
    assert "## 1 pair differs beyond rounding" in made
    (place / "summary.md").write_bytes(b"y" * (github_summary.LIMIT - 400))
    assert reports(place, "--github-summary") == 0
    assert (place / "summary.md").stat().st_size < github_summary.LIMIT
    assert "left out of the summary, which is full: " in capsys.readouterr().err


@pytest.mark.parametrize("value", [None, ""])
def test_without_github_there_is_nowhere_to_put_a_summary(place, capsys, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv(github_summary.VARIABLE, value)
    assert reports(place, "--github-summary") == 2
    out, err = capsys.readouterr()
    assert "GITHUB_STEP_SUMMARY is not set" in err
    assert out == ""
    assert not (place / "reports").exists(), "said before any work is done"


# The gate.


def test_a_gate_is_closed_where_something_differs_from_what_was_published(place, capsys):
    assert reports(place, "--gate") == 1
    out, err = capsys.readouterr()
    assert Path(out.strip()).is_file(), "the report is there to look at"
    assert err == (
        "reports: 1 of 3 differ from what was published, beyond rounding\n"
        "  default-capability-avx2-two: checkpoint/policy b: different values: "
        "gradient x differs by 0.5; what rounding allows is not known\n"
    )


def test_a_gate_may_be_held_against_one_setting(place, capsys):
    assert reports(place, "--gate", "default-thre") == 0
    assert reports(place, "--gate", "default-capability-avx2-two") == 1
    assert reports(place, "write", "--gate=default-thre") == 0
    capsys.readouterr()
    assert reports(place, "--gate", "nobody") == 2
    said = capsys.readouterr().err
    assert "--gate nobody: no published setting" in said
    assert said.rstrip().endswith("Published: default-capability-avx2-two, default-thre")


def test_what_agrees_with_what_was_published_passes(place, capsys):
    (place / "published" / "lab.zip").unlink()
    assert reports(place, "--gate") == 0
    assert capsys.readouterr().err == ""


def test_without_a_gate_the_status_says_nothing_of_other_settings(place):
    assert reports(place) == 0


def test_a_gate_with_nothing_to_hold_it_against_is_no_pass(place, capsys):
    shutil.rmtree(place / "published")
    assert reports(place, "--gate") == 2
    assert "--gate: no case was compared with a published setting" in capsys.readouterr().err
    assert reports(place, "--gate", "--alone") == 2
    assert "--alone looks at no other setting" in capsys.readouterr().err


def test_what_the_archive_has_of_other_settings_was_not_published(lab, place, capsys):
    shutil.rmtree(place / "published")
    other = lab.replay("b", (1.0, 2.5), on=facts(cap="AVX2"), environment="avx2").plain
    with build.Archive.open(f"sqlite:///{place}/ours.db", place / "ours") as archive:
        archive.add_text(other.text(), lab.bench.blobs.get)
    assert reports(place) == 0
    assert "`avx2`" in Path(capsys.readouterr().out.strip()).read_text()
    assert reports(place, "--gate") == 2
    assert reports(place, "--gate", "avx2") == 2
    assert capsys.readouterr().err.rstrip().endswith("Published: none")


def test_only_the_first_differences_are_printed_and_none_of_them_drives_the_terminal(lab, place, capsys):
    names = [f"c{at}" for at in range(5)]
    theirs = [
        lab.replay(name, on=facts("two"), ended=samples.outcome("raised", "\x1b[31mred\x07")).plain for name in names
    ]
    archive, sweep = kept(place, "more", *theirs, bench=lab.bench)
    with archive:
        export_bundle(archive, [cell.digest for cell in archive.cells(sweep=sweep)], place / "published" / "more.zip")
    archive, sweep = kept(place, "wide", *(lab.replay(name).plain for name in names), bench=lab.bench)
    archive.close()
    where = ["--archive", f"sqlite:///{place}/wide.db", "--blobs", f"{place}/wide", "--to", f"{place}/reports"]
    assert main(["--gate", *where]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reports: 5 of 5 differ from what was published, beyond rounding"
    assert [line.split(":")[1].split()[-1] for line in lines[1:]] == names[:3]
    assert all(line.isprintable() for line in lines)
    assert "\\x1b[31mred\\x07" in lines[1]


def test_as_a_process_it_prints_the_path_alone(place):
    where = ["--archive", f"sqlite:///{place}/ours.db", "--blobs", f"{place}/ours"]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "reports", "--alone", *where],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (place / ended.stdout.strip()).is_file()
