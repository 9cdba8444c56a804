"""A bundle comes back as it was, and one from a stranger is believed only as far as it can be checked."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import subprocess
import sys
import time
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import samples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from experiments.bundle import layout, reader, writer
from experiments.core.canonical_json import RecordError, canonical, digest, parse
from experiments.core.schema_history import SCHEMA
from experiments.core.spec import spec_of_attempt
from experiments.core.sweep import sweep_id
from store import index
from store.archive import Archive, ArchiveError
from store.bundles import add_bundle, check_bundle, export_bundle, manifest_and_signature, read_bundle

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = sorted((ROOT / "store" / "published").glob("*.zip"))


@pytest.fixture
def archive(tmp_path):
    with Archive.open(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as opened:
        yield opened


@pytest.fixture
def other(tmp_path):
    """Where bundles are taken in."""
    with Archive.open(f"sqlite:///{tmp_path}/other.db", tmp_path / "other") as opened:
        yield opened


@pytest.fixture
def sent(archive, tmp_path):
    """A bundle of two records, which share a machine and a source."""
    names = [archive.add_text(samples.record(seed=seed).text(), samples.contents(seed).get) for seed in (1, 2)]
    export_bundle(archive, names, tmp_path / "sent.zip")
    return tmp_path / "sent.zip"


def members(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def manifest(contents, schema=layout.SCHEMA):
    listed = {name: {"digest": digest(content), "bytes": len(content)} for name, content in contents.items()}
    return canonical({"schema": schema, "members": listed}).encode()


def zipped(path: Path, contents, *more, packing=zipfile.ZIP_DEFLATED, sealed=True) -> Path:
    """A file of these members, and of `more`, each a name or ZipInfo with its content, with a seal that fits."""
    with zipfile.ZipFile(path, "w", packing) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in [*contents.items(), *more]:
            file.writestr(name, content)
        file.comment = bytes(64) if sealed else b""
    return seal(path) if sealed else path


def seal(path: Path) -> Path:
    """Whoever changes a bundle can seal it again."""
    with path.open("r+b") as file:
        writer.seal(file)
    return path


def crafted(path: Path, contents, *, sealed=True, **extra: bytes) -> Path:
    """A bundle of any members, with a manifest that fits unless one is given."""
    contents = {name: content for name, content in contents.items() if name != "manifest.json"}
    made = manifest(contents, layout.SCHEMA if sealed else 1)
    return zipped(path, {"manifest.json": made, **contents, **extra}, sealed=sealed)


def refused(other, path, says):
    problems = check_bundle(path)
    assert any(says in str(problem) for problem in problems), problems
    with pytest.raises(ArchiveError, match="is refused and nothing was added"):
        add_bundle(other, path)
    assert other.records() == []
    assert other.examine()[1] == type(other.examine()[1])()


def test_a_bundle_comes_back_as_it_was(archive, other, sent):
    assert check_bundle(sent) == []
    assert add_bundle(other, sent) == add_bundle(other, sent) == sorted(one.digest for one in archive.cells())
    assert other.records() == archive.records()
    problems, counts = other.examine()
    # Output may name paths, so it stays behind.
    assert (problems, counts.records, counts.absent_outputs) == ([], 2, 2)


def test_the_same_records_give_the_same_bytes(archive, other, sent, tmp_path):
    add_bundle(other, sent)
    names = [one.digest for one in archive.cells()]
    export_bundle(other, names[::-1] * 2, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == sent.read_bytes()


def test_a_bundle_names_its_members_and_leaves_output_out(sent):
    found = members(sent)
    assert list(found) == sorted(found)
    assert sorted(name.partition("/")[0] for name in found) == [
        *["blobs"] * 2,
        *["documents"] * 2,
        "manifest.json",
        *["records"] * 2,
    ]
    assert samples.STDOUT not in found.values()


def test_what_cannot_be_exported_is_a_sentence(archive, sent, tmp_path):
    with pytest.raises(ArchiveError, match="no record to export"):
        export_bundle(archive, [], tmp_path / "none.zip")
    name = digest(samples.tensor(1))
    (tmp_path / "blobs" / name[:2] / name).unlink()
    with pytest.raises(ArchiveError, match=f"tensor {name} is missing"):
        export_bundle(archive, [one.digest for one in archive.cells()], tmp_path / "none.zip")
    with pytest.raises(ArchiveError, match="cannot be written"):
        export_bundle(archive, [archive.add_text(samples.record(seed=2).text(), samples.contents(2).get)], tmp_path)
    assert not (tmp_path / "none.zip").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_every_flipped_byte_of_the_contents_is_noticed(sent, tmp_path):
    """A seal and a zip's checksums can be made to fit; the digests still do not."""
    whole = members(sent)
    for name, content in whole.items():
        if name != "manifest.json":
            changed = {**whole, name: content[:-1] + bytes([content[-1] ^ 1])}
            path = zipped(tmp_path / "changed.zip", changed)
            assert name in {problem.digest for problem in check_bundle(path)}
            # With a manifest that fits as well, the name does not.
            assert name in {problem.digest for problem in check_bundle(crafted(path, changed))}


