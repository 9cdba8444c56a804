"""Who signed a bundle: only what was signed is said to be, by whom it was, and nothing that was changed since."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import samples
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from experiments.bundle import writer
from experiments.core.canonical_json import canonical, digest
from store import signing
from store.__main__ import main
from store.archive import Archive, ArchiveError

ROOT = Path(__file__).parents[1]
MANIFEST = canonical(
    {"schema": 1, "members": {f"records/{'0' * 64}.json": {"digest": "0" * 64, "bytes": 1}, "blobs/x": {}}}
).encode()
OURS = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
THEIRS = Ed25519PrivateKey.from_private_bytes(b"b" * 32)
ANNA = signing.key_id(OURS.public_key())
SIGNED = signing.sign_manifest(MANIFEST, OURS)


def pem(key):
    if hasattr(key, "private_bytes"):
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def enveloped(statement, key=OURS, **changes):
    """An envelope whose signature is right, around any statement."""
    payload = statement if isinstance(statement, bytes) else canonical(statement).encode()
    made = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": signing.PAYLOAD_TYPE,
        "signatures": [
            {
                "keyid": signing.key_id(key.public_key()),
                "sig": base64.b64encode(key.sign(signing.encoding(payload))).decode(),
            }
        ],
    }
    return canonical({**made, **changes}).encode()


def outer():
    return json.loads(SIGNED)


def statement():
    return json.loads(base64.b64decode(outer()["payload"]))


# What is signed.


def test_the_envelope_is_the_same_each_time_and_says_what_it_is_about():
    assert signing.sign_manifest(MANIFEST, OURS) == SIGNED == enveloped(statement())
    assert statement() == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "manifest.json", "digest": {"sha256": digest(MANIFEST)}}],
        "predicateType": "urn:twofold:evidence-bundle:1",
        "predicate": {"schema": 1, "records": 1, "publicKey": pem(OURS.public_key()).decode()},
    }


def test_a_key_is_named_by_the_digest_of_its_standard_form():
    raw = OURS.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert digest(raw) == ANNA == outer()["signatures"][0]["keyid"]


def test_other_tools_verify_the_same_bytes():
    public = load_pem_public_key(statement()["predicate"]["publicKey"].encode())
    key = SSlibKey.from_crypto(public, ANNA)
    envelope = Envelope.from_dict(outer())
    assert envelope.pae() == signing.encoding(base64.b64decode(outer()["payload"]))
    assert list(envelope.verify([key], 1)) == [ANNA]
    other = SSlibKey.from_crypto(THEIRS.public_key(), ANNA)
    with pytest.raises(VerificationError):
        envelope.verify([other], 1)


def test_an_envelope_of_another_tool_is_verified():
    from securesystemslib.signer import CryptoSigner  # noqa: PLC0415  (slow, and only here)

    envelope = Envelope(base64.b64decode(outer()["payload"]), signing.PAYLOAD_TYPE, {})
    envelope.sign(CryptoSigner(OURS, SSlibKey.from_crypto(OURS.public_key(), ANNA)))
    assert signing.verify_envelope(MANIFEST, canonical(envelope.to_dict()).encode()) == ANNA


def test_who_signed_is_said_by_the_keys_of_the_reader_alone():
    assert str(signing.verify_signature(MANIFEST, SIGNED, {ANNA: "anna"})) == f"signed by anna (key {ANNA})"
    assert (
        str(signing.verify_signature(MANIFEST, SIGNED, {"0" * 64: "bert"}))
        == f"signed by somebody unknown (key {ANNA})"
    )
    assert str(signing.verify_signature(MANIFEST, None, {ANNA: "anna"})) == "not signed"


# What is not as it was signed.

BERT = signing.key_id(THEIRS.public_key())
RSA = rsa.generate_private_key(65537, 2048)


def changed(field, value):
    return enveloped({**statement(), field: value})


def predicate(**changes):
    return changed("predicate", {**statement()["predicate"], **changes})


def signatures(*values):
    return canonical({**outer(), "signatures": list(values)}).encode()


def one(**changes):
    return {**outer()["signatures"][0], **changes}


BROKEN = {
    "no JSON": (b"\xff", "cannot be read"),
    "empty": (b"", "cannot be read"),
    "deep": (b"[" * 60000, "cannot be read"),
    "a key twice": (SIGNED[:-1] + b',"payload":""}', "same key twice"),
    "not canonical": (json.dumps(outer(), indent=1).encode(), "not canonical"),
    "large": (SIGNED + b" " * signing.LARGEST, "at most 65536 are read"),
    "a list": (b"[]", "must have exactly"),
    "one field more": (canonical({**outer(), "more": 1}).encode(), "must have exactly"),
    "one field less": (canonical({"payload": "x"}).encode(), "must have exactly"),
    "another payload type": (enveloped(statement(), payloadType="text/plain"), "only application/vnd.in-toto"),
    "payload no base64": (enveloped(statement(), payload="?"), "payload is not base64"),
    "payload no text": (enveloped(statement(), payload=[]), "payload is not base64"),
    "payload empty": (enveloped(statement(), payload=""), "payload is not base64"),
    "payload not ASCII": (enveloped(statement(), payload="ä"), "payload is not base64"),
    "no signatures": (signatures(), "0 signatures"),
    "two signatures": (signatures(one(), one(sig="AA==")), "2 signatures"),
    "signatures no list": (enveloped(statement(), signatures={}), "no list of signatures"),
    "signature no object": (signatures(1), "must have exactly"),
    "signature with more": (signatures(one(cert="")), "must have exactly"),
    "signature no base64": (signatures(one(sig="A")), "signature is not base64"),
    "signature short": (signatures(one(sig="AAAA")), "does not verify"),
    "signature of another": (signatures(one(sig=json.loads(enveloped(b"x"))["signatures"][0]["sig"])), "not verify"),
    "another key id": (signatures(one(keyid=BERT)), "names the key"),
    "a key id that is no text": (signatures(one(keyid={})), "names the key {}"),
    "signed by another": (enveloped(statement(), THEIRS), "names the key"),
    "signed by another in our name": (
        enveloped(
            statement(), signatures=[{**json.loads(enveloped(statement(), THEIRS))["signatures"][0], "keyid": ANNA}]
        ),
        "does not verify",
    ),
    "statement no JSON": (enveloped(b"x"), "statement cannot be read"),
    "statement not canonical": (enveloped(json.dumps(statement()).encode()), "statement is not canonical"),
    "statement with more": (changed("more", 1), "must have exactly"),
    "another statement": (changed("_type", "https://in-toto.io/Statement/v0.1"), "_type is"),
    "another predicate type": (changed("predicateType", "urn:else"), "predicateType is"),
    "no subject": (changed("subject", []), "subject is"),
    "another manifest": (
        changed("subject", [{"name": "manifest.json", "digest": {"sha256": "0" * 64}}]),
        "not of this bundle: subject is",
    ),
    "another name": (changed("subject", [{**statement()["subject"][0], "name": "x"}]), "subject is"),
    "more digests": (
        changed("subject", [{"name": "manifest.json", "digest": {"sha256": digest(MANIFEST), "md5": "0"}}]),
        "subject is",
    ),
    "two subjects": (changed("subject", statement()["subject"] * 2), "subject is"),
    "no predicate": (changed("predicate", None), "must have exactly"),
    "predicate with more": (predicate(more=1), "must have exactly"),
    "a newer schema": (predicate(schema=2), "predicate is"),
    "a schema that is true": (predicate(schema=True), "predicate is"),
    "another number of records": (predicate(records=2), "predicate is"),
    "no key": (predicate(publicKey=None), "which is no text"),
    "a key that is none": (predicate(publicKey="x"), "no public key"),
    "a private key": (predicate(publicKey=pem(OURS).decode()), "no public key"),
    "another key": (predicate(publicKey=pem(THEIRS.public_key()).decode()), "names the key"),
    "an RSA key": (predicate(publicKey=pem(RSA.public_key()).decode()), "another kind (RSA)"),
    "a key with words": (predicate(publicKey="words\n" + pem(OURS.public_key()).decode()), "predicate is"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_signing_would_not_have_made_is_refused_with_a_sentence(what):
    envelope, says = BROKEN[what]
    with pytest.raises(ArchiveError) as refused:
        signing.verify_envelope(MANIFEST, envelope)
    assert says in str(refused.value)
    assert len(str(refused.value)) < 600


def test_a_signature_of_another_manifest_is_refused():
    other = canonical({"schema": 1, "members": {}}).encode()
    with pytest.raises(ArchiveError, match="not of this bundle"):
        signing.verify_envelope(other, SIGNED)
    with pytest.raises(ArchiveError, match="lists no members"):
        signing.sign_manifest(b"[]", OURS)


@st.composite
def damaged(draw):
    """The envelope with a piece of it taken out or replaced."""
    start = draw(st.integers(0, len(SIGNED)))
    end = draw(st.integers(start, min(len(SIGNED), start + draw(st.sampled_from([0, 1, 4, 2000])))))
    return SIGNED[:start] + draw(st.binary(max_size=8)) + SIGNED[end:]


@settings(max_examples=600, deadline=None)
@given(damaged())
def test_no_damaged_envelope_is_signed_by_anybody(envelope):
    if envelope != SIGNED:
        with pytest.raises(ArchiveError):
            signing.verify_signature(MANIFEST, envelope, {ANNA: "anna"})


def test_no_bit_of_an_envelope_can_be_flipped():
    """All of them: base64 has bits that most readers overlook."""
    for bit in range(len(SIGNED) * 8):
        envelope = bytearray(SIGNED)
        envelope[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArchiveError):
            signing.verify_signature(MANIFEST, bytes(envelope), {ANNA: "anna"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Every place within a value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield from places(part, (*path, key))


def put(value, path, what):
    if not path:
        return what
    copied = value.copy()
    copied[path[0]] = put(value[path[0]], path[1:], what)
    return copied


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(places(statement()))), JSON, st.sampled_from([OURS, THEIRS]))
def test_no_statement_but_our_own_is_taken_even_if_its_signature_is_right(path, what, key):
    made = put(statement(), path, what)
    if canonical(made) != canonical(statement()):
        with pytest.raises(ArchiveError):
            signing.verify_envelope(MANIFEST, enveloped(made, key))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(places(outer()))), JSON)
def test_nothing_in_an_envelope_can_be_something_else(path, what):
    made = put(outer(), path, what)
    if canonical(made) != canonical(outer()):
        with pytest.raises(ArchiveError):
            signing.verify_envelope(MANIFEST, canonical(made).encode())


# Keys.


def test_a_new_pair_of_keys_is_for_its_owner_and_never_written_over(tmp_path):
    private, public, key = signing.make_key(tmp_path / "lab.2026")
    assert (private.name, public.name) == ("lab.2026.key", "lab.2026.pub")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert signing.trusted_keys([public]) == {key: "lab.2026"}
    assert signing.key_id(signing.read_private_key(private).public_key()) == key
    before = private.read_bytes()
    for gone in (None, public):
        if gone:
            gone.unlink()
        with pytest.raises(ArchiveError, match="is there already"):
            signing.make_key(tmp_path / "lab.2026")
    assert private.read_bytes() == before
    with pytest.raises(ArchiveError, match="cannot be written"):
        signing.make_key(tmp_path / "none" / "lab")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_keys_of_openssl_do(tmp_path):
    for command in ("genpkey -algorithm ed25519 -out lab.key", "pkey -in lab.key -pubout -out lab.pub"):
        subprocess.run(["openssl", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    key = signing.read_private_key(tmp_path / "lab.key")
    names = signing.trusted_keys([tmp_path])
    said = str(signing.verify_signature(MANIFEST, signing.sign_manifest(MANIFEST, key), names))
    assert said == f"signed by lab (key {signing.key_id(key.public_key())})"


def nothing_typed(prompt):
    raise EOFError


def test_an_encrypted_key_asks_for_its_passphrase(tmp_path):
    path = tmp_path / "lab.key"
    path.write_bytes(OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    assert signing.read_private_key(path, lambda _: "secret").public_key() == OURS.public_key()
    for wrong in ("wrong", ""):
        with pytest.raises(ArchiveError, match="cannot be read with this passphrase"):
            signing.read_private_key(path, lambda _, wrong=wrong: wrong)
    with pytest.raises(ArchiveError, match="no passphrase was given"):
        signing.read_private_key(path, nothing_typed)
    with pytest.raises(ArchiveError, match="is encrypted: sign at a terminal"):
        signing.read_private_key(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no private key"),
        (pem(OURS.public_key()), "no private key"),
        (pem(RSA), "another kind (RSA)"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "another kind (EC"),
        (pem(x25519.X25519PrivateKey.generate()), "another kind (X25519)"),
        (b"x" * 70_000, "more than 65536 bytes"),
    ],
)
def test_what_is_no_private_key_is_a_sentence(tmp_path, content, says):
    (tmp_path / "lab.key").write_bytes(content)
    with pytest.raises(ArchiveError) as refused:
        signing.read_private_key(tmp_path / "lab.key")
    assert says in str(refused.value)


def test_trusted_keys_come_out_of_files_and_folders(tmp_path):
    for name, key in (("anna", OURS), ("bert", THEIRS)):
        (tmp_path / f"{name}.pub").write_bytes(pem(key.public_key()))
    (tmp_path / "notes.txt").write_text("no key")
    assert signing.trusted_keys([tmp_path, tmp_path / "anna.pub"]) == {ANNA: "anna", BERT: "bert"}
    assert signing.trusted_keys([]) == {}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("rsa.pub", pem(RSA.public_key()), "rsa.pub is a key of another kind (RSA); only Ed25519"),
        ("anna.pub", pem(OURS), "no public key"),
        ("more.pub", pem(OURS.public_key()), "holds the same key as anna"),
        ("folder", None, "holds 0 files"),
        ("none.pub", None, "cannot be read"),
    ],
)
def test_what_cannot_be_trusted_is_a_sentence(tmp_path, name, content, says):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys/anna.pub").write_bytes(pem(OURS.public_key()))
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name == "folder":
        path.mkdir()
    with pytest.raises(ArchiveError) as refused:
        signing.trusted_keys([tmp_path / "keys", path])
    assert says in str(refused.value)


@pytest.mark.parametrize("name", ["anna", "Anna", "\uff41nn\uff41"])
def test_two_keys_of_one_name_are_refused(tmp_path, name):
    """Two folders of keys, one of which somebody else fills: their anna would be ours."""
    for folder, called, key in (("ours", "anna", OURS), ("theirs", name, THEIRS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{called}.pub").write_bytes(pem(key.public_key()))
    with pytest.raises(ArchiveError) as refused:
        signing.trusted_keys([tmp_path / "ours", tmp_path / "theirs"])
    for said in (f"{name}.pub is key {BERT}", f"anna is the name of key {ANNA} already", "rename one of the files"):
        assert said in str(refused.value)


SMALL_ORDER = [
    *("00" * 32, "00" * 31 + "80", "01" + "00" * 31, "01" + "00" * 30 + "80"),
    *("ec" + "ff" * 30 + "7f", "ec" + "ff" * 31, "ed" + "ff" * 30 + "7f", "ed" + "ff" * 31, "ee" + "ff" * 30 + "7f"),
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
]
"""Every point whose order divides eight, in each way to write it that a library takes."""
NEUTRAL = bytes.fromhex("01" + "00" * 31)


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_key_for_which_anybody_can_sign_is_nobodys(tmp_path, point):
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(point))
    (tmp_path / "anna.pub").write_bytes(pem(key))
    with pytest.raises(ArchiveError, match=r"anna\.pub is a point of small order: anybody can sign for it"):
        signing.trusted_keys([tmp_path])
    said = signing._statement(MANIFEST, key)
    signatures = [{"keyid": signing.key_id(key), "sig": signing._encode_base64(NEUTRAL + bytes(32))}]
    made = {
        "payload": signing._encode_base64(said),
        "payloadType": signing.PAYLOAD_TYPE,
        "signatures": signatures,
    }
    with pytest.raises(ArchiveError, match="its public key is a point of small order"):
        signing.verify_signature(MANIFEST, canonical(made).encode(), {})


def test_the_neutral_point_does_verify_what_nobody_has_signed():
    """Why it is refused; no private key makes this signature."""
    Ed25519PublicKey.from_public_bytes(NEUTRAL).verify(NEUTRAL + bytes(32), b"anything")


def test_keys_that_are_made_are_of_no_small_order():
    assert not any(signing.has_small_order(Ed25519PrivateKey.generate().public_key()) for _ in range(50))


def test_a_byte_order_mark_before_a_key_is_overlooked(tmp_path):
    (tmp_path / "anna.pub").write_bytes(b"\xef\xbb\xbf" + pem(OURS.public_key()))
    (tmp_path / "anna.key").write_bytes(b"\xef\xbb\xbf" + pem(OURS))
    assert signing.trusted_keys([tmp_path]) == {ANNA: "anna"}
    assert signing.read_private_key(tmp_path / "anna.key").public_key() == OURS.public_key()


# The command line.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with an archive, keys of anna and bert, and bundles: one signed by anna, one by nobody."""
    monkeypatch.chdir(tmp_path)
    with Archive.open("sqlite:///outputs/archive.db", Path("outputs/blobs")) as archive:
        name = archive.add_text(samples.record(seed=1).text(), samples.contents(1).get)
    for who in ("anna", "bert"):
        assert main(["key", who]) == 0
    assert main(["export", "--sign", "anna.key", name, "signed.zip"]) == 0
    assert main(["export", name, "plain.zip"]) == 0
    return tmp_path


