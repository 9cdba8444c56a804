"""Ten thousand damaged bundles: each is refused with a sentence of the table, and the archive stays as it was.

Half have damaged bytes, as by a disk or a line; half are made by somebody who knows the format and seals them again.
The same ones each time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import subprocess
import sys
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import samples

from experiments.bundle import layout, writer
from experiments.core import bounds
from experiments.core.canonical_json import canonical, digest
from experiments.core.schema_history import SCHEMA
from experiments.core.sweep import plan_text, sweep_id
from store.archive import Archive, ArchiveError
from store.bundles import add_bundle, check_bundle, read_bundle

ROOT = Path(__file__).resolve().parents[1]
EACH = 260 if os.environ.get("TWOFOLD_ALL") else 50
"""Damaged bundles of each test: as many as `make test-all` asks for, or a sample of them, the first ones."""

SENTENCES = {
    name: re.compile("(?s)" + re.sub(r"\\\{\w+\\\}", ".+", re.escape(sentence)))
    for name, sentence in layout.REFUSALS.items()
}


def reasons(sentence: str) -> list[str]:
    """Names in the table of a sentence; none if it is not documented."""
    return [name for name, pattern in SENTENCES.items() if pattern.fullmatch(sentence)]


class Taker:
    """An archive that bundles are brought to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "archive"
        self.path = folder / "damaged.zip"
        self.archive = Archive.open(f"sqlite:///{self.folder}/archive.db", self.folder / "blobs")
        self.archive.add_text(samples.record(seed=9).text(), samples.contents(9).get)
        self.records = self.archive.records()

    def files(self) -> dict[str, tuple[int, int]]:
        seen = ((path, path.stat()) for path in self.folder.rglob("*"))
        return {str(path): (state.st_size, state.st_mtime_ns) for path, state in seen if stat.S_ISREG(state.st_mode)}

    def judge(self, content: bytes) -> list[str]:
        """Why it is refused, by names in the table; nothing if it is in order."""
        self.path.write_bytes(content)
        problems = check_bundle(self.path)
        if not problems:
            return []
        before = self.files()
        with pytest.raises(ArchiveError) as error:
            add_bundle(self.archive, self.path)
        assert str(error.value).startswith(f"{self.path.name} is refused and nothing was added: {problems[0]}")
        assert self.files() == before
        named = [reasons(problem.what) for problem in problems]
        assert all(named), problems
        return [name for one in named for name in one]

    def close(self) -> None:
        problems, counts = self.archive.examine()
        assert (problems, counts.records, counts.unreferenced_blobs) == ([], 1, 0)
        assert self.archive.records() == self.records
        self.archive.close()


