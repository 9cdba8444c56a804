"""Masking of passwords in addresses, for everything that is shown or stored.

Imports only the standard library.
"""

from __future__ import annotations

import re
from typing import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN = "***"

_BEFORE = "=,;&(<\\[{'\"`"
"""Characters that may precede an address without a scheme."""

_WORD = re.compile(r"\S+")

_USERS = re.compile(
    r"\b(?!sqlite\b|file\b)(?P<scheme>[a-z][\w+.-]{0,50}:/+)(?P<user>[^\s:/?#@]*)(?P<after>[:@])"
    rf"|(?:^|(?<=[{_BEFORE}]))(?!sqlite\b|file\b)(?://)?[^\s:/?#@{_BEFORE}]*:",
    re.IGNORECASE,
)
"""The user before the `@` of a word, also if the scheme is missing. All repetitions are bounded or end the match, so
the time is proportional to the length of any text.
"""

_WHOLE = re.compile(r"(?!sqlite\b|file\b)(?:[^:/]+:/+|(?![^:/]+:/)/*)[^\s:/?#@]*:(.*)@", re.DOTALL | re.IGNORECASE)
"""The same for a text that consists of one address."""

_EQUALS = re.compile(r"\s?=\s?|%3D", re.IGNORECASE)
_NAME = re.compile(r"[\w.%+-]*")
"""A parameter of an address or of a connection string. It is encoded if it is the value of another parameter."""

_LONGEST_NAME = 100

_NAMED_SECRET = re.compile(
    r"pass(?:word|wd|phrase)|pwd|secret|token|api[_.-]?key|access[_.-]?key|credential|signature|authorization",
    re.IGNORECASE,
)

_VALUE = {"=": re.compile(r"'[^'&]*'|[^&\s]*"), "%3D": re.compile(r".*?(?=%3B|%26|[&;\s]|$)", re.IGNORECASE)}

_SHORT = 4
"""A password with fewer characters is not searched for outside its address, since it may be part of any word."""


def mask_secrets(text: str, *known: str) -> str:
    """Replace every password, token or key of an address in a text by `***`.

    `known` are addresses that the text may refer to: their passwords are replaced anywhere, also decoded or encoded,
    because a message may quote a part of an address.
    """
    for secret in sorted({one for address in known for one in _secrets(address)}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _hide_spans(text, ((start, end) for start, _, end in _user_spans(text)))
    return _hide_spans(text, _value_spans(text))


def _hide_spans(text: str, spans: Iterator[tuple[int, int]]) -> str:
    """Replace the parts of a text between these positions by `***`."""
    made, at = [], 0
    for start, end in spans:
        made += [text[at:start], HIDDEN]
        at = end
    return "".join([*made, text[at:]])


def _user_spans(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start of what is hidden before an `@`, the start of the password in it, and the end of both."""
    for word in _WORD.finditer(text):
        if "@" in word[0]:
            yield from (
                (word.start() + a, word.start() + b, word.start() + c) for a, b, c in _user_spans_of_word(word[0])
            )


def _user_spans_of_word(word: str) -> Iterator[tuple[int, int, int]]:
    """Do the same for one word.

    A password may contain unescaped `@`, `/`, `?` and `#`, so it ends at the last `@`. The user of a database is shown;
    the user of a web address may itself be a token.
    """
    last = word.rindex("@")
    for found in _USERS.finditer(word, 0, last + 1):
        web = (found["scheme"] or "").lower().startswith("http")
        if found["after"] != "@":
            yield found.end("scheme") if web else found.end(), found.end(), last
            return
        if web:
            yield found.end("scheme"), found.end() - 1, found.end() - 1


def _value_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the value of each secret parameter."""
    at, since = 0, 0
    for found in _EQUALS.finditer(text):
        name, since = _parameter_name(text, since, found.start()), found.end()
        if found.start() >= at and _NAMED_SECRET.search(unquote(name)):
            value = _VALUE[found[0].strip().upper()].match(text, found.end())
            at = value.end() if value else found.end()
            yield found.end(), at


def _parameter_name(text: str, since: int, end: int) -> str:
    """Return the name of the parameter that ends at `end`."""
    backwards = text[max(since, end - _LONGEST_NAME) : end][::-1]
    name = _NAME.match(backwards)
    return name[0][::-1] if name else ""


def _secrets(address: str) -> Iterator[str]:
    """Yield the passwords of one address in every encoding in which a message may contain them."""
    given = [address[start:end] for _, start, end in _user_spans(address)]
    # An address is one word to the pattern above, and a password may have spaces.
    whole = _WHOLE.match(address)
    given += [whole[1]] if whole else []
    given += [address[start:end].strip("'") for start, end in _value_spans(address)]
    plain = {form for one in given for form in (one, unquote(one), unquote_plus(one))}
    spelled = {form for one in plain for form in (one, quote(one, safe=""), quote_plus(one))}
    yield from (one for one in spelled if len(one) >= _SHORT)