def told(capsys, *arguments):
    """Exit status, stdout and stderr of a command."""
    capsys.readouterr()
    status = main(list(arguments))
    return status, *capsys.readouterr()


def members(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def packed(path, contents):
    """A bundle of these members just as they are, sealed: whoever changes one can seal it again."""
    path.unlink(missing_ok=True)
    writer._write_zip(path, contents)
    with path.open("r+b") as file:
        writer.seal(file)


def resigned(source, target, envelope):
    packed(Path(target), {**members(source), "signature.json": envelope})


def test_check_says_who_signed(folder, capsys):
    key = next(iter(signing.trusted_keys([folder / "anna.pub"])))
    unknown = f"signed by somebody unknown (key {key})\nsigned.zip: no problems\n"
    by_anna = f"signed by anna (key {key})\nsigned.zip: no problems\n"
    assert told(capsys, "check", "signed.zip") == (0, unknown, "")
    assert told(capsys, "check", "signed.zip", "--trust", "bert.pub") == (0, unknown, "")
    for keys in (["anna.pub"], ["bert.pub", "anna.pub"], ["."]):
        shown = told(capsys, "check", "signed.zip", "--trust", *keys)
        assert shown == (0, by_anna, "")
    assert told(capsys, "check", "plain.zip", "--trust", ".") == (0, "not signed\nplain.zip: no problems\n", "")


def test_trust_may_be_given_twice(folder, capsys):
    """The keys of the first were forgotten."""
    key = next(iter(signing.trusted_keys([folder / "anna.pub"])))
    by_anna = f"signed by anna (key {key})\nsigned.zip: no problems\n"
    assert told(capsys, "check", "signed.zip", "--trust", "anna.pub", "--trust", "bert.pub") == (0, by_anna, "")
    (folder / "more").mkdir()
    (folder / "more" / "anna.pub").write_bytes((folder / "bert.pub").read_bytes())
    status, _, said = told(capsys, "check", "signed.zip", "--trust", "anna.pub", "--trust", "more/anna.pub")
    assert status == 2
    assert "a name stands for one key" in said


def test_check_says_so_to_programs(folder, capsys):
    def asked(*arguments):
        return json.loads(told(capsys, "check", "--json", *arguments)[1])["signature"]

    key = next(iter(signing.trusted_keys([folder / "anna.pub"])))
    assert asked("signed.zip", "--trust", ".") == {"key": key, "name": "anna"}
    assert asked("signed.zip") == {"key": key, "name": None}
    assert asked("plain.zip") == {"key": None, "name": None}
    assert asked() is None


def test_a_name_cannot_command_the_terminal(folder, capsys):
    (folder / "anna.pub").rename(folder / "\x1b[2J\u202eanna.pub")
    assert "signed by \\x1b[2J\\u202eanna (key " in told(capsys, "check", "signed.zip", "--trust", ".")[1]


def test_a_broken_signature_is_a_problem_and_nothing_is_added(folder, capsys):
    envelope = members("signed.zip")["signature.json"]
    resigned("signed.zip", "broken.zip", envelope.replace(b"keyid", b"keyed"))
    resigned("plain.zip", "other.zip", SIGNED)
    for name, says in (("broken.zip", "the signature is {"), ("other.zip", "it is not of this bundle: ")):
        status, shown, said = told(capsys, "check", name, "--trust", ".")
        assert (status, said) == (1, f"{name}: 1 problems\n")
        assert shown.startswith(f"signature.json: the signature is broken: {says}")
        status, shown, said = told(capsys, "add", name, "--archive", "sqlite:///new/archive.db")
        assert (status, shown) == (2, "")
        assert "is refused and nothing was added: signature.json: the signature is broken" in said
    assert told(capsys, "list", "--json", "--archive", "sqlite:///new/archive.db")[1] == "[]\n"
    assert told(capsys, "add", "signed.zip", "--archive", "sqlite:///new/archive.db")[0] == 0


def test_a_signature_that_cannot_be_unpacked_is_refused(folder, capsys):
    content = bytearray((folder / "signed.zip").read_bytes())
    with zipfile.ZipFile("signed.zip") as file:
        info = file.getinfo("signature.json")
    content[info.header_offset + 30 + len(info.filename) + 40] ^= 0xFF
    (folder / "torn.zip").write_bytes(content)
    with (folder / "torn.zip").open("r+b") as file:
        writer.seal(file)
    assert told(capsys, "check", "torn.zip")[0] == 1
    status, shown, said = told(capsys, "add", "torn.zip", "--archive", "sqlite:///new/archive.db")
    assert (status, shown, "nothing was added" in said) == (2, "", True)


def test_of_what_does_not_match_its_manifest_nobody_is_said_to_have_signed_it(folder, capsys):
    changed = {name: b"x" if name.startswith("blobs/") else one for name, one in members("signed.zip").items()}
    packed(folder / "changed.zip", changed)
    status, shown, said = told(capsys, "check", "changed.zip", "--trust", ".")
    assert (status, "signed" in shown + said) == (1, False)


def test_whoever_signs_what_another_has_made_is_named_as_its_signer(folder, capsys):
    """A signature says who vouches for a bundle, not who made it; and it can be taken off."""
    resigned("signed.zip", "theirs.zip", signing.sign_manifest(members("signed.zip")["manifest.json"], THEIRS))
    assert f"unknown (key {BERT})" in told(capsys, "check", "theirs.zip", "--trust", ".")[1]
    rest = {name: one for name, one in members("signed.zip").items() if name != "signature.json"}
    packed(folder / "taken.zip", rest)
    assert told(capsys, "check", "taken.zip", "--trust", ".")[1].startswith("not signed\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "--trust", "anna.pub"], "--trust asks who signed a bundle"),
        (["check", "signed.zip", "--trust", "anna.key"], "anna.key is no public key"),
        (["check", "--trust", "anna.pub", "signed.zip"], "name its FILE.zip before it"),
        (["key", "anna"], "is there already"),
        (["key", ""], "is no name for a key"),
        (["add", "none.zip"], "none.zip cannot be read: No such file"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(folder, capsys, arguments, says):
    status, shown, said = told(capsys, *arguments)
    assert (status, shown) == (2, "")
    assert says in said


ENDLESS = {"pipe": "a pipe", "device": "a device", "folder": "a folder", "socket": "a socket"}


def odd(path, kind):
    """Something at `path` that is no regular file, and that reading would wait for or never end with."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "odd.zip"],
        ["check", "signed.zip", "--trust", "odd.zip"],
        ["add", "odd.zip", "--archive", "sqlite:///new/archive.db"],
        ["diff", "odd.zip", "signed.zip"],
        ["export", "--sign", "odd.zip", "RECORD", "new.zip"],
        ["add", "left", "--archive", "sqlite:///new/archive.db"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_is_no_regular_file_is_refused_at_once(folder, capsys, monkeypatch, kind, arguments):
    if kind == "folder" and "--trust" in arguments:
        return  # A folder of keys is what it may be.
    name = json.loads(told(capsys, "list", "--json")[1])[0]["digest"]
    (folder / "left").mkdir()
    odd(folder / "odd.zip", kind)
    odd(folder / "left" / "record.json", kind)
    signal.alarm(20)
    try:
        status, shown, said = told(capsys, *[name if one == "RECORD" else one for one in arguments])
    finally:
        signal.alarm(0)
    assert (status, shown.strip() in ("", "[]")) == (2, True)
    assert f"cannot be read: it is {ENDLESS[kind]}; give a regular file" in said
    assert not (folder / "new.zip").exists()


def test_a_record_that_an_editor_has_marked_is_the_record(folder, capsys):
    name = json.loads(told(capsys, "list", "--json")[1])[0]["digest"]
    text = told(capsys, "show", "--json", name)[1]
    (folder / "left" / "blobs").mkdir(parents=True)
    (folder / "left" / "record.json").write_bytes(b"\xef\xbb\xbf" + text.encode())
    for digest_, content in samples.contents(1).items():
        (folder / "left" / "blobs" / digest_).write_bytes(content)
    status, shown, _ = told(capsys, "add", "left", "--archive", "sqlite:///new/archive.db")
    assert (status, shown) == (0, f"{name}\n")


def test_signing_with_what_is_no_key_writes_nothing(folder, capsys):
    name = json.loads(told(capsys, "list", "--json")[1])[0]["digest"]
    for key in ("anna.pub", "none.key"):
        status, shown, said = told(capsys, "export", "--sign", key, name, "new.zip")
        assert (status, shown, said[:7]) == (2, "", "store: ")
    assert not (folder / "new.zip").exists()


def test_the_same_records_and_key_make_the_same_file(folder, capsys):
    name = json.loads(told(capsys, "list", "--json")[1])[0]["digest"]
    assert told(capsys, "export", "--sign", "anna.key", name, "again.zip") == (0, "again.zip\n", "")
    assert (folder / "again.zip").read_bytes() == (folder / "signed.zip").read_bytes()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@example(data=None)
def test_no_damage_in_a_bundle_leaves_it_signed(folder, capsys, data):
    envelope = members("signed.zip")["signature.json"]
    place = data.draw(st.integers(0, len(envelope) - 1)) if data else 0
    byte = data.draw(st.integers(0, 255).filter(lambda one: one != envelope[place])) if data else 0
    made = envelope[:place] + bytes([byte]) + envelope[place + 1 :]
    resigned("signed.zip", "damaged.zip", made)
    status, shown, said = told(capsys, "check", "damaged.zip", "--trust", "anna.pub")
    assert (status, "signed by" in shown + said) == (1, False)


def test_as_a_process(folder):
    def run(*arguments):
        command = [sys.executable, "-W", "error", "-m", "store", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    made = json.loads(run("key", "--json", "lab").stdout)
    assert made == {"private": "lab.key", "public": "lab.pub", "key": made["key"]}
    assert "python -m store key lab" in run("key", "--help").stdout
    name = json.loads(run("list", "--json").stdout)[0]["digest"]
    assert run("export", "--sign", "lab.key", name, "lab.zip").stdout == "lab.zip\n"
    assert (
        run("check", "lab.zip", "--trust", "lab.pub").stdout
        == f"signed by lab (key {made['key']})\nlab.zip: no problems\n"
    )
    assert f"unknown (key {made['key']})" in run("check", "lab.zip").stdout
    (folder / "lab.key").write_bytes(
        OURS.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    )
    refused = run("export", "--sign", "lab.key", name, "other.zip")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "lab.key is encrypted" in refused.stderr
