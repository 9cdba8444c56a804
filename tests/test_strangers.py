"""A stranger's evidence is never ours: it is shown with where it came from, and is no witness for what was run here.

What strangers send here has a valid seal and digests that match. It is made as an attacker makes it: out of what was
published of this computer, changed at will.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import samples
from test_across import Lab, facts, kept

from experiments.__main__ import _find_evidence
from experiments.analysis.causes import FLIP, OPEN, environment
from experiments.analysis.settings import CAPABILITY
from experiments.bundle import layout, writer
from experiments.core.canonical_json import canonical, digest
from experiments.core.environment import machine_identity
from reports import build
from reports.sources import BundleSource
from store import sweeps
from store.__main__ import main as store
from store.archive import Archive, ArchiveError
from store.bundles import add_bundle, check_bundle, export_bundle, import_bundle
from store.signing import make_key, read_private_key, sign_manifest

AHEAD = "9999-01-01T00:00:00.000Z"
SAME, OTHER = (1.0, 2.0), (1.0, 3.0)


@pytest.fixture
def lab():
    return Lab()


@pytest.fixture
def ours(lab, tmp_path):
    """An archive with one sweep that was run here, of cases a and b, and that sweep."""
    records = [lab.replay("a").plain, lab.replay("b").plain]
    archive, sweep = kept(tmp_path, "ours", *records, bench=lab.bench)
    with archive:
        yield archive, sweep


def sent(lab, path, *records, key=None):
    """A sealed bundle of these records alone, as anybody makes one, whatever we would refuse to write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "refuse_excess", lambda _: None)
        writer.write(path, writer.members([one.text() for one in records], lab.bench.blobs.get), key)
    return path


def forged(record, lab, document=None, **changes):
    """The record as if it had begun in the year 9999, with this text as the facts of its machine."""
    seen = record.observation
    if document is not None:
        seen = replace(seen, machine=lab.bench.keep(document.encode()))
    ending = replace(record.ending, started_at=AHEAD)
    return replace(record, observation=seen, ending=ending, **changes)


def identity_text(told):
    """The text of which the identity of a machine is the digest."""
    cpu = {name: told["cpu"][name] for name in ("model", "architecture", "cores")}
    text = canonical({"host": told["host"], "cpu": cpu, "gpu": told["gpu"], "system": told["system"]["name"]})
    assert digest(text) == machine_identity(told)
    return text


# Capsules.


class Listed:
    """As far as a capsule asks for it."""

    def __init__(self, machine):
        self.machine_identity = machine


class Planned:
    def __init__(self, specs):
        self.specs = specs


def test_a_capsule_carries_what_was_run_here_and_nothing_that_says_so_itself(lab, tmp_path):
    """The digest of a machine document was once taken for the identity of a machine, and the year 9999 for later."""
    here = facts()
    own = [lab.replay(case).plain for case in "ab"]
    with Archive.open(f"sqlite:///{tmp_path}/ours.db", tmp_path / "ours") as archive:
        sweep = archive.begin_sweep([one.spec for one in own], machine_identity(here)).id
        for one in own:
            archive.add_text(one.text(), lab.bench.blobs.get, sweep)
        raised = samples.outcome("raised", "forged by a stranger")
        false = [
            forged(one, lab, document, outcome=raised)
            for one in own
            for document in (identity_text(here), canonical(here))
        ]
        add_bundle(archive, sent(lab, tmp_path / "theirs.zip", *false))
        assert len(archive.cells()) == 6
        assert len(archive.cells(machine=machine_identity(here))) == 2, "the document is there"
        found = _find_evidence(archive, Planned([one.spec for one in own]), Listed(machine_identity(here)))
        assert found == own


def test_of_two_sweeps_of_this_computer_the_one_that_came_in_last_counts_in_a_capsule(lab, tmp_path):
    """However the clock went."""
    first, second = (replace(lab.replay("a", numbers).plain, ending=None) for numbers in (SAME, OTHER))
    first = replace(first, ending=replace(samples.record().ending, started_at=AHEAD))
    second = replace(second, ending=samples.record().ending)
    with Archive.open(f"sqlite:///{tmp_path}/ours.db", tmp_path / "ours") as archive:
        for one in (first, second):
            sweep = archive.begin_sweep([one.spec], "a" * 64).id
            archive.add_text(one.text(), lab.bench.blobs.get, sweep)
        assert _find_evidence(archive, Planned([first.spec]), Listed("a" * 64)) == [second]