def test_a_cut_file_is_refused(other, sent):
    whole = sent.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        sent.write_bytes(whole[:cut])
        refused(other, sent, "is no bundle, or was cut")


def test_the_seal_is_what_the_document_says(sent):
    """So that other programs can make one."""
    whole = sent.read_bytes()
    assert whole[-64:].decode() == hashlib.sha256(whole[:-64]).hexdigest()
    with zipfile.ZipFile(sent) as file:
        assert (file.comment, file.testzip()) == (whole[-64:], None)


def test_a_seal_is_there_exactly_where_the_schema_asks_for_it(other, sent, tmp_path):
    whole = members(sent)
    refused(other, zipped(sent, whole, sealed=False), "has schema 3 and no seal")
    refused(other, zipped(sent, {**whole, "manifest.json": manifest({}, 1)}), "has schema 1 and a seal")
    assert check_bundle(crafted(tmp_path / "first.zip", whole, sealed=False)) == []


def test_bundles_of_the_first_schema_are_read(other, sent):
    whole = members(sent)
    with read_bundle(crafted(sent, whole, sealed=False)) as bundle:
        assert len(bundle.records) == 2
    assert len(add_bundle(other, sent)) == 2


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.name)
def test_the_published_bundle_is_whole(path):
    started = time.process_time()
    with read_bundle(path) as bundle:
        needed = {
            name for record in bundle.records for name, kind in record.blobs().items() if kind not in index.OPTIONAL
        }
        assert all(digest(bundle.fetch(name)) == name for name in needed)
    # About a second for five hundred records.
    assert time.process_time() - started < 60


@pytest.mark.parametrize("kind", ["documents", "blobs"])
def test_a_missing_member_is_refused(other, sent, kind):
    lacking = {name: content for name, content in members(sent).items() if not name.startswith(kind)}
    refused(other, crafted(sent, lacking), "a record or sweep needs it, and it is missing")


def test_a_member_that_only_the_manifest_knows_is_refused(other, sent):
    whole = members(sent)
    gone = next(name for name in whole if name.startswith("blobs"))
    del whole[gone]
    refused(other, zipped(sent, whole), f"{gone}: is in the manifest but not in the file")


def test_a_member_that_the_manifest_does_not_know_is_refused(other, sent):
    extra = f"blobs/{digest(b'more')}"
    refused(other, crafted(sent, members(sent), **{extra: b"more"}), f"{extra}: is in the file but not in the manifest")


def test_a_member_that_no_record_needs_is_refused(other, sent):
    """Otherwise anything at all could travel in a published bundle."""
    extra = f"blobs/{digest(b'more')}"
    refused(other, crafted(sent, {**members(sent), extra: b"more"}), "no record or sweep needs it")


@pytest.mark.parametrize("name", ["../up", "records/../../up", "/etc/up", "C:/up", "..\\up", "\\up"])
def test_a_name_that_leaves_the_folder_is_refused(other, sent, name):
    refused(other, crafted(sent, {**members(sent), name: b"x"}), "its name leaves the folder")


@pytest.mark.parametrize(
    "name", ["README", "records/abc.json", "blobs/", f"blobs/{'A' * 64}", f"blobs/{'a' * 64}\n", "MANIFEST.json"]
)
def test_a_name_that_a_bundle_has_not_is_refused(other, sent, name):
    refused(other, crafted(sent, {**members(sent), name: b"x"}), "a bundle has no such member")


