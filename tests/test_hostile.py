"""Hostile bundles through all that looks at one: nothing crashes, hangs, or prints what steers a terminal.

`hostile.py` makes them. What is run here is what the commands run, in this process: one for each would take hours.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator
from xml.etree import ElementTree as ET

import hostile
import pytest
from test_report import assert_safe

from experiments.app import counter_replay
from experiments.bundle import writer
from experiments.core import bounds
from experiments.core.canonical_json import digest
from experiments.core.replay import replays
from experiments.core.verdict import contexts, judge
from experiments.planning.config import ArchiveConfig, Config, Device
from reports import build, setting_comparison
from reports.__main__ import main as report
from reports.mlflow import run_content
from store.__main__ import main as store
from store.archive import Archive

LONGEST = 10.0
"""Seconds of the processor that one bundle may take in any one command."""
SAMPLE = 100
"""Bundles in the default run: all of them are looked at, and the first that are taken in go through everything."""
WHOLE = 3
EVERY = 2000


@dataclass(frozen=True)
class Place:
    """A folder with an archive of a genuine sweep, from which each bundle starts anew."""

    folder: Path
    home: hostile.Home
    sweep: str

    @property
    def archive(self) -> str:
        return f"sqlite:///{self.folder}/archive.db"

    @property
    def blobs(self) -> Path:
        return self.folder / "blobs"

    @property
    def where(self) -> list[str]:
        return ["--archive", self.archive, "--blobs", str(self.blobs)]

    def restore(self) -> None:
        for path in self.folder.glob("archive.db*"):
            path.unlink()
        shutil.copyfile(self.folder / "home.db", self.folder / "archive.db")


def begun(folder: Path, home: hostile.Home) -> Place:
    with Archive.open(f"sqlite:///{folder}/home.db", folder / "blobs") as archive:
        sweep = archive.begin_sweep([one.spec for one in home.records], "a" * 64).id
        for one in home.records:
            archive.add_text(one.text(), home.contents.get, sweep)
    (folder / "published").mkdir()
    return Place(folder, home, sweep)


@pytest.fixture(scope="module")
def genuine(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("hostile"), hostile.Home())


def at(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(build, "PUBLISHED", place.folder / "published")
    monkeypatch.chdir(place.folder)
    place.restore()
    return place


@pytest.fixture
def place(genuine, monkeypatch):
    return at(genuine, monkeypatch)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Of a scenario with short records."""
    return at(begun(tmp_path, hostile.Home(hostile.SCENARIOS[1])), monkeypatch)


@contextlib.contextmanager
def watched(what: str) -> Iterator[io.StringIO]:
    """What is printed within, which must be visible, and within `LONGEST`."""

    def too_long(*_: Any) -> None:
        raise AssertionError(f"{what} took more than {LONGEST:g} s")

    out = io.StringIO()
    out.reconfigure = lambda **_: None  # type: ignore[attr-defined]
    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            yield out
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    said = out.getvalue()
    assert all(char.isprintable() or char == "\n" for char in said), (what, said[:500])
    assert "Traceback (most recent call last):\n  File" not in said or what.startswith("show"), (what, said)


def added_to(place: Place, path: Path) -> bool:
    """Whether the bundle was taken in."""
    with watched("add") as said:
        status = store(["add", str(path), *place.where])
    assert status in (0, 2), said.getvalue()
    return status == 0


def through_everything(place: Place, path: Path, *, thorough: bool) -> bool:
    """Whether the bundle was taken in. With `thorough` also commands that do what others do."""
    added = 0 if added_to(place, path) else 2
    if thorough:
        with watched("check"):
            assert (store(["check", str(path)]), added) in ((0, 0), (1, 2))
    if added == 0:
        with Archive.open(place.archive, place.blobs) as archive:
            assert not thorough or archive.check() == []
            own = {digest(one.text()) for one in place.home.records}
            names = [one.digest for one in archive.cells() if one.digest not in own] or list(own)
        with watched("list"):
            assert store(["list", *place.where]) == 0
            assert store(["list", "--json", *place.where]) == 0
            assert store(["list", "--sweeps", *place.where]) == 0
        for name in names:
            with watched("show"):
                assert store(["show", name, *place.where]) == 0
        reported(place)
        published(place)
        proven(place)
        if thorough:
            with watched("diff"):
                assert store(["diff", names[0], names[-1], *place.where]) in (0, 1)
            with watched("claims"):
                assert report(["claims", "--all", *place.where]) == 0
    with watched("report on the bundle"):
        assert report([str(path), "--to", "reports"]) in ((0, 2) if added == 0 else (2,))
    return added == 0


