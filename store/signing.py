"""Sign and verify bundles: an Ed25519 signature of the manifest, which names every member by digest.

    envelope     {"payload": base64, "payloadType": ..., "signatures": [{"keyid": ..., "sig": base64}]}
    payload      an in-toto statement: the manifest's SHA-256, the number of records, the signer's public key

The envelope is DSSE version 1, so other tools can verify it, too. It includes the public key, so that a valid signature
by an unknown signer can be distinguished from a bundle that was changed afterwards. Only a key that the reader already
has identifies the signer.

An envelope comes from a stranger: its size is bounded, and only the exact text that signing produces is accepted.
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
"""Most bytes of an envelope or a key file; ours take about a thousand."""

MOST_KEYS = 10_000
"""Most key files in one folder."""

_FIELD = 2**255 - 19
_Y = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = frozenset((0, 1, _FIELD - 1, _Y, _FIELD - _Y))
"""The y coordinates of all points of edwards25519 whose order divides eight."""

_SHOWN = 150
"""Most characters that messages quote from an envelope."""


@dataclass(frozen=True)
class Signature:
    """The verified signature of a bundle."""

    key: str | None
    """Id of the signing key: SHA-256 of its SubjectPublicKeyInfo (DER). None if the bundle is not signed."""
    name: str | None
    """Name of the key. None if it is not a trusted one."""

    def __str__(self) -> str:
        if self.key is None:
            return "not signed"
        return f"signed by {self.name or 'somebody unknown'} (key {self.key})"


def verify_signature(manifest: bytes, envelope: bytes | None, names: Mapping[str, str]) -> Signature:
    """Return who signed a manifest. `names` are those of trusted keys, by id.

    Raises ArchiveError if there is an envelope that is not exactly what signing produces.
    """
    if envelope is None:
        return Signature(None, None)
    key = verify_envelope(manifest, envelope)
    return Signature(key, names.get(key))


def signature_problem(error: ArchiveError) -> Problem:
    """Return an error of `verify_signature` as a problem of the bundle."""
    return Problem(SIGNATURE, f"the signature is broken: {error}")


# Signing.


def sign_manifest(manifest: bytes, key: Ed25519PrivateKey) -> bytes:
    """Return the envelope of a manifest. The same manifest and key give the same bytes."""
    payload = _statement(manifest, key.public_key())
    signature = {"keyid": key_id(key.public_key()), "sig": _encode_base64(key.sign(encoding(payload)))}
    envelope = {"payload": _encode_base64(payload), "payloadType": PAYLOAD_TYPE, "signatures": [signature]}
    return canonical(envelope).encode("utf-8")


def encoding(payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding, the bytes that are signed."""
    kind = PAYLOAD_TYPE.encode("ascii")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of the SubjectPublicKeyInfo in DER, in hexadecimal."""
    return digest(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))


def _statement(manifest: bytes, key: Ed25519PublicKey) -> bytes:
    predicate = {"schema": SCHEMA, "records": _record_count(manifest), "publicKey": _pem(key).decode("ascii")}
    subject = [{"name": MANIFEST, "digest": {"sha256": digest(manifest)}}]
    statement = {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate}
    return canonical(statement).encode("utf-8")


def _record_count(manifest: bytes) -> int:
    try:
        members = parse(manifest.decode("utf-8"))["members"]
        return sum(name.startswith("records/") for name in members)
    except (UnicodeDecodeError, RecordError, KeyError, TypeError, AttributeError):
        raise ArchiveError(f"{MANIFEST} lists no members, so there is nothing to sign") from None


def _encode_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# Verifying.


def verify_envelope(manifest: bytes, envelope: bytes) -> str:
    """Return the id of the key that signed this manifest.

    Raises ArchiveError if the envelope is invalid in any way, or belongs to another manifest.
    """
    outer = _parse_object(envelope, "the envelope", ("payload", "payloadType", "signatures"))
    if outer["payloadType"] != PAYLOAD_TYPE:
        raise ArchiveError(f"its payload is {_excerpt(outer['payloadType'])}; only {PAYLOAD_TYPE} is read")
    payload = _decode_base64(outer["payload"], "the payload")
    named, signature = _only_signature(outer["signatures"])
    said = _parse_object(payload, "the statement", ("_type", "predicate", "predicateType", "subject"))
    key = _stated_key(said["predicate"])
    if named != key_id(key):
        raise ArchiveError(f"it names the key {_excerpt(named)}, and the statement holds {key_id(key)}")
    try:
        key.verify(signature, encoding(payload))
    except InvalidSignature:
        raise ArchiveError(f"the signature does not verify with the key {key_id(key)}") from None
    _compare_statements(said, parse(_statement(manifest, key).decode("utf-8")))
    return key_id(key)


def _compare_statements(said: dict[str, Any], meant: dict[str, Any]) -> None:
    for name, value in meant.items():
        # Compare as text, since True == 1.
        if canonical(said[name]) != canonical(value):
            raise ArchiveError(
                f"it is not of this bundle: {name} is {_excerpt(said[name])}, and for this {MANIFEST} it is"
                f" {_excerpt(value)}"
            )


def _parse_object(content: bytes, what: str, names: Sequence[str]) -> dict[str, Any]:
    """Parse a JSON object. Raises ArchiveError unless it is canonical and has exactly these fields."""
    if len(content) > LARGEST:
        raise ArchiveError(f"{what} has {len(content)} bytes; at most {LARGEST} are read")
    try:
        data = parse(content.decode("utf-8"))
        if canonical(data).encode("utf-8") != content:
            raise ArchiveError(f"{what} is not canonical JSON")
    except (UnicodeDecodeError, RecordError) as error:
        raise ArchiveError(f"{what} cannot be read: {error}") from None
    return _require_fields(data, what, names)


def _require_fields(data: Any, what: str, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(names):
        raise ArchiveError(f"{what} is {_excerpt(data)}; it must have exactly {', '.join(names)}")
    return data


def _decode_base64(text: Any, what: str) -> bytes:
    """Decode base64. Raises ArchiveError unless the text is the canonical encoding of its bytes."""
    try:
        content = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        content = b""
    if not content or _encode_base64(content) != text:
        raise ArchiveError(f"{what} is not base64: {_excerpt(text)}")
    return content


def _only_signature(signatures: Any) -> tuple[str, bytes]:
    if not isinstance(signatures, list) or len(signatures) != 1:
        many = len(signatures) if isinstance(signatures, list) else "no list of"
        raise ArchiveError(f"it has {many} signatures; a bundle has one, by the key in its statement")
    fields = _require_fields(signatures[0], "the signature", ("keyid", "sig"))
    return fields["keyid"], _decode_base64(fields["sig"], "the signature")


def _stated_key(predicate: Any) -> Ed25519PublicKey:
    fields = _require_fields(predicate, "the predicate", ("publicKey", "records", "schema"))
    if not isinstance(fields["publicKey"], str):
        raise ArchiveError(f"its public key is {_excerpt(fields['publicKey'])}, which is no text")
    return _parse_public_key(fields["publicKey"].encode("utf-8"), "its public key")


def _excerpt(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# Keys.


def trusted_keys(paths: Sequence[Path]) -> dict[str, str]:
    """Return id -> name of the public keys in these files and folders. The name is the file's name without its suffix.

    Raises ArchiveError if there is no key, a file is not an Ed25519 key, a key has two names, or two keys have names
    that a reader may confuse.
    """
    names: dict[str, str] = {}
    keys: dict[str, str] = {}
    for path in _key_files(paths):
        key = key_id(_parse_public_key(_read_key_file(path), str(path)))
        if names.setdefault(key, path.stem) != path.stem:
            raise ArchiveError(f"{path} holds the same key as {names[key]}; a key has one name: give one of them")
        other = keys.setdefault(_comparison_form(path.stem), key)
        if other != key:
            raise ArchiveError(
                f"{path} is key {key}, and {names[other]} is the name of key {other} already; a name stands for one "
                "key: rename one of the files, or give one of them"
            )
    return names


def _comparison_form(name: str) -> str:
    """Return a form of a name that is equal for names that a reader may confuse."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


