"""What an earlier version of this project wrote is read by this one, and stays what it was.

``data/archive-schema-1.zip`` is an archive (database and blobs) as the last version that wrote schema 1 left it: one
sweep of seven records on a CPU, of the note's scenario with cases one_context_given_twice and chosen_for_both_runs.
It is never made anew.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from commands import forked
from sqlalchemy import create_engine
from test_archive import counted, execute

import store.database
from experiments.core.canonical_json import RecordError, canonical, digest, parse
from experiments.core.record import Record
from experiments.core.replay import replays
from experiments.core.schema_history import SCHEMA
from experiments.core.verdict import AS_EXPECTED, contexts, judge
from reports import build
from store.archive import Archive
from store.bundles import add_bundle, check_bundle, export_bundle
from store.origins import UNKNOWN_ORIGIN, Origin

ROOT = Path(__file__).parents[1]
SWEEP = "f36bd4c210c2-81c465ff-1"
RECORDS = 7


@pytest.fixture
def outputs(tmp_path):
    """The folder that the earlier version left."""
    with zipfile.ZipFile(ROOT / "tests" / "data" / "archive-schema-1.zip") as file:
        file.extractall(tmp_path / "outputs")
    return tmp_path / "outputs"


def opened(outputs):
    return Archive.open(f"sqlite:///{outputs}/archive.db", outputs / "blobs")


@pytest.fixture
def archive(outputs):
    with opened(outputs) as made:
        yield made


@pytest.fixture
def texts(archive):
    """Each record as it was written."""
    return [archive.record_text(cell.digest)[1] for cell in archive.cells()]


def changed(text, *path, value):
    """A record's text with one place changed or added."""
    data = json.loads(text)
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return canonical(data)


# Its records.


def test_an_older_record_keeps_its_text_and_its_digest(texts):
    assert len(texts) == RECORDS
    for text in texts:
        assert parse(text)["schema"] == 1
        record = Record.from_text(text)
        assert record.text() == text
        assert record.evidence_digest() == parse(text)["evidence_digest"]
        assert Record.from_text(record.text()) == record


def test_what_an_older_record_does_not_say_was_so_before(texts):
    for record in map(Record.from_text, texts):
        assert record.spec.setting.compile_cache == "private"
        assert (record.spec.setting.threads, record.spec.setting.matmul_precision) == (None, "")
        assert record.spec.mark.series == ()
        assert record.observation.memory
        assert {row.largest for row in record.observation.memory} == {None}


def test_an_older_record_that_is_changed_is_written_anew(texts):
    for text in texts:
        record = Record.from_text(text)
        other = replace(record, ending=replace(record.ending, duration=1.5))
        assert parse(other.text())["schema"] == SCHEMA
        assert Record.from_text(other.text()) == other
        assert other.agreement_digest() == record.agreement_digest()
        same = replace(record)
        assert parse(same.text())["schema"] == SCHEMA
        assert same == record, "how it was written is no part of what it says"


def test_an_older_record_is_asked_by_the_same_digests(texts):
    """Those of its own JSON: a field that is written down later makes it no other process, and no other replay."""
    for text in texts:
        record, data = Record.from_text(text), json.loads(text)["spec"]
        assert record.spec.digest() == digest(canonical(data))
        del data["setting"]["attempt"]
        asked = record.spec.question.case_digest() + digest(canonical(data["setting"]))
        assert record.spec.replay_digest() == digest(asked)


