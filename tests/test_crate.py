"""Records as a Process Run Crate: what is in it, and that the validator of RO-Crates takes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib import resources
from pathlib import Path

import pytest
import samples
import yaml

from experiments.core.canonical_json import digest
from store.__main__ import main
from store.archive import Archive, ArchiveError
from store.ro_crate import export_crate

ROOT = Path(__file__).parents[1]
METADATA = "ro-crate-metadata.json"
CONTEXT = "https://w3id.org/ro/crate/1.1/context"
RECORDS = {
    "finished": samples.record("c0"),
    "raised": samples.record("c1", kind="raised", message="red \x1b[31m\nand <b> more " + "x" * 5000),
    "not_run": samples.record("c2", kind="not_run", observed=False, started_at="2026-01-03T23:59:59.500000Z"),
    "died": samples.record("c3", kind="died"),
    "lost": samples.record("c4", kind="died", observed=False, source="0" * 64, scenario="attention/other"),
}


@pytest.fixture
def archive(tmp_path):
    with Archive.open(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as opened:
        yield opened


@pytest.fixture
def kept(archive):
    """Digests of records that ended in different ways, by how."""
    return {how: archive.add_text(record.text(), samples.contents().get) for how, record in RECORDS.items()}


@pytest.fixture
def crate(archive, kept, tmp_path):
    export_crate(archive, list(kept.values()), tmp_path / "crate")
    return tmp_path / "crate"


def entities(crate):
    graph = json.loads((crate / METADATA).read_text("utf-8"))["@graph"]
    assert len({one["@id"] for one in graph}) == len(graph)
    return {one["@id"]: one for one in graph}


def actions(crate):
    return {name: one for name, one in entities(crate).items() if one["@type"] == "CreateAction"}


# What is in it.


def test_it_holds_records_what_was_asked_machines_and_sources_as_they_are(archive, crate, kept):
    for name in kept.values():
        assert (crate / f"records/{name}.json").read_text("utf-8") == archive.record_text(name)[1]
    documents = {path.stem: path.read_bytes() for path in (crate / "documents").iterdir()}
    assert documents == {digest(one): one for one in (samples.machine(), samples.SCENARIO)}
    for path in (crate / "specs").iterdir():
        assert digest(path.read_bytes()) == path.stem
    found = {path.relative_to(crate).as_posix() for path in crate.rglob("*") if path.is_file()} - {METADATA}
    assert found == {part["@id"] for part in entities(crate)["./"]["hasPart"]}


def test_each_process_is_an_action_that_says_how_it_ended(crate, kept):
    found = actions(crate)
    assert set(found) == {f"#run-{name}" for how, name in kept.items() if how != "not_run"}
    status = {how: found[f"#run-{name}"]["actionStatus"] for how, name in kept.items() if how != "not_run"}
    assert status.pop("finished") == "http://schema.org/CompletedActionStatus"
    assert set(status.values()) == {"http://schema.org/FailedActionStatus"}
    assert "error" not in found[f"#run-{kept['finished']}"]
    error = found[f"#run-{kept['raised']}"]["error"]
    assert error.startswith("RuntimeError: red \x1b[31m\nand <b> more xxx")
    assert len(error) < 1100


def test_an_action_leads_to_all_that_it_is_about(crate, kept):
    told = entities(crate)
    one = told[f"#run-{kept['finished']}"]
    assert (one["startTime"], one["endTime"]) == ("2026-01-02T03:04:05.000+00:00", "2026-01-02T03:04:06.250+00:00")
    tool = told[one["instrument"]["@id"]]
    assert (tool["@type"], tool["name"]) == (
        ["File", "SoftwareSourceCode"],
        "experiments/scenarios/checkpoint/policy.py",
    )
    assert json.loads((crate / one["object"]["@id"]).read_text())["question"]["case"] == "c0"
    results = [told[part["@id"]]["name"] for part in one["result"]]
    assert results == ["Record of checkpoint/policy, c0, plain pass", "Facts of a machine"]
    assert told[one["agent"]["@id"]]["name"] == "Whoever ran the processes"


def test_a_scenario_whose_file_no_process_has_kept_is_told_of_without_it(crate, kept):
    told = entities(crate)
    tool = told[told[f"#run-{kept['lost']}"]["instrument"]["@id"]]
    assert (tool["@type"], tool["name"]) == ("SoftwareSourceCode", "attention/other")
    assert tool["@id"].startswith("#")


def test_torch_is_named_with_its_version(archive, tmp_path):
    bench = samples.Bench()
    for version in ("2.13.0+cpu", "2.14.1"):
        asked = samples.spec(f"under {version}")
        made = bench.record(asked, bench.tensor("output", "y", [1.0]), machine=samples.facts(version=version))
        archive.add_text(made.text(), bench.blobs.get)
    export_crate(archive, [one.digest for one in archive.cells()], tmp_path / "crate")
    told = entities(tmp_path / "crate")
    assert all("with torch 2.1" in one["description"] for one in actions(tmp_path / "crate").values())
    needed = told[f"documents/{digest(samples.SCENARIO)}.txt"]["softwareRequirements"]
    assert [told[one["@id"]]["softwareVersion"] for one in needed] == ["2.13.0+cpu", "2.14.1"]


def test_nothing_in_it_says_when_or_where_it_was_made(archive, crate, kept, tmp_path):
    export_crate(archive, [*reversed(kept.values()), kept["died"]], tmp_path / "again.zip")
    with zipfile.ZipFile(tmp_path / "again.zip") as file:
        assert file.read(METADATA) == (crate / METADATA).read_bytes()
        assert {one.date_time for one in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    export_crate(archive, list(kept.values()), tmp_path / "third.zip")
    assert (tmp_path / "third.zip").read_bytes() == (tmp_path / "again.zip").read_bytes()
    root = entities(crate)["./"]
    assert root["datePublished"] == "2026-01-03"
    assert "not run, for a reason that the record tells: 1." in root["description"]


# The command.


def command(archive, *arguments):
    return main(["export", "--archive", archive.name, *map(str, arguments)])


def test_the_command_writes_a_folder_or_a_zip_file_of_a_sweep(archive, tmp_path, capsys):
    asked = samples.spec("c0")
    sweep = archive.begin_sweep([asked], "a" * 64).id
    name = archive.add_text(samples.record(asked=asked).text(), samples.contents().get, sweep)
    assert command(archive, "--ro-crate", "--sweep", sweep, tmp_path / "folder") == 0
    assert command(archive, "--ro-crate", "--json", name[:9], tmp_path / "file.zip") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == str(tmp_path / "folder")
    assert json.loads(shown[1]) == {"file": str(tmp_path / "file.zip"), "records": [name]}
    with zipfile.ZipFile(tmp_path / "file.zip") as file:
        assert file.read(METADATA) == (tmp_path / "folder" / METADATA).read_bytes()


def test_what_cannot_be_written_is_a_sentence_and_leaves_nothing(archive, kept, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    for place, says in (("there", "is there already"), ("file/in.zip", "cannot be written"), ("file/in", "written")):
        assert command(archive, "--ro-crate", kept["died"], tmp_path / place) == 2
        assert says in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with pytest.raises(ArchiveError, match="no record to export"):
        export_crate(archive, [], tmp_path / "none")


def test_a_record_without_a_time_is_a_sentence(archive, tmp_path, monkeypatch):
    """One that was taken in before times were looked at."""
    monkeypatch.setattr("store.archive.refuse_invalid_times", lambda _: None)
    name = archive.add_text(samples.record(started_at="yesterday").text(), samples.contents().get)
    with pytest.raises(ArchiveError, match="says no time that can be read: 'yesterday'"):
        export_crate(archive, [name], tmp_path / "crate")


def test_only_a_crate_imports_its_library(tmp_path):
    code = "import sys, store.__main__; sys.exit('rocrate' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False).returncode == 0


# The validator.


SEED = """
import io, sys
from pathlib import Path
import requests, requests_cache

