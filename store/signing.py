"""Who vouches for a bundle: an Ed25519 signature of its manifest, which names all that is in it by digest.

    envelope     {"payload": base64, "payloadType": ..., "signatures": [{"keyid": ..., "sig": base64}]}
    payload      an in-toto statement: the manifest's SHA-256, the number of records, the signer's public key

The envelope is DSSE version 1, so other tools verify it, too. The public key travels along: what somebody
unknown has signed can be told from what was changed afterwards. Who the signer is, only a key that the reader
already has can say.

An envelope comes from somebody else: it is bounded, and only the one text that signing would have made is taken.
"""

from __future__ import annotations

import base64
import binascii
import os
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from experiments.bundle.layout import MANIFEST, SIGNATURE
from experiments.core.canonical_json import RecordError, canonical, digest, parse
from store.errors import ArchiveError
from store.integrity import Problem
from store.regular import read_regular

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:twofold:evidence-bundle:1"

SCHEMA = 1
"""Version of the predicate that this code writes, and the only one that it reads."""

LARGEST = 1 << 16
"""Bytes of an envelope, and of a file with a key; ours take about a thousand."""

MOST_KEYS = 10_000
"""Files of keys in one folder that are read."""

_FIELD = 2**255 - 19
_Y = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = frozenset((0, 1, _FIELD - 1, _Y, _FIELD - _Y))
"""The y of all points of edwards25519 whose order divides eight."""

_SHOWN = 150
"""Characters shown of what somebody else wrote."""


@dataclass(frozen=True)
class Signature:
    """What a bundle's signature says, once it has been verified."""

    key: str | None
    """Id of the key that signed: SHA-256 of its SubjectPublicKeyInfo (DER). None if nobody has signed."""
    name: str | None
    """Whose key that is. None if it is none of the trusted ones."""

    def __str__(self) -> str:
        if self.key is None:
            return "not signed"
        return f"signed by {self.name or 'somebody unknown'} (key {self.key})"


def judged(manifest: bytes, envelope: bytes | None, names: Mapping[str, str]) -> Signature:
    """Who has signed a manifest; `names` are those of trusted keys, by id.

    Raises ArchiveError if there is an envelope and anything about it is not as signing would have made it.
    """
    if envelope is None:
        return Signature(None, None)
    key = verified(manifest, envelope)
    return Signature(key, names.get(key))


def broken(error: ArchiveError) -> Problem:
    """What `judged` has raised, as a problem of the bundle."""
    return Problem(SIGNATURE, f"the signature is broken: {error}")


# Signing.