@pytest.fixture(scope="module")
def taker(tmp_path_factory):
    made = Taker(tmp_path_factory.mktemp("taker"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of a real bundle of one record, signed."""
    path = tmp_path_factory.mktemp("small") / "small.zip"
    writer.write(path, contents(), sign=lambda manifest: manifest[:9])
    return path.read_bytes()


def contents(seed: int = 1) -> dict[str, bytes]:
    """The members of a bundle of one record and its sweep."""
    record = samples.record(seed=seed)
    links = {record.spec.digest(): digest(record.text())}
    return {**writer.members([record.text()], samples.contents(seed).get), **swept(links)}


def swept(
    links: dict[str, str], plan: str = plan_text([samples.spec()]), changes: dict[str, Any] | None = None
) -> dict[str, bytes]:
    """The members of a sweep that got these records; `changes` are made to its JSON, its id is made to fit."""
    data = {"plan": digest(plan), "machine": "b" * 64, "number": 1, "started_at": BEGAN, "records": links}
    data.update(changes or {})
    if "id" not in data:
        data["id"] = sweep_id(str(data["plan"]), str(data["machine"]), data["number"])
    text = canonical(data)
    return {f"plans/{digest(plan)}.json": plan.encode(), f"sweeps/{digest(text)}.json": text.encode()}


BEGAN = "2026-01-02T03:04:05.000006Z"


def without_sweeps(members: dict[str, bytes]) -> dict[str, bytes]:
    return {name: one for name, one in members.items() if not name.startswith(layout.OF_SWEEPS)}


# Zip files, also such that no packer writes.


@dataclass
class Part:
    """A member. What its headers say of it is true, but for the lies in `both`, `local` and `entry`."""

    name: str | bytes
    content: bytes
    method: int = 8
    mode: int = 0o100644
    packed: bytes | None = None
    both: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    entry: dict[str, int] = field(default_factory=dict)
    local_name: bytes | None = None
    extra: bytes = b""
    local_extra: bytes = b""
    comment: bytes = b""

    def body(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return zlib.compress(self.content, 1, -15) if self.method == 8 else self.content

    def true(self) -> dict[str, int]:
        crc = zlib.crc32(self.content)
        sizes = {"crc": crc, "packed": len(self.body()), "size": len(self.content)}
        fixed = {"made": 0x314, "needed": 20, "flags": 0, "method": self.method, "time": 0, "date": 33}
        return {**fixed, **sizes, "disk": 0, "inner": 0, "outer": self.mode << 16}

    def encoded(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode()


FIELDS = ("needed", "flags", "method", "time", "date", "crc", "packed", "size")


def local_header(part: Part) -> bytes:
    says = {**part.true(), **part.both, **part.local}
    name = part.encoded() if part.local_name is None else part.local_name
    numbers = [says[name] for name in FIELDS]
    return struct.pack("<4s5H3L2H", b"PK\3\4", *numbers, len(name), len(part.local_extra)) + name + part.local_extra


def entry(part: Part, place: int) -> bytes:
    says = {"offset": place, **part.true(), **part.both, **part.entry}
    name = part.encoded()
    lengths = [len(name), len(part.extra), len(part.comment)]
    last = [says[name] for name in ("disk", "inner", "outer", "offset")]
    header = struct.pack("<4s6H3L5H2L", b"PK\1\2", says["made"], *(says[one] for one in FIELDS), *lengths, *last)
    return header + name + part.extra + part.comment


def zipped(parts: list[Part], *, sealed=True, gap=b"", listed=None, end=None, comment=b"") -> bytes:
    """The bytes of a zip: `gap` is put before one of the members, `listed` is the order of the list, `end` lies."""
    body, places = b"", []
    for index, part in enumerate(parts):
        body += gap if index == len(parts) // 2 else b""
        places.append(len(body))
        body += local_header(part) + part.body()
    order = range(len(parts)) if listed is None else listed
    entries = b"".join(entry(parts[index], places[index]) for index in order)
    said = {"disk": 0, "first": 0, "here": len(order), "count": len(order), "length": len(entries), "start": len(body)}
    comment = bytes(64) if sealed else comment
    numbers = list({**said, **(end or {})}.values())
    return resealed(
        body + entries + struct.pack("<4s4H2LH", b"PK\5\6", *numbers, len(comment)) + comment, sealed=sealed
    )


def resealed(content: bytes, *, sealed=True) -> bytes:
    return content[:-64] + hashlib.sha256(content[:-64]).hexdigest().encode() if sealed else content


def listing(members: dict[str, bytes], schema: int = layout.SCHEMA) -> dict[str, Any]:
    listed = {name: {"bytes": len(content), "digest": digest(content)} for name, content in members.items()}
    return {"members": listed, "schema": schema}


def parts(members: dict[str, bytes], manifest: bytes | str | None = None, schema: int = layout.SCHEMA) -> list[Part]:
    """As a packer would lay them out, with a manifest that fits unless another is given."""
    text = canonical(listing(members, schema)) if manifest is None else manifest
    whole = {**members, "manifest.json": text.encode() if isinstance(text, str) else text}
    return [Part(name, whole[name], 0 if name.startswith("blobs") else 8) for name in sorted(whole)]


def bundle(members: dict[str, bytes], manifest: bytes | str | None = None, *, first=False) -> bytes:
    """A bundle of this schema or the first one."""
    members = without_sweeps(members) if first else members
    return zipped(parts(members, manifest, 1 if first else layout.SCHEMA), sealed=not first)


def with_record(text: str | bytes, members: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """The members with another record in the place of theirs, under its own digest."""
    content = text if isinstance(text, bytes) else text.encode()
    whole = without_sweeps(members or contents())
    others = {name: one for name, one in whole.items() if not name.startswith("records/")}
    return {**others, f"records/{digest(content)}.json": content}


def test_what_is_damaged_here_is_in_order_before(taker, small):
    assert taker.judge(small) == taker.judge(bundle(contents())) == taker.judge(bundle(contents(), first=True)) == []


# Half of them: bytes as a disk or a line damages them.


def stretch(random: Random, content: bytes) -> tuple[int, int]:
    begin = random.randrange(len(content))
    return begin, min(len(content), begin + random.choice((1, 2, 4, 30, 200, len(content))))


def flipped(random: Random, content: bytes) -> bytes:
    made = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 8))):
        made[random.randrange(len(made))] ^= 1 << random.randrange(8)
    return bytes(made)


def overwritten(random: Random, content: bytes) -> bytes:
    begin, end = stretch(random, content)
    return content[:begin] + random.randbytes(end - begin) + content[end:]


def deleted(random: Random, content: bytes) -> bytes:
    begin, end = stretch(random, content)
    return content[:begin] + content[end:]


def inserted(random: Random, content: bytes) -> bytes:
    begin = random.randrange(len(content))
    return content[:begin] + random.randbytes(random.choice((1, 2, 22, 100))) + content[begin:]


def cut(random: Random, content: bytes) -> bytes:
    return content[: random.randrange(len(content))]


def doubled(random: Random, content: bytes) -> bytes:
    begin, end = stretch(random, content)
    return content[:end] + content[begin:end] + content[end:]


def swapped(random: Random, content: bytes) -> bytes:
    one, two, three = sorted(random.randrange(len(content)) for _ in range(3))
    return content[:one] + content[two:three] + content[one:two] + content[three:]


def appended(random: Random, content: bytes) -> bytes:
    return content + random.choice((b"\0", b"\n", random.randbytes(random.randrange(1, 200)), content))


def zeroed(random: Random, content: bytes) -> bytes:
    begin, end = stretch(random, content)
    return content[:begin] + bytes(end - begin) + content[end:]


def begun_later(random: Random, content: bytes) -> bytes:
    return content[random.randrange(1, len(content)) :]


DAMAGES = (flipped, overwritten, deleted, inserted, cut, doubled, swapped, appended, zeroed, begun_later)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bytes_are_refused(taker, small, damage, seed):
    random, count = Random(f"{damage.__name__} {seed}"), 0
    while count < EACH:
        damaged = damage(random, small)
        if damaged == small:
            continue
        assert taker.judge(damaged), (damage, seed, count)
        count += 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_bytes_that_are_sealed_again_are_refused_or_change_nothing(taker, small, damage):
    """Without the seal: only what no program looks at, such as the dates of members, may be another."""
    random, whole = Random(f"sealed {damage.__name__}"), held(taker, small)
    for _ in range(60):
        damaged = resealed(damage(random, small))
        if not taker.judge(damaged):
            assert held(taker, damaged) == whole


def held(taker: Taker, content: bytes) -> tuple[Any, ...]:
    """All that is in a bundle, but for its signature."""
    taker.path.write_bytes(content)
    with read_bundle(taker.path) as opened:
        names = [name for record in opened.records for name in record.blobs()]
        return opened.digests, opened.records, [opened.fetch(name) for name in names]


# The other half: made by somebody who knows the format.

DEEP = "[" * 99 + "]" * 99
STRANGE: tuple[Any, ...] = (None, True, -1, 2.5, 10**30, "", "x", [], {}, [[]], {"a": 1}, "9" * 99)


def changed_digit(random: Random, text: str) -> str:
    place = random.randrange(len(text))
    return text[:place] + random.choice([one for one in "0123456789abcdef" if one != text[place]]) + text[place + 1 :]


def some_digest(random: Random) -> str:
    return random.randbytes(32).hex()


def another(random: Random, value: Any) -> Any:
    return random.choice([one for one in STRANGE if canonical(one) != canonical(value)])


def badly_written(random: Random, text: str) -> bytes:
    """Text of the same value, or of none, that is not canonical."""
    keys = [match.start() for match in re.finditer(r'"[\w.]+":', text)]
    commas = [match.start() for match in re.finditer(r'[,:](?=["\[{\d])', text)]
    key, comma = random.choice(keys), random.choice(commas)
    whole = re.match(r'"[\w.]+":', text[key:]).group()  # type: ignore[union-attr]
    ways = [
        text[: comma + 1] + random.choice(" \n\t\r") + text[comma + 1 :],
        text[:key] + whole + '"again",' + text[key:],
        text[: key + 1] + f"\\u{ord(text[key + 1]):04x}" + text[key + 2 :],
        text + random.choice((" ", "\n", "{}", "]", "\0", ",")),
        random.choice((" ", "\ufeff", "[", "//\n")) + text,
        text[: random.randrange(len(text))],
        json.dumps(json.loads(text)),
        json.dumps(turned(json.loads(text)), separators=(",", ":")),
        "[" * random.choice((1, 66, 5000, 200_000)) + text,
        text[: comma + 1] + DEEP + text[comma + 1 :],
    ]
    numbers = list(re.finditer(r"(?<=:)\d+(?=[,}])", text))
    number = random.choice(numbers)
    forms = (
        "{}.0",
        "{}e0",
        "0{}",
        "+{}",
        "-0",
        "{}" + "0" * 5000,
        "1e999",
        "NaN",
        "Infinity",
        "0x{}",
        "{}." + "0" * 9000,
    )
    form = random.choice(forms).format(number.group())
    ways.append(text[: number.start()] + form + text[number.end() :])
    place = random.randrange(len(text))
    encoded = [text[:place].encode() + random.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80")) + text[place:].encode()]
    return random.choice([*(way.encode() for way in ways), *encoded])


def turned(value: Any) -> Any:
    """The same with the keys of its first object in another order."""
    return [turned(value[0])] if isinstance(value, list) else dict(reversed(value.items()))


def lying_manifest(random: Random) -> bytes:
    members = contents()
    data = listing(members)
    name = random.choice(list(data["members"]))
    one = data["members"][name]
    change = random.randrange(10)
    if change == 0:
        one["digest"] = changed_digit(random, one["digest"])
    elif change == 1:
        one["bytes"] += random.choice((-1, 1, 10, 2**40))
    elif change == 2:
        key = random.choice(list(one))
        one[key] = another(random, one[key])
    elif change == 3:
        one[random.choice(("more", "", "path"))] = random.choice(STRANGE)
    elif change == 4:
        del one[random.choice(list(one))]
    elif change == 5:
        data["members"][name] = random.choice(STRANGE)
    elif change == 6:
        data["schema"] = random.choice((0, 1, 2, 4, 99, -1, 2.5, "3", None, True, [], {}, 10**40))
    elif change == 7:
        data[random.choice(("more", "members", "signature"))] = random.choice(STRANGE)
    elif change == 8:
        data = random.choice(({}, [data], another(random, data), {"schema": 3}, {"members": {}}, {"a": data}))
    else:
        data["members"][random.choice((f"blobs/{some_digest(random)}", "../up", "x" * 99999))] = one
    return bundle(members, canonical(data))


def misplaced_in_manifest(random: Random) -> bytes:
    members = contents()
    data = listing(members)
    names = random.sample(list(data["members"]), 2)
    gone = data["members"].pop(names[0])
    if random.random() < 0.5:
        data["members"][names[0]] = data["members"][names[1]]
    elif random.random() < 0.5:
        data["members"][random.choice((names[0].upper(), names[0] + " ", f"blobs/{some_digest(random)}"))] = gone
    return bundle(members, canonical(data))


def badly_written_manifest(random: Random) -> bytes:
    members = contents()
    return bundle(members, badly_written(random, canonical(listing(members))))


def badly_written_record(random: Random) -> bytes:
    return bundle(with_record(badly_written(random, samples.record(seed=1).text())), first=random.random() < 0.3)


def badly_written_sweep(random: Random) -> bytes:
    """A plan or a sweep that is not canonical, or no text, under its own digest."""
    members = contents()
    name = random.choice([one for one in members if one.startswith(layout.OF_SWEEPS)])
    content = badly_written(random, members.pop(name).decode())
    return bundle({**members, f"{name.partition('/')[0]}/{digest(content)}.json": content})


def lying_sweep(random: Random) -> bytes:
    """A sweep of other records, of another plan, of another id, or with a value that none has."""
    record = samples.record(seed=1)
    spec, name = record.spec.digest(), digest(record.text())
    links = random.choice(({spec: some_digest(random)}, {some_digest(random): name}, {}, {spec: name, name: spec}))
    wrong = {
        "plan": (some_digest(random), "A" * 64, "../up"),
        "machine": ("b" * 63, "B" * 64),
        "number": (0, 2**31, 1.5, "1"),
        "started_at": ("yesterday", "2026-02-30T00:00:00.000000Z", BEGAN[:-1], BEGAN + " ", "2026-01-02T03:04:05Z"),
        "id": ("x", f"{'0' * 12}-{'b' * 8}-1", BEGAN),
        "more": (1,),
    }
    key = random.choice(list(wrong))
    value = random.choice((*wrong[key], *(one for one in STRANGE if key != "number" or one != 1)))
    change = random.random()
    if change < 0.3:
        made = swept(links)
    elif change < 0.8:
        made = swept({spec: name}, changes={key: value})
    else:
        made = {**swept({spec: name}), **swept({spec: name}, changes={"started_at": BEGAN.replace("6Z", "7Z")})}
    return bundle({**without_sweeps(contents()), **made})


def lying_plan(random: Random) -> bytes:
    """A plan of other specs, of one spec twice, or with a field more, less or of another kind; its sweep fits it."""
    record = samples.record(seed=1)
    links = {record.spec.digest(): digest(record.text())}
    spec = record.spec.to_json()
    way = random.choice([one for one in values(spec) if one and "why" not in one])
    plans = ([], {}, [spec, spec], [samples.spec("other").to_json()], [[spec]], [spec, None], another(random, [spec]))
    change = random.random()
    if change < 0.3:
        return bundle({**without_sweeps(contents()), **swept(links, canonical(random.choice(plans)))})
    if change < 0.6:
        part = random.choice(("question", "setting", "mark"))
        spec = {**spec, part: {**spec[part], random.choice(("more", "", "pass_")): random.choice(STRANGE)}}
    elif change < 0.8:
        part = random.choice(("question", "setting", "mark"))
        spec = {**spec, part: dict(list(spec[part].items())[1:])}
    else:
        spec = put(spec, way, {"a": [random.choice(STRANGE)]})
    return bundle({**without_sweeps(contents()), **swept(links, canonical([spec]))})


def too_early(random: Random) -> bytes:
    """A sweep in a bundle of a schema that had none, or only a part of one."""
    members = contents()
    if random.random() < 0.5:
        schema = random.choice((1, 2))
        return zipped(parts(members, schema=schema), sealed=schema == 2)
    gone = random.choice([one for one in members if one.startswith(layout.OF_SWEEPS)])
    return bundle({name: one for name, one in members.items() if name != gone})


FREE = ("parameters", "variables", "durations", "operators")
"""Objects of a record that may have any keys."""


def objects(value: Any, name: str = "") -> list[dict[str, Any]]:
    """All objects within a value that have the keys of a dataclass."""
    inside = (
        value.items() if isinstance(value, dict) else [("", one) for one in value] if isinstance(value, list) else []
    )
    found = [one for key, part in inside for one in objects(part, key)]
    return [value, *found] if isinstance(value, dict) and name not in FREE else found


def lying_record(random: Random) -> bytes:
    """Without a field, with one more, of a schema to come, or saying something else than its evidence digest."""
    data = json.loads(samples.record(seed=1, kind="raised", message="no\n\nmore").text())
    change = random.randrange(6)
    one = random.choice(objects(data))
    if change == 0:
        del one[random.choice(list(one))]
    elif change == 1:
        one[random.choice(("more", "", "pass_", "__class__"))] = random.choice(STRANGE)
    elif change == 2:
        data["schema"] = random.choice((0, SCHEMA + 1, 99, -1, 2.5, "2", None, True, [], {}, 10**40))
    elif change == 3:
        key = random.choice(("role", "name", "dtype", "shape", "digest"))
        tensor = data["observation"]["tensors"][0]
        tensor[key] = another(random, tensor[key])
    elif change == 4:
        said = random.choice((data, data["outcome"]))
        key = "evidence_digest" if said is data else "fingerprint"
        said[key] = random.choice((another(random, said[key]), some_digest(random)))
    else:
        data["outcome"][random.choice(("kind", "phase", "type", "message"))] = random.choice(
            ("finished", "died", 1, [])
        )
    return bundle(with_record(canonical(data)), first=random.random() < 0.3)


def resting_on_others(random: Random) -> bytes:
    """A record that is right, but for what it rests on: it is not in the bundle, or is no digest."""
    record = samples.record(seed=1)
    seen = record.observation
    assert seen is not None
    digests = [some_digest(random) for _ in range(6)]
    name = random.choice((*digests, "../" + "a" * 61, "A" * 64, "", "x", 5, ["a"], {"a": "b"}, 2.5))
    choice = random.randrange(4)
    if choice == 0:
        seen = replace(seen, machine=name)
    elif choice == 1:
        seen = replace(seen, sources=(replace(seen.sources[0], digest=name),))
    elif choice == 2:
        tensor = seen.tensors[0]
        field = random.choice(("digest", "samples", "sketch"))
        seen = replace(seen, tensors=(replace(tensor, **{field: name or "-"}),))
    else:
        ending = replace(record.ending, stdout=replace(record.ending.stdout, digest=random.choice(("", 5, "x" * 64))))
        record = replace(record, ending=ending)
    return bundle(with_record(replace(record, observation=seen).text()), first=random.random() < 0.3)


def other_members(random: Random) -> bytes:
    """Dropped, added, renamed or changed, with a manifest that fits or one that does not."""
    members = contents()
    name = random.choice(list(members))
    folders = ("blobs/%s", "documents/%s.txt", "records/%s.json", "plans/%s.json", "sweeps/%s.json")
    more = random.choice(folders) % digest(b"more")
    change = random.randrange(7)
    before = canonical(listing(members))
    content = members.pop(name) if change < 3 else members[name]
    if change == 1:
        members[re.sub("[0-9a-f]{64}", lambda found: changed_digit(random, found.group()), name)] = content
    elif change == 2:
        folder = random.choice([one for one in folders if one[0] != name[0]])
        members[folder % digest(content)] = content
    elif change == 3:
        members[more] = b"more"
    elif change == 4:
        members[name] = random.choice(DAMAGES)(random, content)
    elif change == 5:
        members[name] = random.choice((b"", content + b"\n", content + content, random.randbytes(len(content))))
    elif change == 6:
        names = random.sample(list(members), 2)
        members[names[0]], members[names[1]] = members[names[1]], members[names[0]]
    manifest = random.choice((None, None, before))
    return bundle(members, manifest, first=manifest is None and random.random() < 0.3)


OUTSIDE = (
    "../",
    "..\\",
    "/",
    "\\",
    "C:",
    "C:\\",
    "./../",
    "blobs/../../",
    "records\\..\\",
    "//host/",
    "~/../",
    "a/../../",
)


def strange_names(random: Random) -> bytes:
    """A member more, or one renamed, and the name is none of a bundle."""
    members = contents()
    name = random.choice(list(members))
    alike = (
        name.upper(),
        name.title(),
        "\uff42" + name[1:],
        name + "\0",
        name + "\0.txt",
        name + " ",
        name + "\n",
        name + "/",
    )
    others = (
        "",
        ".",
        "blobs",
        "README",
        "manifest.json/",
        "MANIFEST.JSON",
        "x" * 65000,
        "\x1b[2J",
        "é",
        "e\u0301",
        "\udcff",
    )
    made = random.choice((random.choice(OUTSIDE) + random.choice((name, "up", "etc/passwd")), *alike, *others))
    content = members[name] if random.random() < 0.5 else random.randbytes(9)
    if random.random() < 0.5:
        members.pop(name)
    listed = parts(members if random.random() < 0.5 or "\udcff" in made else {**members, made: content})
    encoded = made.encode("utf-8", "surrogateescape")
    return zipped([*(one for one in listed if one.encoded() != encoded), Part(encoded, content)])


def double_members(random: Random) -> bytes:
    """Two members of a name, alike or not, or a member that the list has twice."""
    listed = parts(contents())
    index = random.randrange(len(listed))
    if random.random() < 0.3:
        return zipped(listed, listed=[*range(len(listed)), index])
    twin = replace(listed[index], content=random.choice((listed[index].content, b"", random.randbytes(20))))
    listed.insert(random.randrange(len(listed) + 1), twin)
    return zipped(listed)


def links(random: Random) -> bytes:
    """Links, devices, folders and what else is no file."""
    listed = parts(contents())
    one = random.choice(listed)
    kinds = (stat.S_IFLNK, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK, 0xF000)
    one.mode = random.choice(kinds) | random.randrange(0o7777)
    if random.random() < 0.5:
        one.content = random.choice((b"/etc/passwd", b"../../up"))
    return zipped(listed)


def lying_headers(random: Random) -> bytes:
    """One of the two headers of a member, or both, say what is not so."""
    listed = parts(contents())
    one = random.choice(listed)
    true = one.true()
    name = random.choice(("flags", "method", "crc", "packed", "size"))
    largest = 0xFFFF if name in ("flags", "method") else 0xFFFFFFFF
    lie = random.choice((0, 1, 9, 99, true[name] + 1, true[name] - 1, 0x40, 0x1000, largest, random.randrange(largest)))
    if lie == true[name] or lie < 0 or (name == "flags" and not lie & ~0x806):
        lie = 9 if name != "size" or true["size"] != 9 else 8
    getattr(one, random.choice(("both", "local", "entry")))[name] = lie
    return zipped(listed)


def more_in_headers(random: Random) -> bytes:
    """Extra fields, comments, numbers of disks, another name in one of the two headers."""
    listed = parts(contents())
    one = random.choice(listed)
    more = random.choice(
        (b"\1\0\x10\0" + bytes(16), b"x", random.randbytes(random.randrange(1, 300)), b"up\6\0\1abcde")
    )
    change = random.randrange(7)
    if change < 3:
        setattr(one, ("extra", "local_extra", "comment")[change], more)
    elif change == 3:
        one.local_name = random.choice(
            (b"", b"../up", more, one.encoded() + b"x", random.choice(listed).encoded()[:-1])
        )
    elif change == 4:
        one.entry[random.choice(("disk", "inner"))] = random.randrange(1, 0xFFFF)
    elif change == 5:
        one.local[random.choice(("needed", "time", "date"))] = random.randrange(34, 0xFFFF)
    else:
        one.packed = one.body() + more
    return zipped(listed)


def lying_layout(random: Random) -> bytes:
    """Members that are elsewhere than the list says, bytes between them, a list of another length."""
    listed = parts(contents())
    change = random.randrange(5)
    if change == 0:
        return zipped(listed, gap=random.randbytes(random.randrange(1, 99)))
    if change == 1:
        order = list(range(len(listed)))
        random.shuffle(order)
        return zipped(listed, listed=order if order != sorted(order) else order[::-1])
    if change == 2:
        random.choice(listed).entry["offset"] = random.choice((1, 17, 0xFFFFFFFF, random.randrange(1, 5000)))
        return zipped(listed)
    if change == 3:
        order = random.sample(range(len(listed)), len(listed) - 1)
        return zipped(listed, listed=sorted(order))
    name = random.choice(("disk", "first", "here", "count", "length", "start"))
    largest = 0xFFFFFFFF if name in ("length", "start") else 0xFFFF
    return zipped(listed, end={name: random.choice((1, largest, random.randrange(6, largest)))})


def without_seal(random: Random) -> bytes:
    """Another ending than that of its schema."""
    whole = parts(contents())
    if random.random() < 0.3:
        return zipped(parts(contents(), schema=1))
    if random.random() < 0.3:
        return zipped(whole, sealed=False)
    if random.random() < 0.5:
        return zipped(whole, sealed=False, comment=random.randbytes(random.choice((1, 63, 64, 65, 300))))
    return zipped(whole)[:-64] + random.choice((b"0" * 64, random.randbytes(64), some_digest(random).encode()))


def padded(random: Random) -> bytes:
    """A member that unpacks to more or less than it says, or goes on behind its end."""
    listed = parts(contents())
    one = random.choice(listed)
    one.method = 8
    body = one.body()
    zeros = zlib.compress(bytes(random.choice((1 << 10, 1 << 16, 1 << 20))), 9, -15)
    one.packed = random.choice((zeros, body + b"\0", body[:-1], b"", body + zeros, random.randbytes(40)))
    one.both = random.choice(({}, {}, {"size": 1 << 20}, {"size": 0}))
    return zipped(listed)


CRAFTS = (
    lying_manifest,
    misplaced_in_manifest,
    badly_written_manifest,
    badly_written_record,
    badly_written_sweep,
    lying_record,
    lying_sweep,
    lying_plan,
    too_early,
    resting_on_others,
    other_members,
    strange_names,
    double_members,
    links,
    lying_headers,
    more_in_headers,
    lying_layout,
    without_seal,
    padded,
)


@pytest.mark.parametrize(
    "craft", [*CRAFTS, badly_written_record, lying_record, other_members, lying_headers, lying_layout]
)
def test_crafted_bundles_are_refused(taker, craft, request):
    random, whole, count = Random(request.node.name), bundle(contents()), 0
    first = bundle(contents(), first=True)
    while count < EACH:
        damaged = craft(random)
        if damaged in (whole, first):
            continue
        assert taker.judge(damaged), (craft, count)
        count += 1


def test_there_are_ten_thousand_of_them():
    assert 260 * len(DAMAGES) * 2 >= 5000
    assert 260 * (len(CRAFTS) + 5) >= 5000


def changed(which: int, **changes: Any) -> bytes:
    """A bundle of which one member is another: 0 is the tensor, 1 and 2 are documents, 5 is the record."""
    listed = parts(contents())
    listed[which] = replace(listed[which], **changes)
    return zipped(listed)


def named(name: str) -> bytes:
    return zipped([*parts(contents()), Part(name, b"")])


LINKS = {samples.spec().digest(): digest(samples.record(seed=1).text())}


def with_sweep(
    links: dict[str, str], plan: str = plan_text([samples.spec()]), more: dict[str, bytes] | None = None
) -> bytes:
    return bundle({**without_sweeps(contents()), **swept(links, plan), **(more or {})})


def resting_on(**contents: bytes) -> bytes:
    """A bundle of a record that rests on this: facts of its machine, or a part of its tensor."""
    record = samples.record(seed=1)
    seen = record.observation
    assert seen is not None
    kept = {name: digest(content) for name, content in contents.items()}
    tensor = replace(seen.tensors[0], **{name: one for name, one in kept.items() if name != "machine"})
    seen = replace(seen, tensors=(tensor,), machine=kept.get("machine", seen.machine))
    blobs = {**samples.contents(1), **{digest(content): content for content in contents.values()}}
    return bundle(writer.members([replace(record, observation=seen).text()], blobs.get))


def repeated(count: int) -> bytes:
    """A bundle of that many records of one question."""
    text = samples.record(seed=1).text()
    whole = json.loads(text)
    texts = [canonical({**whole, "ending": {**whole["ending"], "duration": float(one)}}) for one in range(count)]
    return bundle(writer.members(texts, samples.contents(1).get))


EXAMPLES = {
    "end": lambda: bundle(contents())[:-1],
    "other zip": lambda: zipped(parts(contents()), end={"count": 0xFFFF, "here": 0xFFFF}),
    "seal": lambda: bundle(contents())[:-1] + b"x",
    "unsealed": lambda: zipped(parts(contents()), sealed=False),
    "sealed": lambda: zipped(parts(contents(), schema=1)),
    "many": lambda: zipped(parts(contents()), end={"count": 40_001, "here": 40_001}),
    "list": lambda: zipped(parts(contents()), end={"count": 4, "here": 4}),
    "gap": lambda: zipped(parts(contents()), gap=b"hidden"),
    "total": lambda: zipped([replace(one, both={"size": 1 << 30}) for one in parts(contents())]),
    "records": lambda: changed(5, both={"size": layout.LARGEST_RECORDS + 1}),
    "empty": lambda: bundle({}),
    "leaves": lambda: named("../up"),
    "link": lambda: changed(0, mode=stat.S_IFLNK),
    "special": lambda: changed(0, mode=stat.S_IFIFO),
    "twice": lambda: zipped([*parts(contents()), parts(contents())[0]]),
    "unknown": lambda: named("README"),
    "encrypted": lambda: changed(0, both={"flags": 1}),
    "method": lambda: changed(0, both={"method": 12}),
    "headers": lambda: changed(0, local_name=b"blobs/" + b"0" * 64),
    "additions": lambda: changed(0, extra=b"more"),
    "says": lambda: changed(1, both={"size": layout.LARGEST_TEXT + 1}),
    "unpacked": lambda: changed(1, packed=b"?"),
    "crc": lambda: changed(1, both={"crc": 1}),
    "no manifest": lambda: zipped([one for one in parts(contents()) if one.name != "manifest.json"]),
    "manifest": lambda: bundle(contents(), "{"),
    "schema": lambda: bundle(contents(), '{"members":{},"schema":4}'),
    "form": lambda: bundle(contents(), '{"members":{},"schema":3} '),
    "gone": lambda: bundle({}, canonical(listing(contents()))),
    "unlisted": lambda: bundle(contents(), canonical(listing({}))),
    "content": lambda: bundle(dict.fromkeys(contents(), b""), canonical(listing(contents()))),
    "name": lambda: bundle({**contents(), f"blobs/{'0' * 64}": b"else"}),
    "text": lambda: bundle({**contents(), f"documents/{digest(bytes(1))}.txt": bytes(1)}),
    "record": lambda: bundle(with_record("{}")),
    "often": lambda: repeated(bounds.MOST_OF_A_QUESTION + 1),
    "facts": lambda: resting_on(machine=b'{"a":{"b":1},"a.b":2}'),
    "sketch": lambda: resting_on(sketch=bytes(8)),
    "sample": lambda: resting_on(samples=bytes(16385)),
    "plan": lambda: with_sweep(LINKS, "[]"),
    "sweep": lambda: with_sweep({}),
    "sweep twice": lambda: with_sweep(LINKS, more=swept(LINKS, changes={"started_at": "2027" + BEGAN[4:]})),
    "other spec": lambda: with_sweep({"0" * 64: LINKS[samples.spec().digest()]}),
    "unplanned": lambda: with_sweep(LINKS, plan_text([samples.spec("other")])),
    "later": lambda: zipped(parts(contents(), schema=2)),
    "needed": lambda: bundle({name: one for name, one in contents().items() if not name.startswith("blobs")}),
    "spare": lambda: bundle({**contents(), f"blobs/{digest(b'more')}": b"more"}),
}


@pytest.mark.parametrize("name", sorted(layout.REFUSALS.keys() - {"long"}))
def test_every_sentence_of_the_table_is_said(taker, name):
    assert name in taker.judge(EXAMPLES[name]())


def test_a_file_that_is_too_long_is_refused_without_being_read(taker):
    with taker.path.open("wb") as file:
        file.truncate(layout.LARGEST_FILE + 1)
    assert [reasons(problem.what) for problem in check_bundle(taker.path)] == [["long"]]
    taker.path.unlink()


# What is small as a file and large unpacked.


def filled(unit: str, size: int = layout.LARGEST_TEXT) -> str:
    """A list of that many characters."""
    return f"[{','.join([unit] * ((size - 1) // (len(unit) + 1)))}]"


def long_list() -> str:
    """The text of a record that is right, with as many values as fit into a quarter of what is read."""
    record = samples.record(seed=1)
    seen = record.observation
    assert seen is not None
    observed = replace(seen.observed[0], value=[[]] * (layout.LARGEST_TEXT // 12), kind="measurement")
    return replace(record, observation=replace(seen, observed=(observed,))).text()


BOMBS = {
    "objects": ("record", lambda: bundle(with_record(filled("{}")))),
    "brackets": ("record", lambda: bundle(with_record("[" * layout.LARGEST_TEXT))),
    "digits": ("record", lambda: bundle(with_record("9" * layout.LARGEST_TEXT))),
    "manifest": ("schema", lambda: bundle(contents(), filled("{}"))),
    "longer than is read": ("says", lambda: bundle(with_record(filled("{}", layout.LARGEST_TEXT + 9)))),
    "zeros": ("content", lambda: changed(0, content=bytes(layout.LARGEST_MEMBER), method=8)),
    "zeros in a text": ("says", lambda: changed(1, content=bytes(layout.LARGEST_MEMBER))),
    "zeros that are denied": ("unpacked", lambda: changed(1, content=bytes(1 << 28), both={"size": 1 << 20})),
    "objects in a plan": ("plan", lambda: with_sweep(LINKS, filled("{}"))),
    "specs in a plan": ("plan", lambda: with_sweep(LINKS, filled(canonical(samples.spec().to_json())))),
    "records of a sweep": ("needed", lambda: with_sweep({f"{at:064}": f"{at:064}" for at in range(60_000)})),
    "members": ("many", lambda: zipped(parts(contents()), listed=[0] * 65_000)),
    "members in one place": ("gap", lambda: zipped(parts(contents()), listed=[0] * 40_000)),
    "a real record": ("needed", lambda: bundle(dict(list(with_record(long_list()).items())[1:]))),
}

LOOK = """
import json, sys, time
from pathlib import Path
from store.bundles import check_bundle

def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))