def reported(place: Place) -> None:
    with watched("report"):
        status = report([*place.where, "--sweep", place.sweep, "--to", "reports", "--junit", "junit.xml"])
    assert status == 0, "our own report stands"
    text = (place.folder / "reports" / f"{place.sweep}.md").read_text()
    # The figures are the report's own.
    assert_safe(re.sub(rf"^!\[[\w ,.-]+\]\({place.sweep}[\w.-]*\.png\)$", "", text, flags=re.MULTILINE))
    ET.parse(place.folder / "junit.xml")


def published(place: Place) -> None:
    """What MLflow would be given: pages that it can hold."""
    with Archive.open(place.archive, place.blobs) as archive, watched("publish"):
        for sweep in archive.sweeps():
            made = replays(archive.records(sweep=sweep.id))
            rows = []
            for replay, context in zip(made, contexts(made, archive.fetch), strict=True):
                texts = run_content.record_texts(replay)
                rows.append(run_content.row(replay, judge(replay, context), texts))
                page = run_content.page(replay, context, rows[-1], texts, sweep=sweep, document=archive.document)
                assert page.digest()
            assert run_content.summary(sweep, "checkpoint", rows).digest()


def proven(place: Place) -> None:
    cfg = Config(prove="all", dry_run=True, devices=[Device.cpu])
    cfg.archive = ArchiveConfig(url=place.archive, blobs=str(place.blobs))
    with watched("prove"):
        assert counter_replay.prove(cfg, lambda *_: 0) == 0