def sign(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """The envelope. The same manifest and key give the same bytes."""
    payload = _statement(manifest, key.public_key())
    signature = {"keyid": key_id(key.public_key()), "sig": _base64(key.sign(encoding(payload)))}
    envelope = {"payload": _base64(payload), "payloadType": PAYLOAD_TYPE, "signatures": [signature]}
    return canonical(envelope).encode("utf-8")


def encoding(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding: what is signed."""
    kind = PAYLOAD_TYPE.encode("ascii")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(key: Ed25519PublicKey) -> str:
    """SHA-256 of the SubjectPublicKeyInfo in DER, in hexadecimal."""
    return digest(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def _statement(manifest: bytes, key: Ed25519PublicKey) -> bytes:
    predicate = {"schema": SCHEMA, "records": _records(manifest), "publicKey": _pem(key).decode("ascii")}
    subject = [{"name": MANIFEST, "digest": {"sha256": digest(manifest)}}]
    statement = {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}
    return canonical(statement).encode("utf-8")


def _records(manifest: bytes) -> int:
    try:
        members = parse(manifest.decode("utf-8"))["members"]
        return sum(name.startswith("records/") for name in members)
    except (UnicodeDecodeError, RecordError, KeyError, TypeError, AttributeError):
        raise ArchiveError(f"{MANIFEST} lists no members, so there is nothing to sign") from None


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# Verifying.


def verified(manifest: bytes, envelope: bytes) -> str:
    """Id of the key that signed this manifest.

    Raises ArchiveError if the envelope is broken in any way, or is of another manifest.
    """
    outer = _object(envelope, "the envelope", ("payload", "payloadType", "signatures"))
    if outer["payloadType"] != PAYLOAD_TYPE:
        raise ArchiveError(f"its payload is {_shown(outer['payloadType'])}; only {PAYLOAD_TYPE} is read")
    payload = _bytes(outer["payload"], "the payload")
    named, signature = _only(outer["signatures"])
    said = _object(payload, "the statement", ("_type", "predicate", "predicateType", "subject"))
    key = _stated_key(said["predicate"])
    if named != key_id(key):
        raise ArchiveError(f"it names the key {_shown(named)}, and the statement holds {key_id(key)}")
    try:
        key.verify(signature, encoding(payload))
    except InvalidSignature:
        raise ArchiveError(f"the signature does not verify with the key {key_id(key)}") from None
    _compare(said, parse(_statement(manifest, key).decode("utf-8")))
    return key_id(key)


def _compare(said: dict[str, Any], meant: dict[str, Any]) -> None:
    for name, value in meant.items():
        # As text, since True and 1 are equal.
        if canonical(said[name]) != canonical(value):
            raise ArchiveError(
                f"it is not of this bundle: {name} is {_shown(said[name])}, and for this {MANIFEST} it is"
                f" {_shown(value)}"
            )


def _object(content: bytes, what: str, names: Sequence[str]) -> dict[str, Any]:
    """The JSON object, if it has exactly these fields and is written as we write it."""
    if len(content) > LARGEST:
        raise ArchiveError(f"{what} has {len(content)} bytes; at most {LARGEST} are read")
    try:
        data = parse(content.decode("utf-8"))
        if canonical(data).encode("utf-8") != content:
            raise ArchiveError(f"{what} is not canonical JSON")
    except (UnicodeDecodeError, RecordError) as error:
        raise ArchiveError(f"{what} cannot be read: {error}") from None
    return _fields(data, what, names)


def _fields(data: Any, what: str, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(names):
        raise ArchiveError(f"{what} is {_shown(data)}; it must have exactly {', '.join(names)}")
    return data


def _bytes(text: Any, what: str) -> bytes:
    """The bytes, if this is the one text that base64 has for them."""
    try:
        content = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        content = b""
    if not content or _base64(content) != text:
        raise ArchiveError(f"{what} is not base64: {_shown(text)}")
    return content


def _only(signatures: Any) -> tuple[str, bytes]:
    if not isinstance(signatures, list) or len(signatures) != 1:
        many = len(signatures) if isinstance(signatures, list) else "no list of"
        raise ArchiveError(f"it has {many} signatures; a bundle has one, by the key in its statement")
    fields = _fields(signatures[0], "the signature", ("keyid", "sig"))
    return fields["keyid"], _bytes(fields["sig"], "the signature")


def _stated_key(predicate: Any) -> Ed25519PublicKey:
    fields = _fields(predicate, "the predicate", ("publicKey", "records", "schema"))
    if not isinstance(fields["publicKey"], str):
        raise ArchiveError(f"its public key is {_shown(fields['publicKey'])}, which is no text")
    return _public(fields["publicKey"].encode("utf-8"), "its public key")


def _shown(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# Keys.


def trusted(paths: Sequence[Path]) -> dict[str, str]:
    """Names of public keys by id, out of files and folders of them. A file's name without its ending is the key's.

    Raises ArchiveError if there is none, one is no Ed25519 key, one has two names, or two have names that read alike.
    """
    names: dict[str, str] = {}
    keys: dict[str, str] = {}
    for path in _files(paths):
        key = key_id(_public(_read(path), str(path)))
        if names.setdefault(key, path.stem) != path.stem:
            raise ArchiveError(f"{path} holds the same key as {names[key]}; a key has one name: give one of them")
        other = keys.setdefault(_read_alike(path.stem), key)
        if other != key:
            raise ArchiveError(
                f"{path} is key {key}, and {names[other]} is the name of key {other} already; a name stands for one "
                "key: rename one of the files, or give one of them"
            )
    return names


def _read_alike(name: str) -> str:
    """The same for names that a reader may take for one another."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.pub")) if path.is_dir() else [path]
        if not 0 < len(inside) <= MOST_KEYS:
            raise ArchiveError(f"{path} holds {len(inside)} files that end in .pub; from 1 to {MOST_KEYS} are read")
        found += inside
    return found


