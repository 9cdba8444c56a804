"""Passwords in addresses: the one place that knows where an address hides one, for all that is shown or stored.

Only the standard library is imported here.
"""

from __future__ import annotations

import re
from typing import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"

_BEFORE = "=,;&(<\\[{'\"`"
"""What may stand right before an address that has no scheme."""

_WORD = re.compile(r"\S+")

_USERS = re.compile(
    r"\b(?!sqlite\b|file\b)(?P<scheme>[a-z][\w+.-]{0,50}:/+)(?P<user>[^\s:/?#@]*)(?P<after>[:@])"
    rf"|(?:^|(?<=[{_BEFORE}]))(?!sqlite\b|file\b)(?://)?[^\s:/?#@{_BEFORE}]*:",
    re.IGNORECASE,
)
"""Whom a word with an `@` names before it, also where the scheme was forgotten. For each place it looks at no more than
what is bounded or ends the match, so that a text of any kind takes a time in proportion to its length.
"""

_WHOLE = re.compile(r"(?!sqlite\b|file\b)(?:[^:/]+:/+|(?![^:/]+:/)/*)[^\s:/?#@]*:(.*)@", re.DOTALL | re.IGNORECASE)
"""The same of a text that is one address and nothing else."""

_EQUALS = re.compile(r"\s?=\s?|%3D", re.IGNORECASE)
_NAME = re.compile(r"[\w.%+-]*")
"""A parameter of an address, or of what a driver calls a connection string; encoded if it is the value of another."""

_LONGEST_NAME = 100

_NAMED_SECRET = re.compile(
    r"pass(?:word|wd|phrase)|pwd|secret|token|api[_.-]?key|access[_.-]?key|credential|signature|authorization",
    re.IGNORECASE,
)

_VALUE = {"=": re.compile(r"'[^'&]*'|[^&\s]*"), "%3D": re.compile(r".*?(?=%3B|%26|[&;\s]|$)", re.IGNORECASE)}

_SHORT = 4
"""Characters of a password that is too short to be looked for outside of its address: it may be a part of any word."""


def masked(text: str, *known: str) -> str:
    """`text` with `***` for every password, token or key of an address in it.

    `known` are addresses that the text may be about: their passwords are found wherever they stand, also decoded or
    encoded, because a message may quote a part of an address.
    """
    for secret in sorted({one for address in known for one in _secrets(address)}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _without(text, ((start, end) for start, _, end in _users(text)))
    return _without(text, _values(text))


def _without(text: str, spans: Iterator[tuple[int, int]]) -> str:
    made, at = [], 0
    for start, end in spans:
        made += [text[at:start], HIDDEN]
        at = end
    return "".join([*made, text[at:]])


def _users(text: str) -> Iterator[tuple[int, int, int]]:
    """Where what is hidden before an `@` begins, where the password in it does, and where both end."""
    for word in _WORD.finditer(text):
        if "@" in word[0]:
            yield from ((word.start() + a, word.start() + b, word.start() + c) for a, b, c in _users_of_word(word[0]))


def _users_of_word(word: str) -> Iterator[tuple[int, int, int]]:
    """A password may hold `@`, `/`, `?` and `#` as they are, so it ends at the last `@`. The user of a database is
    shown; one of a web address may be a token itself.
    """
    last = word.rindex("@")
    for found in _USERS.finditer(word, 0, last + 1):
        web = (found["scheme"] or "").lower().startswith("http")
        if found["after"] != "@":
            yield found.end("scheme") if web else found.end(), found.end(), last
            return
        if web:
            yield found.end("scheme"), found.end() - 1, found.end() - 1


def _values(text: str) -> Iterator[tuple[int, int]]:
    """Where the value of each secret parameter begins and ends."""
    at, since = 0, 0
    for found in _EQUALS.finditer(text):
        name, since = _name_before(text, since, found.start()), found.end()
        if found.start() >= at and _NAMED_SECRET.search(unquote(name)):
            value = _VALUE[found[0].strip().upper()].match(text, found.end())
            at = value.end() if value else found.end()
            yield found.end(), at


def _name_before(text: str, since: int, end: int) -> str:
    """The parameter's name that ends there."""
    backwards = text[max(since, end - _LONGEST_NAME) : end][::-1]
    name = _NAME.match(backwards)
    return name[0][::-1] if name else ""


def _secrets(address: str) -> Iterator[str]:
    """The passwords of one address in every spelling in which a message may have them."""
    given = [address[start:end] for _, start, end in _users(address)]
    # An address is one word to the pattern above, and a password may have spaces.
    whole = _WHOLE.match(address)
    given += [whole[1]] if whole else []
    given += [address[start:end].strip("'") for start, end in _values(address)]
    plain = {form for one in given for form in (one, unquote(one), unquote_plus(one))}
    spelled = {form for one in plain for form in (one, quote(one, safe=""), quote_plus(one))}
    yield from (one for one in spelled if len(one) >= _SHORT)