def test_names_that_some_systems_take_for_one_are_no_names(other, sent):
    """Only small letters of ASCII are: nothing is left for case or Unicode to fold."""
    whole = members(sent)
    name = next(name for name in whole if name.startswith("blobs"))
    for alike in (name.upper(), name.replace("b", "B", 1), "\uff42" + name[1:], name.replace("/", "\\")):
        refused(other, zipped(sent, whole, (alike, whole[name])), "a bundle has no such member")


@pytest.mark.parametrize(
    ("mode", "says"),
    [(stat.S_IFLNK | 0o777, "it is a link"), (stat.S_IFIFO, "it is no regular file"), (stat.S_IFDIR, "no regular")],
)
def test_a_link_is_refused(other, sent, mode, says):
    whole = members(sent)
    info = zipfile.ZipInfo(next(name for name in whole if name.startswith("blobs")))
    info.external_attr = mode << 16
    content = whole.pop(info.filename)
    refused(other, zipped(sent, whole, (info, content)), says)


@pytest.mark.parametrize("name", ["manifest.json", "records"])
def test_a_name_that_is_there_twice_is_refused(other, sent, name):
    whole = members(sent)
    twice = next(member for member in whole if member.startswith(name))
    refused(other, zipped(sent, whole, (twice, whole[twice])), "there are two members of this name")


def test_an_unusual_packing_is_refused(other, sent):
    refused(other, zipped(sent, members(sent), packing=zipfile.ZIP_BZIP2), "it is packed by method 12")


def last_entry(content: bytearray) -> int:
    return content.rindex(b"PK\x01\x02")


def test_an_encrypted_member_is_refused(other, sent):
    content = bytearray(sent.read_bytes())
    content[last_entry(content) + 8] |= 1
    sent.write_bytes(content)
    refused(other, seal(sent), "it is encrypted")


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (16, "its header before the content is not the one in the list"),
        (36, "its header has additions"),
        (42, "there are bytes that belong to no member"),
    ],
)
def test_a_list_that_says_something_else_than_the_members_is_refused(other, sent, offset, says):
    content = bytearray(sent.read_bytes())
    content[last_entry(content) + offset] ^= 1
    sent.write_bytes(content)
    refused(other, seal(sent), says)


def test_a_member_that_calls_itself_otherwise_than_the_list_is_refused(other, sent):
    """Unpackers differ in which of the two they believe."""
    whole = sent.read_bytes()
    name = next(name for name in members(sent) if name.startswith("blobs")).encode()
    sent.write_bytes(whole.replace(name, b"blobs/" + b"0" * 64, 1))
    refused(other, seal(sent), "its header before the content is not the one in the list")


@pytest.mark.parametrize("place", [0, 200])
def test_bytes_that_belong_to_no_member_are_refused(other, sent, place):
    whole = bytearray(sent.read_bytes())
    entries = last_entry(whole)
    place = place and whole.index(b"PK\x03\x04", place)
    whole[place:place] = b"hidden"
    start = len(whole) - 64 - 22 + 16
    whole[start : start + 4] = (int.from_bytes(whole[start : start + 4], "little") + 6).to_bytes(4, "little")
    sent.write_bytes(whole)
    assert entries
    refused(other, seal(sent), "there are bytes that belong to no member")


def test_a_zip_of_the_64_bit_kind_is_refused(other, sent):
    whole = bytearray(sent.read_bytes())
    whole[-64 - 12 : -64 - 10] = whole[-64 - 14 : -64 - 12] = b"\xff\xff"
    sent.write_bytes(whole)
    refused(other, seal(sent), "64-bit kind")


def test_a_comment_that_is_no_seal_is_refused(other, sent):
    whole = members(sent)
    with zipfile.ZipFile(zipped(sent, whole), "a") as file:
        file.comment = b"hello"
    refused(other, sent, "it does not end as a zip does")


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        ("LARGEST_FILE", "bytes; at most 5 are read"),
        ("LARGEST_MEMBER", "it says that it unpacks from 64 to 64 bytes; at most 5"),
        ("LARGEST_TEXT", "it says that it unpacks from"),
        ("LARGEST_RECORDS", "the records, plans and sweeps say that they unpack to"),
        ("LARGEST_TOTAL", "the members say that they unpack to"),
        ("MOST_MEMBERS", "there are 7 members; at most 5 are read"),
    ],
)
def test_a_bundle_beyond_bounds_is_refused(other, sent, monkeypatch, bound, says):
    for module in (layout, reader):
        monkeypatch.setattr(module, bound, 5, raising=module is layout)
    refused(other, sent, says)