def _key_files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.pub")) if path.is_dir() else [path]
        if not 0 < len(inside) <= MOST_KEYS:
            raise ArchiveError(f"{path} holds {len(inside)} files that end in .pub; from 1 to {MOST_KEYS} are read")
        found += inside
    return found


def read_private_key(path: Path, ask: Callable[[str], str] | None = None) -> Ed25519PrivateKey:
    """Return the private key of a PEM file. `ask` returns the passphrase if the file is encrypted.

    Raises ArchiveError if it cannot be read or is not an Ed25519 key.
    """
    content = _read_key_file(path)
    passphrase = _ask_passphrase(path, ask) if b"ENCRYPTED" in content else None
    try:
        key = serialization.load_pem_private_key(content, passphrase)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        wrong = "cannot be read with this passphrase" if passphrase is not None else "is no private key in PEM"
        raise ArchiveError(f"{path} {wrong}; `python -m store key NAME` makes a key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ArchiveError(
            f"{path} is {_key_kind(key)}; only Ed25519 signs: `python -m store key NAME` makes such a key"
        )
    return key


def _ask_passphrase(path: Path, ask: Callable[[str], str] | None) -> bytes:
    if ask is None:
        raise ArchiveError(f"{path} is encrypted: sign at a terminal, where its passphrase can be asked for")
    try:
        return ask(f"Passphrase of {path.name}: ").encode("utf-8", "surrogateescape")
    except EOFError:
        raise ArchiveError(f"{path} is encrypted, and no passphrase was given") from None


