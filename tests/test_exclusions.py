"""What nobody shall see is out of every report, list of witnesses, capsule and view, and comes back when it is included
again; nothing is removed for it.
"""

from __future__ import annotations

import json

import pytest
from test_across import Lab, facts, kept
from test_strangers import OTHER, SAME, Listed, Planned, causes, forged, sent

from experiments.__main__ import _find_evidence
from experiments.analysis.causes import OPEN, PROVEN
from experiments.core.canonical_json import digest
from reports import build
from reports.__main__ import main as report
from store.__main__ import main as store
from store.archive import Archive, ArchiveError
from store.bundles import add_bundle, export_bundle, import_bundle
from store.signing import make_key, read_private_key, sign_manifest


@pytest.fixture
def lab():
    return Lab()


@pytest.fixture
def ours(lab, tmp_path):
    archive, sweep = kept(tmp_path, "ours", *(lab.replay(case).plain for case in "ab"), bench=lab.bench)
    with archive:
        yield archive, sweep


def others(archive, sweep, tmp_path):
    made = build.make_report(archive, sweep, "stem", tmp_path / "nothing")
    return [one.name for one in made.across.others], made.text


def digests(archive, **how):
    return {one.digest for one in archive.cells(**how)}


@pytest.mark.parametrize("called", ["record", "file", "manifest", "signer"])
def test_what_is_excluded_is_in_no_report_until_it_is_included_again(lab, ours, tmp_path, called):
    archive, sweep = ours
    make_key(tmp_path / "lab")
    key = read_private_key(tmp_path / "lab.key")
    record = lab.replay("b", OTHER, on=facts("two")).plain
    path = sent(lab, tmp_path / "theirs.zip", record, key=lambda manifest: sign_manifest(manifest, key))
    before = digests(archive)
    signer = (tmp_path / "lab.pub").read_bytes() and "ab" * 32
    import_bundle(archive, path, signer=signer)
    (origin,) = {one for one in archive.origins(digests(archive)).values() if one is not None}
    name = {
        "record": f"record:{digest(record.text())[:12]}",
        "file": "theirs.zip",
        "manifest": origin.manifest[:20],
        "signer": f"signer:{signer[:9]}",
    }[called]
    assert others(archive, sweep, tmp_path)[0] == ["default-two"]
    archive.exclude(name, "it was `made` up", "somebody")
    listed, text = others(archive, sweep, tmp_path)
    assert listed == []
    (line,) = [line for line in text.splitlines() if "excluded by somebody at" in line]
    assert line.endswith("Z: it was `made` up ``"), "as code"
    assert digests(archive) == before
    assert digests(archive, excluded=True) == before | {digest(record.text())}
    assert archive.check() == []
    with pytest.raises(ArchiveError, match="excluded already"):
        archive.exclude(name, "again", "somebody")
    archive.exclude(name, "it was real", "another", "include")
    assert others(archive, sweep, tmp_path)[0] == ["default-two"]
    assert "excluded by" not in others(archive, sweep, tmp_path)[1]
    assert [(one.verb, one.author) for one in archive.exclusions()] == [("exclude", "somebody"), ("include", "another")]
    with pytest.raises(ArchiveError, match="not excluded"):
        archive.exclude(name, "again", "somebody", "include")


def test_a_file_takes_none_of_our_own_records_out_of_sight(lab, ours, tmp_path):
    """It has brought them back: whoever excludes it does not lose what was run here."""
    archive, sweep = ours
    export_bundle(archive, [], tmp_path / "own.zip", sweeps=[sweep])
    add_bundle(archive, tmp_path / "own.zip")
    before = digests(archive)
    archive.exclude("own.zip", "not that", "somebody")
    assert digests(archive) == before
    assert [one.id for one in archive.sweeps()] == [sweep]