def test_what_could_not_be_read_is_not_written(archive, tmp_path, monkeypatch):
    name = archive.add_text(samples.record(seed=1).text(), samples.contents(1).get)
    for bound in ("LARGEST_TEXT", "LARGEST_MEMBER", "LARGEST_RECORDS", "LARGEST_TOTAL", "MOST_MEMBERS"):
        with monkeypatch.context() as patch:
            patch.setattr(layout, bound, 3)
            with pytest.raises(ArchiveError, match="more than can be read"):
                export_bundle(archive, [name], tmp_path / "one.zip")
    assert [path for path in tmp_path.iterdir() if "one.zip" in path.name] == []


@pytest.mark.parametrize(("says", "why"), [(10, "has more than the 10 bytes"), (1 << 22, "has not the 4194304 bytes")])
def test_a_member_that_is_longer_or_shorter_than_it_says_is_refused(other, sent, says, why):
    """A small size in the list, a large one when unpacked."""
    zeros = f"blobs/{digest(bytes(1 << 20))}"
    crafted(sent, {**members(sent), zeros: bytes(1 << 20)})
    content = bytearray(sent.read_bytes())
    for mark, size, name in ((b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)):
        place = content.index(zeros.encode()) if size == 22 else content.rindex(zeros.encode())
        assert content[place - name : place - name + 4] == mark
        content[place - name + size : place - name + size + 4] = says.to_bytes(4, "little")
    sent.write_bytes(content)
    refused(other, seal(sent), f"cannot be unpacked: it {why}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"members":{},"schema":4}', "has schema 4; this version reads 1 to 3"),
        (b'{"members":{},"schema":3}', "there is no record in it"),
        (b'{"members":{},"schema":true}', "has schema True"),
        (b'{"members":{},"schema":2,"schema":2}', "same key twice"),
        (b'{"members":{}, "schema":2}', "is not canonical JSON"),
        (b'{"members":[],"schema":2}', "is not canonical JSON"),
        (b'{"more":1,"members":{},"schema":2}', "is not canonical JSON"),
        (b'{"members":' + b"[" * 99 + b"]" * 99 + b',"schema":2}', "is not canonical JSON"),
        (b'{"members":{},"schema":' + b"9" * 5000 + b"}", "cannot be read: not JSON: Exceeds the limit"),
        (b"[]", "has schema None"),
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_manifest_that_is_none_is_refused(other, sent, text, says):
    refused(other, crafted(sent, {}, **{"manifest.json": text}), says)


def test_a_zip_without_a_manifest_is_no_bundle(other, tmp_path):
    refused(other, zipped(tmp_path / "x.zip", {}), "there is none, so this is not a bundle")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace(f'"schema":{SCHEMA}', f'"schema":{SCHEMA + 1}'), f"reads 1 to {SCHEMA}"),
        (lambda text: text.replace("finished", "died"), "evidence digest"),
        (lambda text: text + " ", "not canonical"),
        (lambda text: text.replace(f'"schema":{SCHEMA}', '"schema":' + "9" * 5000), "Exceeds the limit"),
        (lambda text: text.replace('"seed":1729', '"seed":"' + "9" * 40 + '"'), "seed of the record does not fit"),
        (lambda text: text.replace('"seed":1729', '"seed":"' + "9" * 41 + '"'), "has more than 40 digits"),
        (lambda text: text.replace('"seed":1729', '"seed":[]'), "is [], not int"),
        (lambda text: text.replace('"parameters":{}', '"parameters":1'), "not Mapping"),
        (lambda text: text.replace('"parameters":{}', '"parameters":' + "[" * 99 + "]" * 99), "nested deeper"),
        (lambda text: text.replace('"parameters":{}', '"parameters":' + "[" * 9999 + "]" * 9999), "nested too deep"),
        (lambda text: text.replace("2026-01-02", "2026-01-02" * 9), "it must be UTC as"),
        (lambda text: text.replace('"seed":1729', '"seed":1729,"seed":1729'), "same key twice"),
    ],
)
def test_a_record_that_is_none_is_refused_with_all_others(other, sent, change, says):
    """Its name and the manifest fit its content, so only reading it tells."""
    whole = members(sent)
    name = next(member for member in whole if member.startswith("records"))
    text = change(whole.pop(name).decode())
    refused(other, crafted(sent, {**whole, f"records/{digest(text)}.json": text.encode()}), says)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b"])
