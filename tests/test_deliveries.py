"""Who brought what: the same contents from two hands, more of a sweep from a third, and names of files that lie."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import samples
from test_across import Lab, facts, kept

from experiments.core.canonical_json import digest
from reports import build
from store import bundles, sweeps
from store.__main__ import main as store
from store.archive import Archive, ArchiveError
from store.bundles import export_bundle, import_bundle
from store.signing import make_key, read_private_key, sign_manifest

PLAN = [samples.spec(case) for case in "abcde"]
ALICE, MALLORY = "a1" * 32, "ee" * 32


def add(archive, number, sweep):
    record = samples.record(seed=number, asked=PLAN[number])
    return archive.add_text(record.text(), samples.contents(number).get, sweep)


def swept(folder, done):
    """An archive with a sweep, begun at the same moment wherever it is, that has records of the first `done` specs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "current_time", lambda: "2026-01-01T00:00:00.000000Z")
        archive = Archive.open(f"sqlite:///{folder}.db", folder)
        sweep = archive.begin_sweep(PLAN, "b" * 64).id
    for number in range(done):
        add(archive, number, sweep)
    return archive, sweep


def file_of(folder, done, name):
    folder.mkdir()
    archive, sweep = swept(folder / "archive", done)
    with archive:
        export_bundle(archive, [], folder / name, sweeps=[sweep])
    return folder / name, sweep


