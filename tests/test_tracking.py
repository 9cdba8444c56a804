"""MLflow as a view of the archive: a real MLflow store on SQLite, a real archive, real processes."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from experiments.core import text as text_module
from experiments.core.canonical_json import digest
from experiments.core.expectations import expectation_to_json
from experiments.core.observation import Tensor
from experiments.core.record import Record
from experiments.core.replay import replays
from experiments.scenario import agrees, differs, raises
from reports.markdown import elements
from reports.mlflow import run_content
from reports.mlflow.__main__ import main
from reports.mlflow.sync import Orders, add_arguments, synchronize
from reports.mlflow.tracking import Tracking, TrackingError
from store.archive import Archive
from tests import samples

# mlflow 3.17's own, under SQLAlchemy 2.1.

ROOT = Path(__file__).parents[1]
HOSTILE = "<script>alert(1)</script> `a` ```\n# head | x \x1b[31mred\x1b[0m \x00 \u202e ![i](http://x/y.png) \ud800 end"


@dataclass
class Lab:
    """An archive with one sweep, and a place for an MLflow store."""

    folder: Path
    archive: Archive
    sweep: str

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def command(self) -> list[str]:
        place = ["--archive", f"sqlite:///{self.folder / 'archive.db'}", "--blobs", str(self.folder / "blobs")]
        where = ["--tracking", self.uri, "--artifacts", str(self.folder / "artifacts")]
        return [sys.executable, "-m", "reports.mlflow", "sync", *place, *where]

    def publish(self, *options: str) -> int:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        where = ["--tracking", self.uri, "--artifacts", str(self.folder / "artifacts")]
        return synchronize(self.archive, parser.parse_args([*where, *options]))

    def runs(self) -> dict[str, Any]:
        """Every run by name."""
        client = mlflow_client(self)
        found = client.search_runs([e.experiment_id for e in client.search_experiments()])
        named = {run.info.run_name: run for run in found}
        assert len(named) == len(found), "two runs of one name"
        return named

    def rows(self) -> dict[str, list[Any]]:
        """What the MLflow database holds of runs."""
        with contextlib.closing(sqlite3.connect(self.folder / "mlflow.db")) as connection:
            tables = ("runs", "metrics", "latest_metrics", "params", "tags", "experiments")
            return {name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in tables}

    def statuses(self) -> dict[str, str]:
        return {name: run.info.status for name, run in self.runs().items()}


def mlflow_client(lab: Lab) -> Any:
    from mlflow import MlflowClient  # noqa: PLC0415 - costs 1.35 s, which collecting tests need not pay

    return MlflowClient(lab.uri)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs: making one takes seconds, copying it does not."""
    folder = tmp_path_factory.mktemp("mlflow")
    with Tracking(f"sqlite:///{folder / 'made.db'}", folder) as tracking:
        tracking.prepare()
    with (
        contextlib.closing(sqlite3.connect(folder / "made.db")) as made,
        contextlib.closing(sqlite3.connect(folder / "copy.db")) as copy,
    ):
        made.backup(copy)
    return folder / "copy.db"