def test_what_two_files_have_is_out_of_sight_when_both_are(lab, ours, tmp_path):
    archive, _ = ours
    one, two = (lab.replay(case, on=facts("two")).plain for case in "ab")
    for name, records in (("first.zip", [one]), ("second.zip", [one, two])):
        add_bundle(archive, sent(lab, tmp_path / name, *records))
    seen = {digest(one.text()), digest(two.text())}
    archive.exclude("second.zip", "why", "somebody")
    assert digests(archive) & seen == {digest(one.text())}
    archive.exclude("first.zip", "why", "somebody")
    assert digests(archive) & seen == set()


def test_an_excluded_file_stays_excluded_when_it_is_added_again(lab, ours, tmp_path):
    archive, _ = ours
    path = sent(lab, tmp_path / "theirs.zip", lab.replay("b", on=facts("two")).plain)
    add_bundle(archive, path)
    archive.exclude("theirs.zip", "why", "somebody")
    before = digests(archive)
    (tmp_path / "other.zip").write_bytes(path.read_bytes())
    add_bundle(archive, tmp_path / "other.zip")
    assert digests(archive) == before


def test_an_excluded_counter_replay_is_no_witness(lab, ours, tmp_path):
    archive, sweep = ours
    there = lab.replay("b", OTHER, on=facts(cap="AVX2"), environment="avx2").plain
    proof = [one.plain for one in lab.proof("b", SAME, OTHER)]
    for records in ([there], proof):
        made = archive.begin_sweep([one.spec for one in records], "a" * 64).id
        for one in records:
            archive.add_text(one.text(), lab.bench.blobs.get, made)
    assert causes(archive, sweep, tmp_path / "nothing") == {"avx2": [PROVEN]}
    archive.exclude(f"sweep:{made}", "the machine was too warm", "somebody")
    assert causes(archive, sweep, tmp_path / "nothing") == {"avx2": [OPEN]}


def test_an_excluded_sweep_is_not_the_latest_and_in_no_capsule(lab, ours):
    archive, first = ours
    record = lab.replay("a", OTHER).plain
    second = archive.begin_sweep([record.spec], "a" * 64).id
    archive.add_text(record.text(), lab.bench.blobs.get, second)
    asked = Planned([record.spec])
    assert (build.latest_own_sweep(archive), _find_evidence(archive, asked, Listed("a" * 64))) == (second, [record])
    archive.exclude(second, "why", "somebody")
    assert build.latest_own_sweep(archive) == first
    assert _find_evidence(archive, asked, Listed("a" * 64)) == [lab.replay("a").plain]
    with pytest.raises(ArchiveError, match="is excluded"):
        archive.bundled_sweep(second)


def test_a_published_bundle_is_excluded_by_its_manifest_and_its_records(lab, ours, tmp_path):
    archive, sweep = ours
    (tmp_path / "published").mkdir()
    path = sent(lab, tmp_path / "published" / "lab.zip", lab.replay("b", OTHER, on=facts("two")).plain)

    def named():
        return [one.origin for one in build.make_report(archive, sweep, "stem", tmp_path / "published").across.others]

    assert named() == ["lab.zip"]
    add_bundle(archive, path)
    archive.exclude("file:lab.zip", "why", "somebody")
    assert named() == []


def test_the_commands_say_what_was_done(lab, ours, tmp_path, capsys):
    archive, _ = ours
    add_bundle(archive, sent(lab, tmp_path / "theirs.zip", forged(lab.replay("b", on=facts("two")).plain, lab)))
    (theirs,) = [one.digest for one in archive.cells() if archive.origins([one.digest])[one.digest]]
    args = ("--archive", f"sqlite:///{tmp_path}/ours.db", "--blobs", str(tmp_path / "ours"))
    assert store(["exclude", "theirs.zip", *args]) == 2
    assert "give the reason with --why" in capsys.readouterr().err
    assert store(["exclude", "nothing.zip", "--why", "x", *args]) == 2
    assert "is no record, sweep, file or signer that is here" in capsys.readouterr().err
    assert store(["exclude", "theirs.zip", "--why", "made \x1b[31m up", "--author", "me", *args]) == 0
    said = capsys.readouterr().out
    assert said.startswith("file ")
    assert said.endswith("made \\x1b[31m up\n")
    assert store(["exclude", *args]) == 0
    assert capsys.readouterr().out == said
    assert store(["list", "--json", *args]) == 0
    assert theirs not in capsys.readouterr().out
    assert store(["list", "--json", "--excluded", *args]) == 0
    assert theirs in capsys.readouterr().out
    assert store(["show", theirs, *args]) == 0
    assert "excluded" in capsys.readouterr().out
    assert store(["export", theirs, str(tmp_path / "x.zip"), *args]) == 2
    assert "is excluded" in capsys.readouterr().err
    assert store(["include", "theirs.zip", "--why", "real", "--author", "me", "--json", *args]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["verb"], entry["why"]) == ("include", "real")