@pytest.mark.parametrize(
    "changes",
    [{"compile_cache": "shared"}, {"series": ({"name": "a"},)}, {"matmul_precision": "high"}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_otherwise_than_before_is_another_process(changes):
    asked, other = samples.spec(), samples.spec(**changes)
    assert asked.digest() != other.digest()
    assert (asked.replay_digest() == other.replay_digest()) is ("series" in changes), "a mark is no setting"


@pytest.mark.parametrize(
    "path",
    [
        ("spec", "setting", "compile_cache"),
        ("spec", "mark", "series"),
        ("observation", "memory", 0, "largest"),
        ("spec", "setting", "planted"),
        ("planted",),
    ],
    ids=lambda path: "/".join(map(str, path)),
)
def test_a_field_that_its_schema_did_not_have_is_refused(texts, path):
    """Read and thrown away, it would say one thing in the text and another in the record."""
    for value in ("shared", "private", [], None):
        with pytest.raises(RecordError):
            Record.from_text(changed(texts[0], *path, value=value))


@pytest.mark.parametrize("field", ["spec", "outcome", "observation", "ending", "evidence_digest"])
def test_an_older_record_that_lacks_something_is_refused(texts, field):
    data = {name: value for name, value in json.loads(texts[0]).items() if name != field}
    with pytest.raises(RecordError):
        Record.from_text(canonical(data))
    for odd in ([], 5, "text", {"setting": 5}, {"memory": 5}):
        with pytest.raises(RecordError):
            Record.from_text(changed(texts[0], field, value=odd))


def test_an_older_record_that_says_it_is_of_this_schema_is_none(texts):
    with pytest.raises(RecordError, match="lacks"):
        Record.from_text(changed(texts[0], "schema", value=SCHEMA))


def test_a_case_of_an_older_record_is_judged(archive):
    made = replays(archive.records(sweep=SWEEP))
    words = [judge(replay, context).word for replay, context in zip(made, contexts(made, archive.fetch), strict=True)]
    assert words == [AS_EXPECTED] * 4


def test_a_process_is_the_same_replay_in_both_schemas(texts):
    """So that what was run before an update and after it stands together."""
    old = Record.from_text(texts[0])
    new = replace(old, ending=replace(old.ending, started_at="2027-01-01T00:00:00.000000Z"))
    (found,) = replays([old, new])
    assert found.any == new


# Its archive.


def test_an_older_archive_holds_together(archive):
    problems, counts = archive.examine()
    assert [str(problem) for problem in problems] == []
    assert (counts.records, counts.sweeps) == (RECORDS, 1)
    (sweep,) = archive.sweeps()
    assert (sweep.id, sweep.planned, sweep.done, sweep.finished) == (SWEEP, RECORDS, RECORDS, True)


def test_records_of_an_older_sweep_come_in_the_order_of_its_plan(archive):
    planned = [spec.digest() for spec in archive.sweep_plan(SWEEP)]
    assert len(set(planned)) == RECORDS
    assert [record.spec.digest() for record in archive.records(sweep=SWEEP)] == planned


def test_the_index_of_an_older_archive_comes_out_the_same(archive, outputs):
    def index():
        with contextlib.closing(sqlite3.connect(outputs / "archive.db")) as connection:
            return connection.execute("SELECT * FROM cells ORDER BY digest").fetchall()

    before = index()
    archive.rebuild()
    assert index() == before


def test_of_an_older_archive_what_was_run_here_is_ours_and_in_the_order_in_which_it_came(archive, outputs):
    """Revision 0003 numbers what is there by rowid."""
    with contextlib.closing(sqlite3.connect(outputs / "archive.db")) as connection:
        inserted = [name for (name,) in connection.execute("SELECT digest FROM records ORDER BY rowid")]
        assert connection.execute("SELECT number, kind FROM arrivals").fetchall() == [
            (number, "sweep" if number == 1 else "record") for number in range(1, RECORDS + 2)
        ]
    assert [cell.digest for cell in archive.cells()] == inserted
    assert set(archive.origins(inserted).values()) == {None}


def test_of_an_archive_before_origins_added_sweeps_have_theirs_and_lone_records_none(tmp_path):
    file = tmp_path / "archive.db"
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        store.database.migrate(connection, "0002")
    engine.dispose()
    ours, theirs, lone = ("a" * 64, "b" * 64, "c" * 64)
    execute(
        file,
        *(f"INSERT INTO records VALUES ('{name}', 'text')" for name in (theirs, lone, ours)),
        f"INSERT INTO plans VALUES ('{'d' * 64}', '[]')",
        *(
            f"INSERT INTO sweeps VALUES ('{name}', '{'d' * 64}', '{'e' * 64}', {number}, '{began}')"
            for name, number, began in (("ours", 1, "2026"), ("theirs", 2, "9999"), ("again", 3, "2025"))
        ),
        *(
            f"INSERT INTO sweep_records VALUES ('{name}', '{'f' * 64}', '{record}')"
            for name, record in (("ours", ours), ("theirs", theirs), ("again", ours))
        ),
        f"INSERT INTO sweep_origins VALUES ('theirs', 'theirs.zip', '{'0' * 64}', '2026-01-02')",
    )
    with Archive.open(f"sqlite:///{file}", tmp_path / "blobs") as archive:
        found = archive.origins([ours, theirs, lone])
    assert found == {ours: None, theirs: Origin("theirs.zip", "0" * 64, "2026-01-02"), lone: UNKNOWN_ORIGIN}
    with contextlib.closing(sqlite3.connect(file)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM arrivals ORDER BY number")]
    assert names == ["ours", "theirs", "again", theirs, lone, ours]


def test_an_older_archive_takes_in_what_is_new(archive):
    """Beside the old sweep, which stays what it is."""
    asked = samples.spec()
    sweep = archive.begin_sweep([asked], "a" * 64)
    archive.add_text(samples.record(asked=asked).text(), samples.contents().get, sweep.id)
    assert archive.sweeps()[-1].id == sweep.id
    assert [(one.id, one.finished) for one in archive.sweeps()] == [(SWEEP, True), (sweep.id, True)]
    assert archive.check() == []


def test_an_older_archive_still_guards_what_it_keeps(archive, outputs):
    with pytest.raises(Exception, match="append"):
        execute(outputs / "archive.db", "UPDATE records SET text = '{}'")
    assert counted(outputs / "archive.db", "records") == RECORDS


def test_an_older_record_is_taken_in_by_another_archive(archive, texts, tmp_path):
    """One by one and in a bundle, with its own digest."""
    names = sorted(map(digest, texts))
    export_bundle(archive, names, tmp_path / "sent.zip")
    assert check_bundle(tmp_path / "sent.zip") == []
    with Archive.open(f"sqlite:///{tmp_path}/bundle.db", tmp_path / "bundle") as other:
        assert add_bundle(other, tmp_path / "sent.zip") == names
        assert other.check() == []
    with Archive.open(f"sqlite:///{tmp_path}/single.db", tmp_path / "single") as other:
        assert [other.add_text(text, archive.fetch) for text in texts] == list(map(digest, texts))
        assert sorted(text for (text,) in ((other.record_text(name)[1],) for name in names)) == sorted(texts)
        assert other.check() == []


def test_a_report_on_an_older_sweep_is_written(archive, tmp_path):
    """The machine document of then lacks what a newer one tells."""
    text = build.write_report(archive, SWEEP, tmp_path / "first").read_text()
    assert text == build.write_report(archive, SWEEP, tmp_path / "again").read_text()
    for cell in archive.cells():
        assert cell.digest in text
    for part in ("one_context_given_twice", "chosen_for_both_runs", "as expected"):
        assert part in text
    assert {ruling.word for _, ruling in build.rulings(archive, SWEEP).claims} > {"not tested here"}
    assert build.rulings_of_all(archive)[0].claims


def run(module, folder, *arguments):
    return forked(module, folder, *arguments, strict=False)


def test_the_commands_work_on_an_older_archive(outputs, texts):
    folder = outputs.parent
    assert f"{RECORDS} of {RECORDS}" in run("store", folder, "list", "--sweeps").stdout
    assert len(json.loads(run("store", folder, "list", "--json", "--sweep", SWEEP).stdout)) == RECORDS
    name = digest(texts[0])
    assert name in run("store", folder, "show", name[:12]).stdout
    assert run("store", folder, "show", "--json", name).stdout == texts[0]
    checked = run("store", folder, "check")
    assert (checked.returncode, "no problems" in checked.stdout) == (0, True), checked.stdout
    written = run("reports", folder, "write")
    assert written.returncode == 0, written.stderr
    assert run("reports", folder, "claims").returncode == 0


def test_an_older_archive_is_published(outputs):
    """`python -m reports.mlflow sync` brings all of it back, whoever wrote it."""
    first = run("reports.mlflow", outputs.parent, "sync")
    assert first.returncode == 0, first.stderr
    assert "4 runs published" in first.stdout, first.stdout
    assert "0 runs published, 4 were up to date" in run("reports.mlflow", outputs.parent, "sync").stdout


# Schema 2: a bundle of the records of checkpoint/reentrant_loses_second_derivatives, as its last version wrote it.

SECOND = ROOT / "tests" / "data" / "bundle-schema-2.zip"


@pytest.fixture
def seconds(tmp_path):
    """Each record of schema 2 as it was written."""
    with Archive.open(f"sqlite:///{tmp_path}/second.db", tmp_path / "second") as archive:
        return [archive.record_text(name)[1] for name in add_bundle(archive, SECOND)]


def test_a_record_of_schema_2_keeps_its_text_and_its_digests(seconds):
    assert len(seconds) == 5
    for text in seconds:
        record, data = Record.from_text(text), json.loads(text)["spec"]
        assert parse(text)["schema"] == 2
        assert record.text() == text
        # A field that schema 1 did not have is left out where it says what was so before.
        assert (data["setting"].pop("compile_cache"), data["mark"].pop("series")) == ("private", [])
        assert record.spec.digest() == digest(canonical(data))
        assert (record.spec.setting.threads, record.spec.setting.matmul_precision) == (None, "")


def test_a_field_that_schema_2_did_not_have_is_refused(seconds):
    for name, value in (("threads", 2), ("threads", None), ("matmul_precision", "")):
        with pytest.raises(RecordError):
            Record.from_text(changed(seconds[0], "spec", "setting", name, value=value))
