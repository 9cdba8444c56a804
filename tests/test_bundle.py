"""A bundle comes back as it was, and one from a stranger is believed only as far as it can be checked."""

from __future__ import annotations

import stat
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import samples

from experiments.record import SCHEMA, canonical, digest
from store import bundle
from store.archive import Archive, ArchiveError
from store.bundle import add_bundle, check_bundle, export


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
    export(archive, names, tmp_path / "sent.zip")
    return tmp_path / "sent.zip"


def members(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def manifest(contents, schema=1):
    listed = {name: {"digest": digest(content), "bytes": len(content)} for name, content in contents.items()}
    return canonical({"schema": schema, "members": listed}).encode()


def pack(path: Path, contents, **extra: bytes) -> Path:
    """A bundle of any members, with a manifest that fits unless one is given."""
    contents = {name: content for name, content in contents.items() if name != "manifest.json"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in {"manifest.json": manifest(contents), **contents, **extra}.items():
            file.writestr(name, content)
    return path


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
    export(other, names[::-1] * 2, tmp_path / "again.zip")
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
        export(archive, [], tmp_path / "none.zip")
    name = digest(samples.tensor(1))
    (tmp_path / "blobs" / name[:2] / name).unlink()
    with pytest.raises(ArchiveError, match=f"tensor {name} is missing"):
        export(archive, [one.digest for one in archive.cells()], tmp_path / "none.zip")
    with pytest.raises(ArchiveError, match="cannot be written"):
        export(archive, [archive.add_text(samples.record(seed=2).text(), samples.contents(2).get)], tmp_path)
    assert not (tmp_path / "none.zip").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_every_flipped_byte_of_the_contents_is_noticed(sent, tmp_path):
    """A zip has a checksum of its own; where that is made to fit, the digest still does not."""
    for name, content in members(sent).items():
        if name != "manifest.json":
            changed = {**members(sent), name: content[:-1] + bytes([content[-1] ^ 1])}
            kept = members(sent)["manifest.json"]
            path = tmp_path / "changed.zip"
            with zipfile.ZipFile(path, "w") as file:
                for member, part in {**changed, "manifest.json": kept}.items():
                    file.writestr(member, part)
            assert name in {problem.digest for problem in check_bundle(path)}
            # With a manifest that fits as well, the name does not.
            assert name in {problem.digest for problem in check_bundle(pack(path, changed))}


def test_a_cut_or_damaged_file_is_refused(other, sent):
    whole = sent.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        sent.write_bytes(whole[:cut])
        refused(other, sent, "is not a zip file that can be read")
    middle = bytearray(whole)
    middle[200] ^= 0xFF
    sent.write_bytes(bytes(middle))
    assert check_bundle(sent) != []


@pytest.mark.parametrize("kind", ["documents", "blobs"])
def test_a_missing_member_is_refused(other, sent, kind):
    lacking = {name: content for name, content in members(sent).items() if not name.startswith(kind)}
    refused(other, pack(sent, lacking), "a record needs it, and it is missing")


def test_a_member_that_only_the_manifest_knows_is_refused(other, sent):
    whole = members(sent)
    gone = next(name for name in whole if name.startswith("blobs"))
    with zipfile.ZipFile(sent, "w") as file:
        for name in whole.keys() - {gone}:
            file.writestr(name, whole[name])
    refused(other, sent, f"{gone}: is in the manifest but not in the file")


def test_a_member_that_the_manifest_does_not_know_is_refused(other, sent):
    extra = f"blobs/{digest(b'more')}"
    refused(other, pack(sent, members(sent), **{extra: b"more"}), f"{extra}: is in the file but not in the manifest")


def test_a_member_that_no_record_needs_is_refused(other, sent):
    """Otherwise anything at all could travel in a published bundle."""
    extra = f"blobs/{digest(b'more')}"
    refused(other, pack(sent, {**members(sent), extra: b"more"}), "no record needs it")


@pytest.mark.parametrize("name", ["../up", "records/../../up", "/etc/up", "C:/up", "..\\up", "\\up"])
def test_a_name_that_leaves_the_folder_is_refused(other, sent, name):
    refused(other, pack(sent, {**members(sent), name: b"x"}), "its name leaves the folder")


@pytest.mark.parametrize("name", ["README", "records/abc.json", "blobs/", f"blobs/{'A' * 64}", f"blobs/{'a' * 64}\n"])
def test_a_name_that_a_bundle_has_not_is_refused(other, sent, name):
    refused(other, pack(sent, {**members(sent), name: b"x"}), "a bundle has no such member")


def test_a_link_is_refused(other, sent):
    whole = members(sent)
    info = zipfile.ZipInfo(next(name for name in whole if name.startswith("blobs")))
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(sent, "w") as file:
        for name in whole.keys() - {info.filename}:
            file.writestr(name, whole[name])
        file.writestr(info, whole[info.filename])
    refused(other, sent, "it is a link")


@pytest.mark.parametrize("name", ["manifest.json", "records"])
def test_a_name_that_is_there_twice_is_refused(other, sent, name):
    whole = members(sent)
    twice = next(member for member in whole if member.startswith(name))
    with zipfile.ZipFile(sent, "a") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.writestr(twice, whole[twice])
    refused(other, sent, "there are two members of this name")


def test_an_unusual_packing_is_refused(other, sent):
    whole = members(sent)
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_BZIP2) as file:
        for name, content in whole.items():
            file.writestr(name, content)
    refused(other, sent, "it is packed by method 12")


def test_an_encrypted_member_is_refused(other, sent):
    content = bytearray(sent.read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    sent.write_bytes(bytes(content))
    refused(other, sent, "it is encrypted")


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        ("LARGEST_FILE", "bytes; at most 5 are read"),
        ("LARGEST_MEMBER", "it says that it unpacks to"),
        ("LARGEST_TOTAL", "the members say they unpack to"),
        ("MOST_MEMBERS", "there are 7 members; at most 5 are read"),
    ],
)
def test_a_bundle_beyond_bounds_is_refused(other, sent, monkeypatch, bound, says):
    monkeypatch.setattr(bundle, bound, 5)
    refused(other, sent, says)