@pytest.fixture
def lab(tmp_path: Path, empty_store: Path):
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    with Archive.open(f"sqlite:///{tmp_path / 'archive.db'}", tmp_path / "blobs") as archive:
        yield Lab(tmp_path, archive, "")


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def with_gradient(record: Record, name: str, content: bytes) -> Record:
    """The record with that one gradient."""
    tensor = Tensor("gradient", name, "float32", (len(content) // 4,), "", digest(content), True, 1.0, 1.0, None, None)
    return replace(record, observation=replace(record.observation, tensors=(tensor,)))


def plain(case: str, *expected: Any, of: Record | None = None, **changes: Any) -> Record:
    reference = None if of is None else of.spec.question.case_digest()
    expectations = tuple(expectation_to_json(one) for one in expected)
    return samples.record(case, expectations=expectations, reference=reference, **changes)


def kept(lab: Lab, records: list[Record], contents: tuple[bytes, ...] = (), only: int | None = None) -> None:
    """Archive the records as a sweep of their own; `only` the first few for one that is unfinished."""
    known = samples.contents(0) | samples.contents(1) | {digest(one): one for one in contents}
    sweep = lab.archive.begin_sweep([record.spec for record in records], digest("machine"))
    for record in records[:only]:
        lab.archive.add_text(record.text(), known.get, sweep.id)
    lab.sweep = sweep.id


def usual(lab: Lab) -> list[Record]:
    """A reference, and a case of each ending."""
    values = floats(1.0, 2.0, 3.0, 4.0), floats(1.0, 2.0, 3.5, 4.0)
    reference = with_gradient(plain("reference", role="reference"), "query", values[0])
    wrong = with_gradient(plain("wrong", differs(by_at_least=0.25), of=reference), "query", values[1])
    error = plain("error", raises(RuntimeError, "no"), of=reference, kind="raised", message="no kernel")
    surprising = plain("surprising", agrees(bitwise=True), of=reference, kind="died", observed=False)
    endless = plain("endless", agrees(bitwise=True), of=reference, kind="timed_out", observed=False)
    absent = plain("absent", agrees(bitwise=True), of=reference, kind="not_run", observed=False)
    profiled = samples.record("wrong", asked=_as_profiled(wrong))
    records = [reference, wrong, profiled, error, surprising, endless, absent]
    kept(lab, records, values)
    return records


def _as_profiled(record: Record):
    return replace(record.spec, question=replace(record.spec.question, pass_="profiled"))


# Structure.


def test_every_replay_is_a_run_below_its_sweep_in_the_experiment_of_its_family(lab: Lab):
    records = usual(lab)
    assert lab.publish() == 0
    runs = lab.runs()
    parent = runs.pop(lab.sweep)
    assert len(runs) == len(replays(records))
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {run.info.experiment_id for run in runs.values()} == {parent.info.experiment_id}
    assert mlflow_client(lab).get_experiment(parent.info.experiment_id).name == "twofold/checkpoint"
    assert {run.data.tags["twofold.replay"] for run in runs.values()} == {one.digest() for one in replays(records)}


def test_a_run_ends_as_its_process_did(lab: Lab):
    usual(lab)
    lab.publish()
    assert lab.statuses() == {
        lab.sweep: "FAILED",
        "policy/reference #0": "FINISHED",
        "policy/wrong #0": "FINISHED",
        "policy/error #0": "FAILED",
        "policy/surprising #0": "FAILED",
        "policy/endless #0": "KILLED",
        "policy/absent #0": "SCHEDULED",
    }


def test_a_sweep_in_which_errors_were_expected_ends_as_finished(lab: Lab):
    reference = plain("reference", role="reference")
    kept(lab, [reference, plain("error", raises(RuntimeError), of=reference, kind="raised", message="no")])
    lab.publish()
    assert lab.statuses()[lab.sweep] == "FINISHED"


def test_an_unfinished_sweep_is_killed(lab: Lab):
    kept(lab, [plain("one"), plain("two")], only=1)
    lab.publish()
    assert lab.statuses() == {lab.sweep: "KILLED", "policy/one #0": "FINISHED"}


def test_a_run_holds_parameters_metrics_tags_and_artifacts(lab: Lab):
    records = usual(lab)
    lab.publish()
    run = lab.runs()["policy/wrong #0"]
    assert run.data.params["case"] == "wrong"
    assert run.data.params["expected"] == "some output or gradient differs from the reference by at least 0.25"
    assert run.data.metrics["reference/gradient query/absolute"] == 0.5
    assert run.data.metrics["reference/gradient query/equal_bits_share"] == 0.75
    assert run.data.metrics["memory_bytes/forward_peak"] == 2
    assert run.data.metrics["operators/forward"] == 1
    assert run.data.tags["twofold.verdict"] == "as expected"
    assert run.data.tags["twofold.record.profiled"] == digest(records[2].text())
    assert run.info.start_time == run_content.milliseconds(records[1].ending.started_at)
    assert run.info.end_time == run.info.start_time + 1250
    files = Path(run.info.artifact_uri.removeprefix("file://"))
    assert (files / "records/plain.json").read_text() == records[1].text()
    assert (files / "operators/forward.txt").read_text() == "aten::mul 16\n"
    assert (files / "sources/experiments/scenarios/checkpoint/policy.py").read_bytes() == samples.SCENARIO
    assert (files / "machine.json").read_bytes() == samples.machine()


def test_the_parent_counts_the_verdicts(lab: Lab):
    usual(lab)
    lab.publish()
    metrics = lab.runs()[lab.sweep].data.metrics
    assert metrics == {
        "verdicts/as_expected": 3,
        "verdicts/not_as_expected": 2,
        "verdicts/cannot_say": 1,
        "replays": 6,
    }


# Again.


@pytest.mark.parametrize("option", [[], ["--all"]])
def test_publishing_twice_changes_nothing(lab: Lab, option: list[str], capsys: pytest.CaptureFixture[str]):
    usual(lab)
    lab.publish()
    before = lab.rows()
    assert capsys.readouterr().out == "6 runs published, 0 were up to date\n"
    assert lab.publish(*option) == 0
    assert capsys.readouterr().out == "0 runs published, 6 were up to date\n"
    assert lab.rows() == before


def test_files_of_runs_that_are_lost_are_brought_back(lab: Lab, capsys: pytest.CaptureFixture[str]):
    """The database is there and says that everything was published."""
    usual(lab)
    lab.publish()
    before = lab.rows()
    shutil.rmtree(lab.folder / "artifacts")
    assert lab.publish() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "6 runs published, 0 were up to date"
    assert all(any(Path(unquote(urlsplit(run.info.artifact_uri).path)).iterdir()) for run in lab.runs().values())
    now = lab.rows()
    assert {name: now[name] for name in ("runs", "params")} == {name: before[name] for name in ("runs", "params")}
    assert lab.publish() == 0
    assert capsys.readouterr().out == "0 runs published, 6 were up to date\n"


def test_a_run_that_was_cut_short_is_completed_not_doubled(lab: Lab):
    """The publisher was killed after it had created a run, and before anything else."""
    usual(lab)
    lab.publish()
    whole = lab.rows()
    run = lab.runs()["policy/wrong #0"].info.run_id
    with contextlib.closing(sqlite3.connect(lab.folder / "mlflow.db")) as connection, connection:
        for table in ("metrics", "latest_metrics", "params"):
            connection.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (run,))
        connection.execute("UPDATE runs SET status = 'RUNNING', end_time = NULL WHERE run_uuid = ?", (run,))
    assert lab.publish("--all") == 0
    now = lab.rows()
    assert {name: now[name] for name in ("runs", "params", "experiments")} == {
        name: whole[name] for name in ("runs", "params", "experiments")
    }
    assert len(now["metrics"]) == len(whole["metrics"]) + 4, "the parent's four numbers, written anew"


def test_an_unfinished_sweep_is_refreshed_when_more_has_run(lab: Lab):
    values = floats(1.0), floats(1.5)
    reference = with_gradient(plain("reference", role="reference"), "query", values[0])
    wrong = with_gradient(plain("wrong", differs(by_at_least=0.25), of=reference), "query", values[1])
    kept(lab, [wrong, reference], values, only=1)
    lab.publish()
    first = lab.runs()["policy/wrong #0"]
    assert first.data.tags["twofold.verdict"] == "cannot say"
    lab.archive.add_text(reference.text(), {digest(one): one for one in values}.get, lab.sweep)
    lab.publish()
    second = lab.runs()["policy/wrong #0"]
    assert second.info.run_id == first.info.run_id
    assert second.data.tags["twofold.verdict"] == "as expected"
    assert second.data.metrics["reference/gradient query/absolute"] == 0.5
    assert lab.statuses()[lab.sweep] == "FINISHED"


def test_a_newer_number_replaces_the_older_even_if_it_is_smaller(lab: Lab, tmp_path: Path):
    """MLflow shows the largest of several values of one step, so each writing has a step of its own."""
    usual(lab)
    sweep = lab.archive.sweeps()[0]
    page = run_content.summary(sweep, "checkpoint", [])
    with Tracking(lab.uri, tmp_path / "artifacts") as tracking:
        tracking.prepare()
        for value in (5.0, 3.0):
            tracking._write_run("checkpoint", sweep.id, "x", replace(page, metrics={"m": value}))
    assert lab.runs()[sweep.id].data.metrics == {"m": 3.0}


def test_a_deleted_run_or_experiment_comes_back(lab: Lab):
    usual(lab)
    lab.publish()
    names = set(lab.runs())
    client = mlflow_client(lab)
    client.delete_run(lab.runs()["policy/wrong #0"].info.run_id)
    lab.publish("--all")
    assert set(lab.runs()) == names
    client.delete_experiment(client.get_experiment_by_name("twofold/checkpoint").experiment_id)
    lab.publish()
    assert set(lab.runs()) == names


def test_a_deleted_database_is_brought_back_by_the_command(lab: Lab):
    usual(lab)
    done = run(lab.command)
    assert (done.returncode, done.stderr) == (0, "")
    before = {name: (one.info.status, one.data.metrics, one.data.params) for name, one in lab.runs().items()}
    whole = lab.folder / "again"
    whole.mkdir()
    moved = Lab(lab.folder, lab.archive, lab.sweep)
    for file in lab.folder.glob("mlflow.db*"):
        file.unlink()
    done = run([*moved.command, "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"published": 6, "skipped": 0, "failed": 0}
    read = "import json,sys; from mlflow import MlflowClient as C; c=C(sys.argv[1]);"
    read += "print(json.dumps({r.info.run_name:(r.info.status,r.data.metrics,r.data.params) for r in c.search_runs("
    read += "[e.experiment_id for e in c.search_experiments()])}))"
    after = json.loads(run([sys.executable, "-c", read, lab.uri]).stdout)
    assert {name: tuple(one) for name, one in after.items()} == before


def test_runs_that_nobody_is_writing_are_ended(lab: Lab):
    usual(lab)
    lab.publish()
    with contextlib.closing(sqlite3.connect(lab.folder / "mlflow.db")) as connection, connection:
        connection.execute("UPDATE runs SET status = 'RUNNING'")
    with Tracking(lab.uri, lab.folder / "artifacts") as tracking:
        tracking.prepare()
        assert tracking.settle(keep=[lab.sweep]) == 0
        assert tracking.settle(machines=["another"]) == 0
        assert tracking.settle() == 7
    assert set(lab.statuses().values()) == {"KILLED"}
    lab.publish()
    assert lab.statuses()["policy/reference #0"] == "FINISHED"


# What MLflow would distort.


def test_long_values_are_cut_visibly_with_the_digest_of_the_whole(lab: Lab):
    long = "x" * 30_000
    kept(lab, [plain("case", role="control", why=long, parameters={"p": long}, kind="raised", message=long)])
    assert lab.publish() == 0
    run = next(run for name, run in lab.runs().items() if name != lab.sweep)
    for text in (run.data.params["why"], run.data.params["parameter.p"]):
        assert len(text) == run_content.PARAM
        assert text.endswith(f"[…cut: 30000 characters in all, SHA-256 {digest(long)}]")
    assert digest(long) in run.data.tags["mlflow.note.content"]
    assert len(run.data.tags["mlflow.note.content"]) <= run_content.NOTE
    assert all(len(text) <= run_content.NOTE for text in run.data.tags.values())


def test_numbers_that_are_none_become_a_tag(lab: Lab):
    values = floats(1.0, math.inf), floats(math.nan, 1.0)
    reference = with_gradient(plain("reference", role="reference"), "query", values[0])
    kept(lab, [reference, with_gradient(plain("case", of=reference), "query", values[1])], values)
    lab.publish()
    run = lab.runs()["policy/case #0"]
    assert "reference/gradient query/absolute = inf" in run.data.tags["twofold.not_finite"]
    assert "reference/gradient query/absolute" not in run.data.metrics
    assert all(math.isfinite(value) for value in run.data.metrics.values())


def test_hostile_text_stays_text(lab: Lab):
    parameters = {HOSTILE.replace("\ud800", ""): 1, "../../up": 2, "a b": 3, "": 4}
    case = plain("case", raises("E", HOSTILE), kind="raised", message=HOSTILE, parameters=parameters, why=HOSTILE)
    case = with_gradient(case, "../../../etc/passwd", floats(1.0))
    lab_records = [case]
    kept(lab, [Record.from_text(one.text()) for one in lab_records], (floats(1.0),))
    assert lab.publish() == 0
    before = lab.rows()
    assert lab.publish("--all") == 0
    assert lab.rows() == before
    run = next(run for name, run in lab.runs().items() if name != lab.sweep)
    for text in (*run.data.tags.values(), *run.data.params.values()):
        assert not [char for char in text if not char.isprintable() and char != "\n"]
    assert "\\x1b[31m" in run.data.tags["mlflow.note.content"]


def test_a_source_cannot_leave_its_folder(tmp_path: Path):
    assert run_content._path_below("sources", "../../etc/passwd") == "sources/etc/passwd"
    assert run_content._path_below("sources", "..") == "sources/unnamed"
    assert run_content._path_below("sources", "C:\\x\\y.py").startswith("sources/C_-")


def test_names_that_mlflow_refuses_are_replaced_and_stay_apart():
    assert text_module.safe_key("a b.c-d_1") == "a b.c-d_1"
    assert text_module.safe_key("a[0]") != text_module.safe_key("a(0)")
    assert text_module.safe_key("..") != text_module.safe_key(".")


def test_code_in_a_note_cannot_be_ended_from_within():
    shown = elements.block("before\n```\nafter")
    assert shown.startswith("````\n")
    assert shown.endswith("\n````")
    assert elements.code("a `` b") == "``` a `` b ```"


def test_a_replay_without_a_plain_pass_is_not_called_finished(lab: Lab):
    kept(lab, [samples.record("case", asked=_as_profiled(plain("case")))])
    lab.publish()
    run = lab.runs()["policy/case #0"]
    assert (run.info.status, run.data.tags["twofold.verdict"]) == ("SCHEDULED", "cannot say")


# MLflow that cannot be used.


def test_without_mlflow_one_sentence_says_how_to_publish_later(lab: Lab, capsys: pytest.CaptureFixture[str]):
    usual(lab)
    assert lab.publish("--tracking", "http://127.0.0.1:9") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "python -m reports.mlflow sync" in said.err


@pytest.mark.parametrize("uri", ["nonsense://x/y", "sqlite:////dev/null/x/mlflow.db", "http://127.0.0.1:9/"])
def test_an_unreachable_store_is_a_tracking_error(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with Tracking(uri, tmp_path) as tracking, pytest.raises(TrackingError, match="cannot be used"):
        tracking.prepare()


def test_passwords_are_not_shown(tmp_path: Path):
    with Tracking("postgresql://user:secret@127.0.0.1:9/x", tmp_path) as tracking, pytest.raises(TrackingError) as told:
        tracking.prepare()
    assert "secret" not in str(told.value)


def test_an_unknown_sweep_is_refused_by_name(lab: Lab, capsys: pytest.CaptureFixture[str]):
    usual(lab)
    assert lab.publish("--sweep", "nothing") == 2
    assert lab.sweep in capsys.readouterr().err


# Following a sweep.


def test_a_followed_sweep_is_published_group_by_group(lab: Lab):
    records = usual(lab)
    with following(lab) as process:
        assert process.stdout.readline() == "ready\n"
        order(process, {"records": [digest(record.text()) for record in records]})
        order(process, {"end": True})
        out, err = process.communicate(timeout=60)
    assert json.loads(out) == {"published": 6, "skipped": 0, "failed": 0}
    assert (process.returncode, err) == (0, "")
    followed = lab.rows()
    assert lab.statuses()[lab.sweep] == "FAILED"
    assert lab.publish("--all") == 0
    assert lab.rows() == followed


def test_a_followed_sweep_ends_with_what_nobody_asked_for(lab: Lab):
    """A sweep is resumed: the records of its first run are in the archive already."""
    usual(lab)
    with following(lab) as process:
        order(process, {"end": True})
        out, _ = process.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["published"] == 6


def test_a_killed_driver_leaves_no_run_running(lab: Lab):
    records = usual(lab)
    with following(lab) as process:
        order(process, {"records": [digest(record.text()) for record in records]})
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert lab.statuses()[lab.sweep] == "KILLED"
    assert "RUNNING" not in lab.statuses().values()
    lab.publish()
    assert lab.statuses()[lab.sweep] == "FAILED"


def test_ctrl_c_is_left_to_the_driver(lab: Lab):
    records = usual(lab)
    with following(lab) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        order(process, {"records": [digest(record.text()) for record in records]})
        process.send_signal(signal.SIGINT)
        order(process, {"end": True})
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_driver_is_never_kept_waiting_by_an_unreachable_mlflow(lab: Lab):
    """More than a pipe holds is written, and somebody must take it."""
    usual(lab)
    with following(lab, "--tracking", "http://127.0.0.1:9") as process:
        assert process.stdout.readline() == "unreachable\n"
        for _ in range(200):
            order(process, {"records": ["0" * 64] * 20})
        order(process, {"end": True})
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert json.loads(out) == {"published": 0, "skipped": 0, "failed": 6}
    assert err.count("\n") == 1
    assert "python -m reports.mlflow sync" in err
    assert "Traceback" not in err


def test_orders_that_are_none_do_not_stop_the_reading():
    orders = Orders(iter(["nonsense\n", '{"records": ["a"]}\n', "[]\n", '{"end": true}\n']))
    assert [group for groups in orders.batches() for group in groups] == [["a"]]
    assert orders.ended == "told"


@contextlib.contextmanager
def following(lab: Lab, *options: str):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*lab.command, "--follow", lab.sweep, *options], cwd=ROOT, text=True, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def order(process: subprocess.Popen[str], what: dict[str, Any]) -> None:
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=120)


# The user interface.


def test_the_user_interface_says_that_nothing_was_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["ui", "--tracking", f"sqlite:///{tmp_path / 'none.db'}"]) == 2
    assert "nothing has been published yet" in capsys.readouterr().err


def test_the_user_interface_names_another_port(lab: Lab, capsys: pytest.CaptureFixture[str]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["ui", "--tracking", lab.uri, "--port", str(taken.getsockname()[1])]) == 2
    assert "is taken; try another one" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_user_interface_answers_and_ends_with_its_parent(lab: Lab, ending: signal.Signals):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "reports.mlflow", "ui", "--port", port, "--tracking", lab.uri]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline().startswith(f"http://127.0.0.1:{port}")
        process.send_signal(ending)
        assert process.wait(timeout=30) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))), "the server is still there"