def run_all(place: Place, seeds: range, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many bundles were taken in, and how many refused."""
    taken, chart = 0, build.chart
    for seed in seeds:
        # To draw takes longer than all the rest, and what is drawn are counts.
        monkeypatch.setattr(build, "chart", chart if seed % 20 == 0 else lambda *_: b"")
        place.restore()
        path = place.folder / f"{seed}.zip"
        hostile.write(place.home, seed, path)
        try:
            taken += through_everything(place, path, thorough=seed % 4 == 0)
        except BaseException as error:
            raise AssertionError(f"the bundle of seed {seed}: {type(error).__name__}: {error}") from error
        path.unlink()
    return taken, len(seeds) - taken


def test_nothing_that_is_hostile_stops_or_steers_anything(small, monkeypatch):
    taken = []
    for seed in range(SAMPLE):
        path = small.folder / f"{seed}.zip"
        hostile.write(small.home, seed, path)
        if len(taken) >= WHOLE:
            with watched("check"):
                taken += [seed] if store(["check", str(path)]) == 0 else []
        elif run_all(small, range(seed, seed + 1), monkeypatch)[0]:
            taken.append(seed)
    assert SAMPLE / 5 < len(taken) < 4 * SAMPLE / 5, "most of what they would do is behind the door"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, EVERY, 200))
def test_nothing_of_two_thousand_stops_or_steers_anything(tmp_path, monkeypatch, start):
    """Ten times two hundred, of two scenarios in turn."""
    place = at(begun(tmp_path, hostile.Home(hostile.SCENARIOS[start // 200 % 2])), monkeypatch)
    began = time.process_time()
    taken, refused = run_all(place, range(start, start + 200), monkeypatch)
    print(f"{taken} taken, {refused} refused, {time.process_time() - began:.0f} s of the processor")


def test_the_same_seed_makes_the_same_bundle(place):
    assert hostile.made(place.home, 7) == hostile.made(place.home, 7) != hostile.made(place.home, 8)


# The attacks that were seen, each by itself.


def sent(place: Place, *changes: Any, every: bool = False, number: int = 1) -> Path:
    """A bundle of a genuine record, or of `every`, each sealed again after a change was made to its JSON."""
    contents, made = dict(place.home.contents), []
    # A profiled pass has everything that a plain one has, and operators.
    for one in sorted(place.home.records, key=lambda one: one.spec.question.pass_)[None if every else -1 :]:
        for change in changes:
            data = json.loads(one.text())
            change(data, contents)
            made.append(hostile.sealed(data))
    path = place.folder / "sent.zip"
    writer.write(path, hostile.members(made, contents, number))
    return path


def on(facts: Any) -> Any:
    """A change of the machine document to what `facts` makes of it."""

    def change(data: Any, contents: dict[str, bytes]) -> None:
        seen = data["observation"]
        document = json.loads(contents[seen["machine"]])
        content = json.dumps({**document, "host": "c0ffeec0ffee", **facts}, separators=(",", ":")).encode()
        contents[digest(content)] = content
        seen["machine"] = digest(content)

    return change


def many(count: int) -> Any:
    def change(data: Any, _: dict[str, bytes]) -> None:
        if data["observation"]["operators"]:
            data["observation"]["operators"]["forward"] = [[0, 0, "?", []]] * count

    return change


def with_sketch(content: bytes) -> Any:
    def change(data: Any, contents: dict[str, bytes]) -> None:
        contents[digest(content)] = content
        for tensor in data["observation"]["tensors"]:
            tensor["sketch"] = digest(content)

    return change


def with_tensor(**changes: Any) -> Any:
    def change(data: Any, _: dict[str, bytes]) -> None:
        data["observation"]["tensors"][0].update(changes)

    return change


REFUSED = {
    "two facts print alike": on({"a": {"b\ud800": 1}, "a.b\\ud800": 2}),
    "has 30000 dimensions; at most 64": with_tensor(shape=[1] * 30_000),
    "operators; at most 20000": many(20_500),
    "name of the tensor has 1000000 characters": with_tensor(name="n" * 10**6),
    "has 8388608 bytes and is called a sketch": with_sketch(bytes(2**23)),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_would_stop_or_slow_every_report_is_refused_before_anything_is_added(place, capsys, says):
    path = sent(place, REFUSED[says])
    before = (place.folder / "archive.db").read_bytes()
    assert store(["add", str(path), *place.where]) == 2
    assert says in capsys.readouterr().err
    assert (place.folder / "archive.db").read_bytes() == before
    assert report([str(path)]) == 2
    said = capsys.readouterr()
    assert (said.out, says in said.err) == ("", True)


def test_what_was_taken_in_before_there_were_bounds_is_a_row_and_the_report_stands(place, capsys, monkeypatch):
    path = sent(place, REFUSED["two facts print alike"], every=True)
    with monkeypatch.context() as before:
        before.setattr(bounds, "refuse_excess_facts", lambda _: None)
        assert store(["add", str(path), *place.where]) == 0
    assert report([*place.where, "--sweep", place.sweep, "--to", "reports", "--junit", "junit.xml"]) == 0
    text = (place.folder / "reports" / f"{place.sweep}.md").read_text()
    assert "cannot be compared: RecordError: two keys of an object print alike" in text
    assert report([*place.where, "--sweep", place.sweep, "--to", "alone", "--alone"]) == 0
    alone = (place.folder / "alone" / f"{place.sweep}.md").read_text()
    assert text.split("## Verdicts")[0].count("\n") >= alone.split("## Verdicts")[0].count("\n") > 3


def test_what_one_setting_wrote_takes_no_other_from_the_report(place, monkeypatch):
    """Each is looked at by itself, once something raises."""
    assert store(["add", str(sent(place, on({"more": "x"}), every=True)), *place.where]) == 0
    path = sent(place, REFUSED["two facts print alike"], every=True)
    with monkeypatch.context() as before:
        before.setattr(bounds, "refuse_excess_facts", lambda _: None)
        assert store(["add", "--no-sweep", str(path), *place.where]) == 0
    with Archive.open(place.archive, place.blobs) as archive:
        made = build.make_report(archive, place.sweep, "stem", build.PUBLISHED)
    assert len(made.across.others) == 1
    assert [one.reason[:31] for one in made.across.failed] == ["cannot be compared: RecordError"]


def test_claims_that_another_setting_stops_are_decided_without_it_and_this_is_said(place, monkeypatch):
    assert store(["add", str(sent(place, on({"more": "x"}), every=True)), *place.where]) == 0
    gather = build.gather

    def fails(made, fetch, machines, elsewhere=()):
        if elsewhere:
            raise ValueError("what somebody wrote")
        return gather(made, fetch, machines)

    monkeypatch.setattr(build, "gather", fails)
    with Archive.open(place.archive, place.blobs) as archive:
        made = build.make_report(archive, place.sweep, "stem", build.PUBLISHED)
    (told,) = [one for one in made.across.failed if one.name.startswith("claims")]
    assert told.reason == "cannot be compared: ValueError: what somebody wrote"
    assert "what somebody wrote" in made.text


def test_a_case_whose_comparison_raises_is_a_row_of_its_own(place, monkeypatch):
    path = sent(place, on({"more": "x"}), every=True)
    assert store(["add", str(path), *place.where]) == 0
    genuine, asked = setting_comparison.rank, []

    def raising(*given: Any) -> Any:
        asked.append(given)
        if len(asked) == 1:
            raise OverflowError("too large")
        return genuine(*given)

    monkeypatch.setattr(setting_comparison, "rank", raising)
    with Archive.open(place.archive, place.blobs) as archive:
        made = build.make_report(archive, place.sweep, "stem", build.PUBLISHED)
    rules = [pair.agreement.rule for pair in made.across.pairs]
    assert [rule for rule in rules if rule.startswith("cannot")] == ["cannot be compared: OverflowError: too large"]
    assert len(rules) > 1
    assert "cannot be compared: OverflowError: too large" in made.text


def test_more_settings_than_are_compared_are_said(place):
    machines = [on({"system": {"name": f"system {number}"}}) for number in range(setting_comparison.MOST_SETTINGS + 2)]
    assert store(["add", str(sent(place, *machines)), *place.where]) == 0
    with Archive.open(place.archive, place.blobs) as archive:
        made = build.make_report(archive, place.sweep, "stem", build.PUBLISHED)
    assert len(made.across.others) == setting_comparison.MOST_SETTINGS
    most = setting_comparison.MOST_SETTINGS
    assert f"it has {most + 2} settings; the first {most} are compared" in made.text


def test_more_tensors_than_are_looked_at_are_said(place, monkeypatch):
    def other(data: Any, contents: dict[str, bytes]) -> None:
        on({"more": "x"})(data, contents)
        for tensor in data["observation"]["tensors"]:
            if tensor["role"] != "input" and tensor["digest"]:
                content = bytes(len(contents[tensor["digest"]]))
                contents[digest(content)] = content
                tensor.update(digest=digest(content))

    path = sent(place, other, every=True)
    assert store(["add", str(path), *place.where]) == 0
    monkeypatch.setattr(setting_comparison, "LARGEST_FETCHED", 1)
    with Archive.open(place.archive, place.blobs) as archive:
        made = build.make_report(archive, place.sweep, "stem", build.PUBLISHED)
    assert "too much of the tensors of " in made.text


def test_more_records_than_are_looked_at_are_said(place, monkeypatch):
    path = sent(place, on({"more": "x"}))
    assert store(["add", str(path), *place.where]) == 0
    monkeypatch.setattr(build, "LARGEST_COMPARED", 100)
    with Archive.open(place.archive, place.blobs) as archive:
        made = build.make_report(archive, place.sweep, "stem", build.PUBLISHED)
    assert "its records of these questions have " in made.text
    assert " characters; 100 more are looked at" in made.text


def test_a_bundle_of_which_nothing_can_be_made_is_a_sentence(place, capsys, monkeypatch):
    path = sent(place, on({}))

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("by what it holds")

    monkeypatch.setattr(build, "compare", broken)
    assert report([str(path)]) == 2
    assert "nothing can be made of sent.zip: ZeroDivisionError: by what it holds" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):  # what fails on our own sweep is ours to mend
        report([*place.where, "--sweep", place.sweep])


def test_claims_from_all_sweeps_leave_out_the_one_that_stops_them(place, capsys):
    def nothing(data: Any, contents: dict[str, bytes]) -> None:
        contents[digest(b"{}")] = b"{}"
        data["observation"]["machine"] = digest(b"{}")

    where = ["--archive", f"sqlite:///{place.folder}/strangers.db", "--blobs", str(place.blobs)]
    for number, change in enumerate((on({}), nothing), 1):
        assert store(["add", str(sent(place, change, number=number)), *where]) == 0
    capsys.readouterr()
    assert report(["claims", "--all", *where]) == 0
    said = capsys.readouterr()
    assert "is left out: nothing can be decided from it: ArchiveError: machine document" in said.err
    assert "checkpoint attention note" in said.out


def test_a_fact_with_terminal_escapes_is_visible_in_what_proving_prints(place, capsys):
    """It forged a line that said: proven."""
    path = sent(place, on({"\x1b]0;PWNED\x07\x1b[31mred\nfake: proven": "x"}), every=True)
    assert store(["add", str(path), *place.where]) == 0
    capsys.readouterr()
    proven(place)
    said = capsys.readouterr()
    assert all(char.isprintable() or char == "\n" for char in said.out + said.err)