class Told(requests.adapters.BaseAdapter):
    def send(self, request, **options):
        answer = requests.Response()
        answer.status_code, answer.url, answer.request = 200, request.url, request
        answer.headers["Content-Type"] = "application/ld+json"
        answer.raw = requests.packages.urllib3.HTTPResponse(
            io.BytesIO(Path(sys.argv[2]).read_bytes()), headers=answer.headers, status=200, preload_content=False
        )
        return answer

    def close(self):
        pass

session = requests_cache.CachedSession(sys.argv[1], backend="sqlite", expire_after=-1)
session.mount("https://", Told())
session.get(sys.argv[3], headers={"Accept": "application/ld+json, application/json, */*;q=0.1"})
"""
"""Puts the context of RO-Crates into the validator's cache, so that it needs no network."""


@pytest.fixture(scope="session")
def seed(tmp_path_factory):
    path = tmp_path_factory.mktemp("validator") / "cache"
    context = resources.files("rocrate") / "data/ro-crate.jsonld"
    subprocess.run([sys.executable, "-c", SEED, path, str(context), CONTEXT], check=True)
    return path


def refused(crate, seed, severity="required"):
    """What the validator says against a crate. Empty if it takes it."""
    code = "import sys; from rocrate_validator.cli import cli; cli()"
    options = ["-y", "validate", "-p", "process-run-crate-0.5", "--offline", "--no-paging", "--output-format", "json"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *options, "--cache-path", seed, "-l", severity, "-v", crate],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "200"},
        timeout=120,
        check=False,
    )
    assert ended.returncode in (0, 1), ended
    said = ended.stdout + ended.stderr
    assert "not available in the HTTP cache" not in said, said
    return "" if ended.returncode == 0 else said


