"""Remove the names of host, user and folders from records before they are sent."""

from __future__ import annotations

import contextlib
import getpass
import platform
import re
from dataclasses import dataclass, replace
from typing import Any, Iterator, Sequence

from ..core.canonical_json import canonical, digest, parse
from ..core.fingerprint import FOLDERS, PATHS, RELATIVE, normalize
from ..core.observation import Operator
from ..core.record import Record
from . import archive


def _local_names() -> list[str]:
    """Return the names of this host and this user, longest first, without names that many systems share."""
    found = {platform.node(), platform.node().partition(".")[0]}
    with contextlib.suppress(OSError, KeyError, ImportError):  # a system may have no user names
        found.add(getpass.getuser())
    return sorted((name for name in found if len(name) > 1 and name not in _NOBODY), key=len, reverse=True)


_NOBODY = ("localhost", "root", "user", "nobody", "admin", "runner", "ubuntu")


_WORD = re.compile(r"\w+")

_NAMES = (
    r"(?P<before>(?i:\b(?:user|login|owner|host|node|server|machine)(?:[ _-]?name)?['\"]?(?:\s*[:=]\s*|\s+)['\"]?))"
    r"{name}(?![\w.-])",
    r"(?P<before>)(?<![\w-]){name}(?=@\w)",
    r"(?P<before>\w@){name}(?![\w-])",
    r"(?P<before>//){name}(?=[:/]|$)",
)
"""Contexts in which a word is the name of a host or user, whatever else it may mean."""


@dataclass(frozen=True)
class NameHider:
    """The names to hide."""

    names: Sequence[str]
    """Hidden wherever they occur."""
    ordinary: Sequence[str]
    """Ordinary words, hidden only where they must be a name: a host may be called `torch`."""

    @classmethod
    def for_this_host(cls, home: archive.Content, records: Sequence[Record], fetch: Any) -> NameHider:
        """Build a hider for this host and user. Names in the sources, torch or other evidence are ordinary words."""
        facts = [parse((fetch(one.observation.machine) or b"{}").decode("utf-8")) for one in records if one.observation]
        # On the same host, its evidence may contain the names.
        others = [] if any(one.get("host") == home.machine["host"] for one in facts) else home.records
        sources = {one.digest for record in records if record.observation for one in record.observation.sources}
        texts = [
            *FOLDERS,
            canonical(home.machine),
            *(canonical([spec.question.scenario, spec.question.case, spec.question.parameters]) for spec in home.specs),
            *(canonical({**record.evidence(), "tensors": None, "operators": None}) for record in others),
            *{one.name for record in home.records for one in _operators(record)},
            *(name for record in records for name in record.outcome.bases),
            *((fetch(name) or b"").decode("utf-8", "replace") for name in sources),
        ]
        words = {word for text in texts for word in _WORD.findall(_hide_paths(text))}
        known = {word.lower() for word in words}
        ordinary = [name for name in _local_names() if name.lower() in known]
        return cls([name for name in _local_names() if name not in ordinary], ordinary)

    def clean_value(self, value: Any) -> Any:
        """Return a JSON value with these names and all absolute paths removed from its texts."""
        if isinstance(value, dict):
            return {key: self.clean_value(inside) for key, inside in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean_value(inside) for inside in value]
        if not isinstance(value, str):
            return value
        value = _hide_paths(value)
        for name in self.names:
            value = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "NAME", value)
        return self._hide_ordinary_names(value)

    def _hide_ordinary_names(self, text: str) -> str:
        """Hide ordinary words, except where that would change the normalized text that is compared."""
        for name in self.ordinary:
            made = text
            for where in _NAMES:
                made = re.sub(where.replace("{name}", re.escape(name)), r"\g<before>NAME", made)
            text = made if normalize(made) == normalize(text) else text
        return text

    def remaining_names(self, texts: Sequence[str]) -> list[str]:
        """Return the names that still occur in these texts."""
        return [
            name
            for name in (*self.names, *self.ordinary)
            if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for text in texts)
        ]


def _operators(record: Record) -> Iterator[Operator]:
    phases = (record.observation.operators if record.observation else None) or {}
    for listed in phases.values():
        yield from listed


def _hide_paths(text: str) -> str:
    for path in PATHS:
        if path != PATHS[RELATIVE]:  # matches files of this project and of torch
            text = re.sub(path, r"\g<quote>PATH\g<quote>" if "quote" in path else "PATH", text)
    return text


def anonymize_record(record: Record, fetch: Any, added: dict[str, bytes], hidden: NameHider) -> Record:
    """Return the record without host, user and paths. Compared values stay: a fingerprint has no paths either."""
    clean = hidden.clean_value
    ended = record.outcome
    outcome = replace(ended, message=clean(ended.message), traceback=clean(ended.traceback), detail=clean(ended.detail))
    seen = record.observation
    if seen is not None:
        facts = clean({**parse((fetch(seen.machine) or b"{}").decode("utf-8")), "host": "anonymous"})
        document = canonical(facts).encode("utf-8")
        added[digest(document)] = document
        seen = replace(
            seen,
            outcome=outcome,
            observed=tuple(replace(one, value=clean(one.value)) for one in seen.observed),
            state=tuple(replace(one, before=clean(one.before), after=clean(one.after)) for one in seen.state),
            machine=digest(document),
        )
    return replace(record, outcome=outcome, observation=seen)