def private_key(path: Path, ask: Callable[[str], str] | None = None) -> Ed25519PrivateKey:
    """The private key of a PEM file; `ask` is asked for the passphrase if it is encrypted.

    Raises ArchiveError if it cannot be read or is no Ed25519 key.
    """
    content = _read(path)
    passphrase = _asked(path, ask) if b"ENCRYPTED" in content else None
    try:
        key = serialization.load_pem_private_key(content, passphrase)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        wrong = "cannot be read with this passphrase" if passphrase is not None else "is no private key in PEM"
        raise ArchiveError(f"{path} {wrong}; `python -m store key NAME` makes a key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ArchiveError(f"{path} is {_kind(key)}; only Ed25519 signs: `python -m store key NAME` makes such a key")
    return key


def _asked(path: Path, ask: Callable[[str], str] | None) -> bytes:
    if ask is None:
        raise ArchiveError(f"{path} is encrypted: sign at a terminal, where its passphrase can be asked for")
    try:
        return ask(f"Passphrase of {path.name}: ").encode("utf-8", "surrogateescape")
    except EOFError:
        raise ArchiveError(f"{path} is encrypted, and no passphrase was given") from None


def _public(content: bytes, what: str) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ArchiveError(f"{what} is no public key in PEM (SubjectPublicKeyInfo)") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ArchiveError(f"{what} is {_kind(key)}; only Ed25519 keys are read")
    if has_small_order(key):
        raise ArchiveError(f"{what} is a point of small order: anybody can sign for it, so it is nobody's key")
    return key


def has_small_order(key: Ed25519PublicKey) -> bool:
    """Whether eight times the point is the neutral one. Signatures verify with such a key that no key has made."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    # The sign of x is the last bit; y may be written in two ways.
    return int.from_bytes(raw, "little") % 2**255 % _FIELD in _SMALL_ORDER


def _kind(key: object) -> str:
    return f"a key of another kind ({type(key).__name__.removesuffix('PublicKey').removesuffix('PrivateKey')})"


def _read(path: Path) -> bytes:
    return read_regular(path, LARGEST, "so it is no key")


def make_key(path: Path) -> tuple[Path, Path, str]:
    """Write a new key to PATH.key, for its owner only, and PATH.pub; gives both and the key's id.

    Raises ArchiveError if one of them is there or cannot be written.
    """
    if not path.name:
        raise ArchiveError(f"{path} is no name for a key; give one such as lab")
    private, public = (path.with_name(f"{path.name}.{ending}") for ending in ("key", "pub"))
    key = Ed25519PrivateKey.generate()
    if public.exists():
        raise ArchiveError(f"{public} is there already, and is left as it is; choose another name")
    _create(private, _private_pem(key), 0o600)
    _create(public, _pem(key.public_key()), 0o644)
    return private, public, key_id(key.public_key())


def _create(path: Path, content: bytes, mode: int) -> None:
    try:
        # Never over what is there: a key that is lost cannot be made again.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise ArchiveError(f"{path} is there already, and is left as it is; choose another name") from None
    except OSError as error:
        raise ArchiveError(f"{path} cannot be written: {error.strerror or error}") from None


def _pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