def test_in_a_bundle_no_digest_of_a_document_is_taken_for_the_identity_of_a_computer(lab, tmp_path):
    """A bundle without a sweep is taken as one of the computer that has most of its records."""
    mine = [lab.replay(case).plain for case in "ab"]
    false = [forged(lab.replay(case).plain, lab, identity_text(facts())) for case in "cde"]
    true = lab.replay("f", on=facts("two")).plain
    with BundleSource(sent(lab, tmp_path / "mixed.zip", *mine, *false, true)) as source:
        (sweep,) = source.sweeps()
        assert {one.spec.question.case for one in sweep.records} == set("cde"), "five would be two computers in one"


# Proofs.


def causes(archive, sweep, nowhere):
    made = build.make_report(archive, sweep, "stem", nowhere)
    return {one.name: [cause.word for cause in made.across.causes.get(one.name, ())] for one in made.across.others}


@pytest.mark.parametrize("as_sweep", [False, True])
def test_a_stranger_proves_no_cause_and_rules_none_out(lab, ours, tmp_path, as_sweep):
    """Alone or as a whole counter-replay, with the host and the machine of this computer."""
    archive, sweep = ours
    there = facts(cap="AVX2")
    explained = lab.replay("b", OTHER, on=there, environment="avx2").plain
    again = archive.begin_sweep([explained.spec], "a" * 64).id
    archive.add_text(explained.text(), lab.bench.blobs.get, again)
    assert causes(archive, sweep, tmp_path / "nothing") == {"avx2": [OPEN]}
    system = facts(system={"name": "Linux", "release": "6.18"})
    false = [
        *lab.proof("b", SAME, SAME, flipped=there),
        *lab.proof("b", SAME, OTHER, factor="system", flipped=system),
    ]
    records = [forged(one.plain, lab) for one in false]
    if as_sweep:
        theirs, name = kept(tmp_path, "theirs", *records[:4], bench=lab.bench)
        with theirs:
            export_bundle(theirs, [], tmp_path / "theirs.zip", sweeps=[name])
        assert import_bundle(archive, tmp_path / "theirs.zip").sweeps == [name]
    else:
        add_bundle(archive, sent(lab, tmp_path / "theirs.zip", *records))
    assert causes(archive, sweep, tmp_path / "nothing") == {"avx2": [OPEN]}


def test_what_a_file_brings_never_becomes_a_record_of_a_sweep_that_was_run_here(lab, ours, tmp_path):
    archive, _ = ours
    planned = lab.replay("c").plain
    own = archive.begin_sweep([planned.spec], "a" * 64).id
    path = sent(lab, tmp_path / "theirs.zip", forged(planned, lab))
    with pytest.raises(ArchiveError, match="was run here, and what a file brings is none of its records"):
        add_bundle(archive, path, own)
    assert archive.sweep(own).done == 0
    assert len(archive.cells()) == 2


# Tables.


def test_tables_show_where_a_record_came_from(lab, ours, tmp_path, capsys, monkeypatch):
    archive, sweep = ours
    make_key(tmp_path / "lab")
    key = read_private_key(tmp_path / "lab.key")
    two = lab.replay("b", OTHER, on=facts("two")).plain
    path = sent(lab, tmp_path / "theirs.zip", two, key=lambda manifest: sign_manifest(manifest, key))
    args = ("--archive", f"sqlite:///{tmp_path}/ours.db", "--blobs", str(tmp_path / "ours"))
    assert store(["add", str(path), *args]) == 0
    loose = samples.folder(tmp_path / "loose", samples.record("loose"))
    assert store(["add", str(loose), *args]) == 0
    capsys.readouterr()
    assert store(["list", *args]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[-1] for line in shown.splitlines()[1:3]] == ["here", "here"]
    assert "theirs.zip, signed by key " in shown
    assert shown.splitlines()[4].endswith("loose/")
    assert store(["show", digest(two.text()), *args]) == 0
    assert "theirs.zip, signed by key " in capsys.readouterr().out
    assert store(["list", "--json", *args]) == 0
    origins = [one["origin"] for one in json.loads(capsys.readouterr().out)]
    assert [one and one["file"] for one in origins] == [None, None, "theirs.zip", "loose/"]
    made = build.make_report(archive, sweep, "stem", tmp_path / "nothing")
    ((name, origin),) = [(one.name, one.origin) for one in made.across.others]
    assert (name, origin.startswith("archive: theirs.zip, signed by key ")) == ("default-two", True)
    assert "| archive: theirs.zip, signed by key " in made.text