def _parse_public_key(content: bytes, what: str) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ArchiveError(f"{what} is no public key in PEM (SubjectPublicKeyInfo)") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ArchiveError(f"{what} is {_key_kind(key)}; only Ed25519 keys are read")
    if has_small_order(key):
        raise ArchiveError(f"{what} is a point of small order: anybody can sign for it, so it is nobody's key")
    return key


def has_small_order(key: Ed25519PublicKey) -> bool:
    """Return whether eight times the point is the neutral element.

    With such a key, signatures verify that no private key has made.
    """
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    # The most significant bit is the sign of x; y may be encoded in two ways.
    return int.from_bytes(raw, "little") % 2**255 % _FIELD in _SMALL_ORDER


def _key_kind(key: object) -> str:
    return f"a key of another kind ({type(key).__name__.removesuffix('PublicKey').removesuffix('PrivateKey')})"


def _read_key_file(path: Path) -> bytes:
    return read_regular(path, LARGEST, "so it is no key")


def make_key(path: Path) -> tuple[Path, Path, str]:
    """Write a new key pair to PATH.key, readable by its owner only, and PATH.pub. Returns both paths and the key's id.

    Raises ArchiveError if one of them exists or cannot be written.
    """
    if not path.name:
        raise ArchiveError(f"{path} is no name for a key; give one such as lab")
    private, public = (path.with_name(f"{path.name}.{ending}") for ending in ("key", "pub"))
    key = Ed25519PrivateKey.generate()
    if public.exists():
        raise ArchiveError(f"{public} is there already, and is left as it is; choose another name")
    _create_file(private, _private_pem(key), 0o600)
    _create_file(public, _pem(key.public_key()), 0o644)
    return private, public, key_id(key.public_key())


def _create_file(path: Path, content: bytes, mode: int) -> None:
    try:
        # Never overwrite a file: a lost key cannot be recreated.
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