def test_a_member_that_is_longer_than_it_says_is_refused(other, sent):
    """A small size in the list, a large one when unpacked."""
    zeros = f"blobs/{digest(bytes(1 << 20))}"
    pack(sent, {**members(sent), zeros: bytes(1 << 20)})
    content = bytearray(sent.read_bytes())
    place = content.index(b"PK\x01\x02", content.rindex(b"PK\x03\x04"))
    while zeros.encode() != bytes(content[place + 46 : place + 46 + len(zeros)]):
        place = content.index(b"PK\x01\x02", place + 4)
    content[place + 24 : place + 28] = (10).to_bytes(4, "little")
    sent.write_bytes(bytes(content))
    refused(other, sent, "cannot be unpacked: Bad CRC-32")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"members":{},"schema":2}', "has schema 2; this version reads 1 to 1"),
        (b'{"members":{},"schema":true}', "has schema True"),
        (b'{"members":{},"schema":1,"schema":1}', "same key twice"),
        (b'{"members":{}, "schema":1}', "is not canonical JSON"),
        (b'{"members":[],"schema":1}', "is not canonical JSON"),
        (b'{"more":1,"members":{},"schema":1}', "is not canonical JSON"),
        (b"[]", "has schema None"),
        (b"{", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_manifest_that_is_none_is_refused(other, sent, text, says):
    refused(other, pack(sent, {}, **{"manifest.json": text}), says)


def test_a_zip_without_a_manifest_is_no_bundle(other, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w"):
        pass
    refused(other, tmp_path / "x.zip", "there is none, so this is not a bundle")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace(f'"schema":{SCHEMA}', f'"schema":{SCHEMA + 1}'), f"reads 1 to {SCHEMA}"),
        (lambda text: text.replace("finished", "died"), "evidence digest"),
        (lambda text: text + " ", "not canonical"),
        (lambda text: text.replace('"seed":1729', '"seed":1729,"seed":1729'), "same key twice"),
    ],
)
def test_a_record_that_is_none_is_refused_with_all_others(other, sent, change, says):
    """Its name and the manifest fit its content, so only reading it tells."""
    whole = members(sent)
    name = next(member for member in whole if member.startswith("records"))
    text = change(whole.pop(name).decode())
    refused(other, pack(sent, {**whole, f"records/{digest(text)}.json": text.encode()}), says)


def test_a_document_that_is_not_text_is_refused(other, sent):
    content = b"\xff\xfe"
    record = samples.record(seed=1)
    seen = replace(record.observation, machine=digest(content))
    text = replace(record, observation=seen).text()
    whole = members(sent)
    whole[f"records/{digest(text)}.json"] = text.encode()
    whole[f"documents/{digest(content)}.txt"] = content
    refused(other, pack(sent, whole), "is not UTF-8 text")


def test_a_file_that_is_not_there_is_a_sentence(other, tmp_path):
    with pytest.raises(ArchiveError, match=r"none\.zip cannot be read: No such file"):
        add_bundle(other, tmp_path / "none.zip")
    with pytest.raises(ArchiveError, match="cannot be read: Is a directory"):
        check_bundle(tmp_path)