def test_a_document_that_is_not_text_is_refused(other, sent, content):
    record = samples.record(seed=1)
    seen = replace(record.observation, machine=digest(content))
    text = replace(record, observation=seen).text()
    whole = members(sent)
    whole[f"records/{digest(text)}.json"] = text.encode()
    whole[f"documents/{digest(content)}.txt"] = content
    refused(other, crafted(sent, whole), "is not UTF-8 text, or has a NUL")


# Sweeps.


@pytest.fixture
def swept(archive, tmp_path):
    """A bundle of a sweep of two records."""
    plan = [samples.spec(case) for case in "ba"]
    sweep = archive.begin_sweep(plan, "a" * 64).id
    for seed, asked in enumerate(plan, 1):
        archive.add_text(samples.record(seed=seed, asked=asked).text(), samples.contents(seed).get, sweep)
    export_bundle(archive, [], tmp_path / "swept.zip", sweeps=[sweep])
    return tmp_path / "swept.zip"


def told(whole):
    """The sweep of these members, as JSON, taken out together with its plan; and the plan."""
    (name,) = (name for name in whole if name.startswith("sweeps/"))
    (plan,) = (name for name in whole if name.startswith("plans/"))
    return parse(whole.pop(name).decode()), parse(whole.pop(plan).decode())


def told_again(whole, sweep, plan):
    """Both put in again, with a plan digest and an id that fit."""
    text = canonical(plan)
    sweep = {**sweep, "plan": digest(text)}
    sweep["id"] = sweep_id(sweep["plan"], sweep["machine"], sweep["number"])
    made = canonical(sweep)
    return {**whole, f"plans/{digest(text)}.json": text.encode(), f"sweeps/{digest(made)}.json": made.encode()}


def test_a_bundle_carries_the_sweep_and_its_exact_plan(archive, swept):
    (sweep,) = archive.sweeps()
    with read_bundle(swept) as bundle:
        (found,) = bundle.sweeps
        assert (found.id, found.started_at, found.number) == (sweep.id, sweep.started_at, 1)
        assert list(bundle.plans[found.plan]) == archive.sweep_plan(sweep.id)
        assert sorted(found.records.values()) == list(bundle.digests)
    assert f"plans/{sweep.plan}.json" in members(swept)


def test_records_alone_take_no_sweep_with_them(archive, swept, tmp_path):
    export_bundle(archive, [archive.cells()[0].digest], tmp_path / "one.zip")
    with read_bundle(tmp_path / "one.zip") as bundle:
        assert (len(bundle.records), bundle.sweeps) == (1, ())