def test_what_came_from_two_files_is_two_settings(lab, ours, tmp_path):
    """So that one stranger's record never stands in the place of another's, whatever time it says."""
    archive, sweep = ours
    for number, numbers in enumerate((SAME, OTHER)):
        (tmp_path / str(number)).mkdir()
        record = forged(lab.replay("b", numbers, on=facts("two")).plain, lab)
        add_bundle(archive, sent(lab, tmp_path / str(number) / "theirs.zip", record))
    made = build.make_report(archive, sweep, "stem", tmp_path / "nothing")
    assert [one.name for one in made.across.others] == ["default-two", "default-two-2"]
    assert len({one.origin for one in made.across.others}) == 2
    assert all(one.origin.startswith("archive: theirs.zip ") for one in made.across.others)


def test_the_gate_is_held_against_published_settings_only(lab, ours, tmp_path):
    from reports.__main__ import _published_pairs  # noqa: PLC0415  (private, and only here)

    archive, sweep = ours
    add_bundle(archive, sent(lab, tmp_path / "theirs.zip", lab.replay("b", OTHER, on=facts("two")).plain))
    found = build.make_report(archive, sweep, "stem", tmp_path / "nothing").across
    assert len(found.others) == 1
    assert _published_pairs(found, "") == []


# Order and times.


def test_the_latest_sweep_is_the_one_that_came_in_last_however_the_clock_went(lab, ours, monkeypatch):
    archive, first = ours
    asked = samples.spec("c")
    monkeypatch.setattr(sweeps, "current_time", lambda: "2025-01-01T00:00:00.000000Z")
    second = archive.begin_sweep([asked], "a" * 64).id
    assert build.latest_own_sweep(archive) == second
    assert [one.id for one in archive.sweeps()] == [first, second]


def told(record, **changes):
    """The record with other times, as JSON that is sealed again."""
    return replace(record, ending=replace(record.ending, **changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"duration": float("nan")}, "duration"),
        ({"duration": float("inf")}, "duration"),
        ({"duration": -1.0}, "duration"),
        ({"started_at": "yesterday"}, "started_at"),
        ({"started_at": "2026-02-30T00:00:00.000Z"}, "started_at"),
        ({"started_at": "2026-01-01T00:00:00.000+02:00"}, "started_at"),
        ({"started_at": ""}, "started_at"),
    ],
)
def test_a_time_that_is_none_is_refused_when_a_bundle_is_looked_at(lab, ours, tmp_path, changes, says):
    archive, _ = ours
    path = sent(lab, tmp_path / "theirs.zip", told(lab.replay("c").plain, **changes))
    (problem,) = check_bundle(path)
    assert says in problem.what
    with pytest.raises(ArchiveError, match=says):
        add_bundle(archive, path)
    with pytest.raises(ArchiveError, match=says):
        archive.add_text(told(lab.replay("c").plain, **changes).text(), lab.bench.blobs.get)


def test_durations_of_phases_that_are_none_are_refused(lab, tmp_path):
    record = lab.replay("c").plain
    seen = replace(record.observation, durations={"forward": float("nan")})
    assert check_bundle(sent(lab, tmp_path / "theirs.zip", replace(record, observation=seen)))


def test_a_time_to_come_is_kept_and_orders_nothing(lab, ours, tmp_path):
    archive, _ = ours
    early = forged(lab.replay("c").plain, lab)
    add_bundle(archive, sent(lab, tmp_path / "theirs.zip", early))
    late = lab.replay("d").plain
    archive.add_text(late.text(), lab.bench.blobs.get)
    assert [one.digest for one in archive.cells()][-2:] == [digest(early.text()), digest(late.text())]


def test_a_flip_that_somebody_brought_is_no_column(lab, ours, tmp_path):
    archive, sweep = ours
    name = environment(FLIP, CAPABILITY)
    add_bundle(
        archive, sent(lab, tmp_path / "t.zip", lab.replay("b", OTHER, on=facts(cap="AVX2"), environment=name).plain)
    )
    assert build.make_report(archive, sweep, "stem", tmp_path / "nothing").across.others == ()