def test_the_validator_takes_it(crate, seed):
    assert refused(crate, seed) == ""


def test_the_validator_takes_a_crate_in_which_nothing_was_run(archive, kept, tmp_path, seed):
    export_crate(archive, [kept["not_run"]], tmp_path / "crate")
    assert refused(tmp_path / "crate", seed) == ""
    assert actions(tmp_path / "crate") == {}


def without_instrument(graph):
    action = next(one for one in graph if one["@type"] == "CreateAction")
    del action["instrument"]


def without_profile(graph):
    root = next(one for one in graph if one["@id"] == "./")
    del root["conformsTo"]


@pytest.mark.parametrize(
    ("broken", "says"),
    [(without_instrument, "instrument property"), (without_profile, "permalink of the profile")],
)
def test_the_validator_refuses_a_broken_one(crate, seed, broken, says):
    data = json.loads((crate / METADATA).read_text("utf-8"))
    broken(data["@graph"])
    (crate / METADATA).write_text(json.dumps(data), "utf-8")
    assert says in refused(crate, seed)


def test_the_validator_refuses_one_that_lacks_a_file(crate, seed):
    next((crate / "documents").iterdir()).unlink()
    assert refused(crate, seed) != ""


# How to cite it.


def test_the_citation_file_has_what_its_format_requires():
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= set(said) <= FIELDS
    assert (said["cff-version"], said["type"], said["title"]) == ("1.2.0", "software", "Twofold")
    assert (said["version"], said["license"]) == (project["version"], project["license"])
    assert said["authors"] == [{"name": "The Twofold authors"}]
    assert all(isinstance(said[name], str) for name in set(said) - {"authors", "keywords"})
    assert len(set(said["keywords"])) == len(said["keywords"])


FIELDS = {"abstract", "authors", "cff-version", "keywords", "license", "message", "title", "type", "version"}
"""Those of the format's version 1.2.0 that we use."""