def test_a_sweep_without_records_is_not_exported(archive, tmp_path):
    sweep = archive.begin_sweep([samples.spec()], "a" * 64).id
    with pytest.raises(ArchiveError, match="no record to export"):
        export_bundle(archive, [], tmp_path / "none.zip", sweeps=[sweep])
    name = archive.add_text(samples.record().text(), samples.contents().get)
    with pytest.raises(ArchiveError, match=f"sweep {sweep} has no records yet"):
        export_bundle(archive, [name], tmp_path / "none.zip", sweeps=[sweep])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda s, _: s["records"].update({"0" * 64: "1" * 64}),
            f"records/{'1' * 64}.json: a record or sweep needs it",
        ),
        (lambda s, _: s.update(records={"0" * 64: next(iter(s["records"].values()))}), "but the record's spec is"),
        (lambda _, p: p.pop(), "whose spec is not in its plan"),
        (lambda _, p: p.append(p[0]), "is no plan that can be kept: the plan holds 1 specs twice"),
        (lambda _, p: p[0].update(more=1), "is no plan that can be kept: "),
        (lambda _, p: p.clear(), "is no plan that can be kept: the plan is empty"),
        (lambda s, _: s.update(records={}), "is no sweep that can be kept: it has no records"),
        (lambda s, _: s.update(more=1), "is no sweep that can be kept: it is not an object of id, machine"),
        (lambda s, _: s.update(number=0), "its number is 0; from 1 to 2147483647 is read"),
        (lambda s, _: s.update(number=True), "its number is True"),
        (lambda s, _: s.update(machine="here"), "its machine is 'here', which is no SHA-256"),
        (lambda s, _: s.update(started_at="2026-02-30T00:00:00.000000Z"), "it must be UTC as 2026-01-02T03:04:05"),
        (lambda s, _: s.update(started_at="2026-01-02T03:04:05Z"), "it must be UTC as 2026-01-02T03:04:05"),
    ],
)
def test_a_sweep_that_does_not_fit_its_plan_and_records_is_refused(other, swept, change, says):
    """Its digests and its id fit; only looking at what it says tells."""
    whole = members(swept)
    sweep, plan = told(whole)
    change(sweep, plan)
    refused(other, crafted(swept, told_again(whole, sweep, plan)), says)


def test_a_sweep_of_another_id_than_its_own_is_refused(other, swept):
    whole = members(swept)
    sweep, plan = told(whole)
    text, planned = canonical({**sweep, "id": f"{sweep['id']}0"}), canonical(plan)
    whole |= {f"plans/{digest(planned)}.json": planned.encode(), f"sweeps/{digest(text)}.json": text.encode()}
    refused(other, crafted(swept, whole), "plan, machine and number give")


def test_a_further_attempt_belongs_to_the_sweep(archive, other, swept, tmp_path):
    (sweep,) = archive.sweeps()
    again = spec_of_attempt(archive.sweep_plan(sweep.id)[0], 1)
    archive.add_text(samples.record(seed=3, asked=again).text(), samples.contents(3).get, sweep.id)
    export_bundle(archive, [], tmp_path / "three.zip", sweeps=[sweep.id])
    assert len(add_bundle(other, tmp_path / "three.zip")) == 3
    assert other.sweep(sweep.id).done == 2


def test_a_plan_that_no_sweep_names_is_refused(other, swept):
    whole = members(swept)
    told_of = [name for name in whole if name.startswith("sweeps/")]
    refused(other, crafted(swept, {n: c for n, c in whole.items() if n not in told_of}), "no record or sweep needs it")


def test_two_sweeps_of_one_id_are_refused(other, swept):
    whole = members(swept)
    sweep, plan = told(dict(whole))
    again = told_again({}, {**sweep, "started_at": "2027-01-01T00:00:00.000000Z"}, plan)
    refused(other, crafted(swept, {**whole, **again}), f"there is another sweep of its id, {sweep['id']}")


@pytest.mark.parametrize("schema", [1, 2])
def test_a_bundle_of_before_there_were_sweeps_in_them_has_none(other, swept, schema):
    whole = {name: one for name, one in members(swept).items() if name != "manifest.json"}
    made = {"manifest.json": manifest(whole, schema), **whole}
    refused(other, zipped(swept, made, sealed=schema > 1), f"is of a kind that schema {schema} does not have")
    bare = {name: one for name, one in whole.items() if not name.startswith(layout.OF_SWEEPS)}
    zipped(swept, {"manifest.json": manifest(bare, schema), **bare}, sealed=schema > 1)
    with read_bundle(swept) as bundle:
        assert (len(bundle.records), bundle.sweeps) == (2, ())


def test_two_sweeps_travel_in_one_bundle(archive, other, swept, tmp_path):
    """Such as a sweep and the counter-replay that explains it."""
    (first,) = archive.sweeps()
    asked = samples.spec("c")
    second = archive.begin_sweep([asked], "a" * 64).id
    archive.add_text(samples.record(seed=4, asked=asked).text(), samples.contents(4).get, second)
    export_bundle(archive, [], tmp_path / "both.zip", sweeps=[first.id, second])
    assert len(add_bundle(other, tmp_path / "both.zip")) == 3
    assert {one.id for one in other.sweeps()} == {first.id, second}