def test_the_user_interface_is_told_its_addresses_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Everybody on the machine can read a command line."""
    started: dict[str, Any] = {}

    class Process:
        pid, returncode = 2**22 + 1, 0

        def __init__(self, command: list[str], env: dict[str, str], **_: Any) -> None:
            started.update(command=command, env=env)

        def poll(self) -> int:
            return 0

        wait = poll

    monkeypatch.setattr("reports.mlflow.ui.subprocess.Popen", Process)
    before = {ending: signal.getsignal(ending) for ending in (signal.SIGTERM, signal.SIGHUP)}
    try:
        uri = "postgresql://lab:hunter2@127.0.0.1:9/mlflow"
        assert main(["ui", "--tracking", uri, "--artifacts", str(tmp_path / "a b"), "--port", "0"]) == 2
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)
    assert "hunter2" not in " ".join(started["command"])
    assert started["env"]["MLFLOW_BACKEND_STORE_URI"] == uri
    assert started["env"]["MLFLOW_DEFAULT_ARTIFACT_ROOT"] == (tmp_path / "a b").as_uri()


def test_mlflow_is_imported_only_when_it_is_needed():
    """`python -m store list` must not pay 1.35 s for it."""
    code = "import sys, reports.mlflow.__main__, store.__main__; sys.exit('mlflow' in sys.modules)"
    assert run([sys.executable, "-c", code]).returncode == 0