def test_what_may_be_two_things_must_be_said(lab, ours, tmp_path):
    archive, _ = ours
    for number, numbers in enumerate((SAME, OTHER)):
        (tmp_path / str(number)).mkdir()
        record = lab.replay("b", numbers, on=facts("two")).plain
        add_bundle(archive, sent(lab, tmp_path / str(number) / "theirs.zip", record))
    with pytest.raises(ArchiveError, match=r"may be file:.*, file:.*: say which"):
        archive.exclude("theirs.zip", "why", "somebody")


def test_an_archive_that_is_opened_again_still_hides_it(lab, ours, tmp_path):
    archive, _ = ours
    (name, *_) = sorted(digests(archive))
    archive.exclude(f"record:{name}", "why", "somebody")
    with Archive.open(f"sqlite:///{tmp_path}/ours.db", tmp_path / "ours") as again:
        assert name not in digests(again)


def reported(capsys, tmp_path, *arguments):
    """Status of a report's command, and what it said."""
    where = ("--archive", f"sqlite:///{tmp_path}/ours.db", "--blobs", f"{tmp_path}/ours")
    status = report(
        [*arguments[:1], *where, *([] if arguments[0] == "claims" else ["--to", f"{tmp_path}/to"]), *arguments[1:]]
    )
    return status, capsys.readouterr().err


@pytest.mark.parametrize("what", ["sweep", "record"])
@pytest.mark.parametrize("command", ["write", "claims"])
def test_a_report_on_what_is_excluded_says_that_it_is(ours, tmp_path, capsys, command, what):
    """It said that the sweep had no records yet, or that none was run here."""
    archive, sweep = ours
    for name in [sweep] if what == "sweep" else sorted(f"record:{name}" for name in digests(archive)):
        archive.exclude(name, "it was too warm", "somebody")
    which = f"sweep {sweep}" if what == "sweep" else f"every record of sweep {sweep}"
    why = "is excluded: `python -m store exclude` says why, include takes it back\n"
    assert reported(capsys, tmp_path, command, "--sweep", sweep) == (2, f"reports: {which} {why}")
    whole = "every sweep in the archive" if what == "sweep" else which
    assert reported(capsys, tmp_path, command) == (2, f"reports: {whole} {why}")
    if command == "claims" and what == "sweep":
        assert reported(capsys, tmp_path, command, "--all") == (2, f"reports: {whole} {why}")


def test_an_excluded_file_is_shown_with_its_names(lab, ours, tmp_path, capsys):
    archive, sweep = ours
    path = sent(lab, tmp_path / "theirs.zip", lab.replay("b", OTHER, on=facts("two")).plain)
    add_bundle(archive, path)
    add_bundle(archive, path.rename(tmp_path / "their own.zip"))
    made = archive.exclude("theirs.zip", "it was made up", "somebody")
    assert f'file {made.name} (theirs.zip, "their own.zip"): excluded by somebody at ' in str(made)
    assert str(made) in others(archive, sweep, tmp_path)[1]
    assert store(["exclude", "--archive", f"sqlite:///{tmp_path}/ours.db"]) == 0
    assert capsys.readouterr().out == f"{made}\n"
    assert archive.check() == [], "the name is no part of what was written"