def test_a_file_that_is_not_there_is_a_sentence(other, tmp_path):
    with pytest.raises(ArchiveError, match=r"none\.zip cannot be read: No such file"):
        add_bundle(other, tmp_path / "none.zip")
    with pytest.raises(ArchiveError, match="cannot be read: it is a folder; give a regular file"):
        check_bundle(tmp_path)


def test_a_bundle_is_read_with_all_that_its_records_rest_on(archive, sent):
    with read_bundle(sent) as bundle:
        assert list(bundle.digests) == sorted(one.digest for one in archive.cells())
        assert [digest(record.text()) for record in bundle.records] == list(bundle.digests)
        assert bundle.fetch(digest(samples.tensor(1))) == samples.tensor(1)
        assert bundle.fetch(digest(samples.SCENARIO)) == samples.SCENARIO
        assert [bundle.fetch(name) for name in ("", "../up", digest("other"), digest(samples.STDOUT))] == [None] * 4


def test_a_bundle_that_is_refused_is_not_read_either(other, sent):
    whole = {name: content for name, content in members(sent).items() if not name.startswith("blobs")}
    with pytest.raises(
        ArchiveError, match=r"sent\.zip is refused: .*a record or sweep needs it, and it is missing \(and 1 more"
    ):
        read_bundle(crafted(sent, whole))


def test_what_changes_while_a_bundle_is_open_is_not_handed_out(tmp_path):
    bench = samples.Bench()
    large = bench.tensor("output", "out", range(1 << 16))
    text = bench.record(samples.spec(), large).text()
    writer.write(tmp_path / "sent.zip", writer.members([text], bench.blobs.get))
    with read_bundle(tmp_path / "sent.zip") as bundle:
        content = bundle.fetch(large.digest)
        whole = (tmp_path / "sent.zip").read_bytes()
        (tmp_path / "sent.zip").write_bytes(whole.replace(content, bytes(len(content))))
        bundle.fetch(digest(samples.SCENARIO))
        with pytest.raises(ArchiveError, match="cannot be read again: has another checksum"):
            bundle.fetch(large.digest)
    with pytest.raises(ArchiveError, match="cannot be read again"):
        bundle.fetch(large.digest)


def test_a_signature_travels_beside_the_manifest_and_is_not_judged(archive, other, sent):
    asked = []
    export_bundle(
        archive, [one.digest for one in archive.cells()], sent, sign=lambda content: asked.append(content) or b"me"
    )
    assert manifest_and_signature(sent) == (members(sent)["manifest.json"], b"me") == (asked[0], b"me")
    assert "signature.json" not in parse(asked[0].decode())["members"]
    assert check_bundle(sent) == []
    assert len(add_bundle(other, sent)) == 2


def test_a_signature_that_cannot_be_unpacked_is_refused(other, sent):
    content = bytearray(crafted(sent, members(sent), **{"signature.json": b"signature" * 9}).read_bytes())
    place = content.index(b"signature.json") + len("signature.json")
    content[place : place + 4] = b"\xff" * 4
    sent.write_bytes(content)
    refused(other, seal(sent), "signature.json: cannot be unpacked: it is not deflated")


def test_a_disk_that_fails_is_a_sentence(sent, monkeypatch):
    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reader.Packed, "content", broken)
    for look in (check_bundle, manifest_and_signature, read_bundle):
        with pytest.raises(ArchiveError, match="cannot be read: Input/output error"):
            look(sent)


def test_a_bundle_that_nobody_signed_has_a_manifest_only(sent):
    assert manifest_and_signature(sent) == (members(sent)["manifest.json"], None)


def test_of_a_bundle_that_is_none_no_manifest_is_given(sent, tmp_path):
    zipped(tmp_path / "none.zip", {"README": b""})
    with pytest.raises(ArchiveError, match="is refused: 'README': a bundle has no such member"):
        manifest_and_signature(tmp_path / "none.zip")
    with pytest.raises(ArchiveError, match="there is none, so this is not a bundle"):
        manifest_and_signature(zipped(tmp_path / "none.zip", {}))
    large = crafted(sent, members(sent), **{"signature.json": bytes((1 << 20) + 1)})
    with pytest.raises(ArchiveError, match="at most 1048576 are read"):
        manifest_and_signature(large)
    sent.write_bytes(b"")
    with pytest.raises(ArchiveError, match="is no bundle, or was cut"):
        manifest_and_signature(sent)