before, started = kilobytes("VmRSS"), time.process_time()
said = [problem.what for problem in check_bundle(Path(sys.argv[1]))]
print(json.dumps([said, time.process_time() - started, kilobytes("VmHWM") - before]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
@pytest.mark.parametrize("name", BOMBS)
def test_what_is_large_unpacked_takes_bounded_memory_and_time(tmp_path, name):
    expected, made = BOMBS[name]
    path = tmp_path / "bomb.zip"
    path.write_bytes(made())
    assert path.stat().st_size < 1 << 23
    command = [sys.executable, "-c", LOOK, str(path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    said, seconds, kilobytes = json.loads(ended.stdout)
    assert expected in [one for sentence in said for one in reasons(sentence)]
    assert kilobytes * 1024 < 64 * layout.LARGEST_TEXT
    # Ten times what it takes, since a machine may be slow.
    assert seconds < 100


def values(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value within a JSON value is."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(one for key, part in inside for one in values(part, (*way, key)))]


def put(data: Any, way: tuple[Any, ...], value: Any) -> Any:
    if not way:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[way[0]] = put(data[way[0]], way[1:], value)
    return copy


@pytest.mark.parametrize("part", range(4))
def test_a_value_of_any_kind_anywhere_is_refused_or_can_be_kept(taker, tmp_path, part):
    """Never an error: what is let through can be added, which is not so if only the second look fails."""
    data = json.loads(samples.record(seed=1, kind="raised", message="no").text())
    asked = [(way, value) for way in values(data) if way for value in STRANGE]
    with Archive.open(f"sqlite:///{tmp_path}/other.db", tmp_path / "blobs") as other:
        for way, value in Random(1).sample(asked, len(asked))[part::12]:
            if not agreed(taker, put(data, way, value)):
                assert len(add_bundle(other, taker.path)) == 1
        assert other.check() == []


def agreed(taker: Taker, data: Any) -> list[str]:
    """Why a record is refused once its evidence digest and fingerprint are what they should be."""
    for _ in range(3):
        why = taker.judge(bundle(with_record(canonical(data))))
        said = str(check_bundle(taker.path)[0]) if why else ""
        digest_ = re.search(r"evidence digest is (\w+), the record says", said)
        mark = re.search(r"(?s)fingerprint is (.+), the record says", said)
        if digest_:
            data = {**data, "evidence_digest": digest_.group(1)}
        elif mark and isinstance(data["outcome"], dict):
            data = put(data, ("outcome",), {**data["outcome"], "fingerprint": mark.group(1)})
        else:
            break
    return why