@pytest.fixture
def archive(tmp_path):
    with Archive.open(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as made:
        yield made


def origin(archive):
    (one,) = archive.sweeps()
    return f"{one.done} of {one.planned} from {one.origin}"


def test_nobody_adds_to_a_sweep_that_somebody_else_has_signed(archive, tmp_path):
    alice, sweep = file_of(tmp_path / "alice", 2, "alice.zip")
    mallory, _ = file_of(tmp_path / "mallory", 5, "mallory.zip")
    import_bundle(archive, alice, signer=ALICE)
    before = f"2 of 5 from alice.zip, signed by key {ALICE[:12]}"
    for signer in (MALLORY, None):
        with pytest.raises(ArchiveError, match="Only who signed all that a sweep came in adds to it"):
            import_bundle(archive, mallory, signer=signer)
        with pytest.raises(ArchiveError, match="add the records without --sweep"):
            import_bundle(archive, mallory, sweep, signer=signer)
    assert origin(archive) == before
    assert len(archive.cells()) == 2
    import_bundle(archive, mallory, signer=MALLORY, sweeps=False)
    assert (len(archive.cells()), origin(archive)) == (5, before)
    import_bundle(archive, mallory, signer=ALICE)
    assert origin(archive).startswith("5 of 5 from alice.zip")


def test_whoever_comes_first_is_not_the_only_signer(archive, tmp_path):
    """Signed anew by somebody else and brought first: both are named, and each can be taken out of sight."""
    path, sweep = file_of(tmp_path / "alice", 2, "alice.zip")
    stolen = path.rename(path.with_name("mallory.zip"))
    import_bundle(archive, stolen, signer=MALLORY)
    import_bundle(archive, stolen.rename(path), signer=ALICE)
    both = f"mallory.zip, signed by key {MALLORY[:12]}; also alice.zip, signed by key {ALICE[:12]}"
    assert origin(archive) == f"2 of 5 from {both}"
    assert {str(one) for one in archive.origins([one.digest for one in archive.cells()]).values()} == {both}
    archive.exclude(f"signer:{MALLORY}", "not theirs", "somebody")
    assert origin(archive).startswith("2 of 5"), "Alice has brought the same"
    archive.exclude(f"signer:{ALICE}", "nor hers", "somebody")
    assert (archive.sweeps(), archive.cells()) == ([], [])
    archive.exclude(f"signer:{MALLORY}", "theirs after all", "somebody", "include")
    assert [one.id for one in archive.sweeps()] == [sweep]


def test_of_what_two_unsigned_files_brought_each_has_its_share(archive, tmp_path):
    first, sweep = file_of(tmp_path / "one", 2, "first.zip")
    second, _ = file_of(tmp_path / "two", 5, "second.zip")
    import_bundle(archive, first)
    import_bundle(archive, second)
    assert origin(archive) == "5 of 5 from first.zip (2 of 5); also second.zip (5 of 5)"
    archive.exclude("second.zip", "made up", "somebody")
    assert origin(archive) == "2 of 5 from first.zip; also second.zip", "what is out of sight is not counted"
    archive.exclude("second.zip", "real", "somebody", "include")
    archive.exclude(f"sweep:{sweep}", "made up", "somebody")
    assert (archive.sweeps(), archive.cells()) == ([], []), "with all that either brought of it"


def test_the_order_is_that_in_which_they_came_however_the_clock_went(archive, tmp_path, monkeypatch):
    first, _ = file_of(tmp_path / "one", 2, "first.zip")
    second, _ = file_of(tmp_path / "two", 5, "second.zip")
    import_bundle(archive, first)
    monkeypatch.setattr(bundles, "current_time", lambda: "2020-01-01T00:00:00.000000Z")
    import_bundle(archive, second)
    came = archive.origins([one.digest for one in archive.cells()])
    assert sorted(one.file for one in came.values()) == ["first.zip"] * 2 + ["second.zip"] * 3


def test_the_name_of_a_file_is_no_signature(archive, tmp_path):
    name = "lab.zip, signed by key a67f7fc407ab.zip"
    path, _ = file_of(tmp_path / "one", 2, name)
    import_bundle(archive, path)
    assert origin(archive) == f'2 of 5 from "{name}"'


def test_a_folder_is_no_part_of_a_sweep_that_was_run_here(tmp_path, capsys, monkeypatch):
    (tmp_path / "outputs").mkdir()
    own, sweep = swept(tmp_path / "outputs" / "archive", 2)
    own.close()
    record = samples.record(seed=3, asked=PLAN[3])
    folder = tmp_path / "loose"
    (folder / "blobs").mkdir(parents=True)
    (folder / "record.json").write_text(record.text())
    for name, content in samples.contents(3).items():
        (folder / "blobs" / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    where = ["--archive", f"sqlite:///{tmp_path}/outputs/archive.db", "--blobs", "outputs/archive"]
    assert store(["add", *where, "--sweep", sweep, "loose"]) == 2
    assert "what a file or folder brings is none of its records" in capsys.readouterr().err
    assert store(["add", *where, "loose"]) == 0
    assert store(["list", *where, "--json"]) == 0
    told = {one["digest"]: one["origin"] for one in json.loads(capsys.readouterr().out.splitlines()[-1])}
    assert told[digest(record.text())]["file"] == "loose/"


@pytest.mark.parametrize("long", ["record.json", "facts"])
def test_a_folder_with_a_file_without_end_is_a_sentence_and_not_read(archive, tmp_path, long, capsys):
    record = samples.record(seed=3)
    folder = tmp_path / "loose"
    (folder / "blobs").mkdir(parents=True)
    (folder / "record.json").write_text(record.text())
    for name, content in samples.contents(3).items():
        (folder / "blobs" / name).write_bytes(content)
    path = folder / "record.json" if long == "record.json" else folder / "blobs" / record.observation.machine
    os.truncate(path, 1 << 34)
    where = ["--archive", f"sqlite:///{tmp_path}/archive.db", "--blobs", str(tmp_path / "blobs")]
    assert store(["add", *where, str(folder)]) == 2
    assert "bytes, so it is no" in capsys.readouterr().err
    assert archive.cells() == []


def test_why_a_record_is_refused_is_short_whatever_it_has(archive):
    text = samples.record(seed=1).text().replace('{"ending"', f'{{"{"a" * 100_000}":1,"ending"')
    with pytest.raises(ArchiveError) as refused:
        archive.add_text(text, samples.contents(1).get)
    assert len(str(refused.value)) < 1000


def test_a_plan_is_read_once_however_many_sweeps_have_it(archive, monkeypatch):
    for number in range(5):
        add(archive, number, archive.begin_sweep(PLAN, "b" * 64).id)
    for machine in "cdef0":
        archive.begin_sweep(PLAN, machine * 64)
    read = []
    there = sweeps.read_plan
    monkeypatch.setattr(sweeps, "read_plan", lambda text: read.append(text) or there(text))
    assert len(archive.sweeps()) == 6
    assert len(read) == 1
    for one in archive.sweeps():
        assert archive.sweep_plan(one.id) == PLAN
    assert len(read) == 2, "once for each list; its specs were at hand from when records were added"


@pytest.mark.parametrize("kind", ["note", "exclusion", "delivery"])
def test_a_note_an_exclusion_and_a_delivery_that_are_lost_are_noticed(tmp_path, kind):
    (tmp_path / "here").mkdir()
    archive, sweep = swept(tmp_path / "here" / "archive", 1)
    path, _ = file_of(tmp_path / "one", 2, "first.zip")
    record = archive.cells()[0].digest
    with archive:
        archive.flush_log()
        before = (tmp_path / "here" / "archive.db").read_bytes()
        if kind == "note":
            archive.add_note(record, "seen again", "somebody")
        elif kind == "exclusion":
            archive.exclude(f"record:{record}", "made up", "somebody")
        else:
            import_bundle(archive, path, sweeps=False)
        archive.flush_log()
        assert archive.check() == []
    for name in ("archive.db-wal", "archive.db-shm"):
        (tmp_path / "here" / name).unlink(missing_ok=True)
    (tmp_path / "here" / "archive.db").write_bytes(before)
    with Archive.open(f"sqlite:///{tmp_path}/here/archive.db", tmp_path / "here" / "archive") as archive:
        lost = [one.what for one in archive.check()]
    assert any(one.startswith(f"{kind} was committed to this archive, and is not in it") for one in lost), lost
    assert sweep


def test_two_files_of_one_name_are_told_apart_in_a_report(tmp_path):
    lab = Lab()
    own, sweep = kept(tmp_path, "ours", *(lab.replay(case).plain for case in "ab"), bench=lab.bench)
    paths = []
    for number in ("two", "three"):
        record = lab.replay("a", on=facts(number)).plain
        theirs, other = kept(tmp_path, number, record, bench=lab.bench)
        (tmp_path / f"d{number}").mkdir()
        paths.append(tmp_path / f"d{number}" / "x.zip")
        with theirs:
            export_bundle(theirs, [], paths[-1], sweeps=[other])
    with own:
        made = build.make_report(own, sweep, "stem", None, paths)
    names = {one.origin for one in made.across.others}
    assert len(names) == 2
    assert all(name.startswith("x.zip ") for name in names)
    assert all(f"| {name} | 1 |" in made.text.replace("`", "") for name in names), "each with its records"


def test_a_key_that_signs_is_told_as_before(archive, tmp_path):
    make_key(tmp_path / "lab")
    key = read_private_key(tmp_path / "lab.key")
    (tmp_path / "one").mkdir()
    made, sweep = swept(tmp_path / "one" / "archive", 2)
    with made:
        export_bundle(
            made, [], tmp_path / "signed.zip", sign=lambda manifest: sign_manifest(manifest, key), sweeps=[sweep]
        )
    where = ["--archive", f"sqlite:///{tmp_path}/archive.db", "--blobs", str(tmp_path / "blobs")]
    assert store(["add", *where, str(tmp_path / "signed.zip")]) == 0
    assert ", signed by key " in origin(archive)
    assert replace(archive.sweeps()[0].origin, signer=None, also=()).description() == "signed.zip"