def test_members_are_what_records_rest_on():
    text = samples.record(seed=1).text()
    contents = samples.contents(1)
    assert sorted(writer.members([text, text], contents.get).values()) == sorted(
        [text.encode(), samples.SCENARIO, samples.machine(), samples.tensor(1)]
    )
    for kind, content in (("tensor", samples.tensor(1)), ("source", samples.SCENARIO), ("machine", samples.machine())):
        name = digest(content)
        with pytest.raises(layout.PackError, match=f"{kind} {name} is missing"):
            writer.members([text], {**contents, name: None}.get)
        with pytest.raises(layout.PackError, match=f"{kind} {name} has the digest"):
            writer.members([text], {**contents, name: b"else"}.get)
    for wrong in ("[]", text + " ", "{"):
        with pytest.raises(layout.PackError):
            writer.members([wrong], contents.get)


def test_kinds_of_contents_are_those_of_the_archive():
    assert (layout.DOCUMENTS, layout.LEFT_BEHIND) == (index.DOCUMENTS, index.OPTIONAL)


def test_a_program_with_nothing_but_the_standard_library_writes_a_bundle(other, tmp_path):
    """In an interpreter that finds no other package."""
    (tmp_path / "record.json").write_bytes(samples.record(seed=1).text().encode())
    for name, content in samples.contents(1).items():
        (tmp_path / name).write_bytes(content)
    program = (
        "import pathlib\nfrom experiments.bundle import writer\nhere = pathlib.Path.cwd()\n"
        "text = (here / 'record.json').read_bytes().decode()\n"
        "writer.write(here / 'made.zip', writer.members([text], lambda name: (here / name).read_bytes()))\n"
    )
    command = [sys.executable, "-S", "-B", "-c", program]
    subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, check=True)
    assert len(add_bundle(other, tmp_path / "made.zip")) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(), inside, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(json_values)
@example({"\ue000": 1, "\U00010000": 2})
@example([1e-7, 1e16, 1e21, 5e-324, 2**53, -(2**53), 10**30, -0.0, 1.0])
@example(float("inf"))
def test_a_text_is_called_canonical_exactly_if_it_is(value):
    """However it was written: as we do, or by json in one of its ways."""
    texts = [canonical(value), json_text(value), json_text(value, ensure_ascii=True), json_text(value, indent=1)]
    for text in texts:
        try:
            right = canonical(parse(text)) == text
        except RecordError:
            right = False
        assert answered(text) == right, text


def json_text(value, *, ensure_ascii=False, indent=None):
    separators = (",", ":") if indent is None else None
    options = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators}
    return json.dumps(value, sort_keys=True, **options).encode("utf-8", "replace").decode()


def answered(text):
    try:
        return layout.is_canonical(text)
    except RecordError:
        return False


@pytest.mark.parametrize("depth", [1, 31, 32, 33, 63, 64, 65, 66, 500])
def test_a_text_that_is_too_deep_is_not_canonical(depth):
    text = "[" * depth + "]" * depth
    assert answered(text) == (depth <= 65)


def test_every_reason_for_a_refusal_is_in_the_document():
    table = (ROOT / "store" / "README.md").read_text().partition("| sentence |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(.*)` \|", table, re.MULTILINE) == list(layout.REFUSALS.values())


def test_a_bundle_is_read_for_some_scenarios_only(sent):
    """Records of others are neither parsed nor kept; what is damaged is found all the same."""
    with read_bundle(sent) as whole:
        assert whole.records
        for about in ({whole.records[0].spec.question.source}, {whole.records[0].spec.question.scenario}):
            with read_bundle(sent, about) as some:
                assert some.records == whole.records
                assert some.fetch(some.records[0].observation.machine) is not None
    with read_bundle(sent, {"checkpoint/another", "0" * 64}) as none:
        assert none.records == ()
    content = bytearray(sent.read_bytes())
    content[len(content) // 2] ^= 1
    sent.write_bytes(content)
    with pytest.raises(ArchiveError, match="seal"):
        read_bundle(sent, {"checkpoint/another"})
