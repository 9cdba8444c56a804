"""Text from outside, made safe for a terminal or a page. Every command that prints such text uses this module.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import re

from .canonical_json import digest


def visible_text(text: str, *, lines: bool = False) -> str:
    """Replace characters that do not print by backslash escapes, also line ends and tabs unless `lines`.

    So a text cannot control a terminal or change the direction of the text after it.
    """
    return "".join(
        char if char.isprintable() or (lines and char in "\n\t") else char.encode("unicode_escape").decode()
        for char in text
    )


def cut_text(text: str, limit: int) -> str:
    """Return a text, or what fits into `limit` characters with a mark that contains the digest of the whole."""
    if len(text) <= limit:
        return text
    mark = f" […cut: {len(text)} characters in all, SHA-256 {digest(text)}]"
    return text[: limit - len(mark)] + mark


def safe_key(name: str) -> str:
    """Return a name for an MLflow key or a file name: unchanged if both allow it, else replaced, with its digest."""
    made = re.sub(r"[^\w. -]", "_", name)[:100].strip(" .")
    return name if made == name else f"{made}-{digest(name)[:8]}"
