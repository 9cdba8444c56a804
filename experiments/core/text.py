"""Text that somebody else wrote, as a terminal or a page may have it. Every command that prints such text uses this.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations

import re

from .canonical_json import digest


def visible(text: str, *, lines: bool = False) -> str:
    """`text` with everything that does not print as a backslash escape, so that nothing in it can steer a terminal or
    turn the direction of what follows; line ends too unless `lines`.
    """
    return "".join(
        char if char.isprintable() or (lines and char in "\n\t") else char.encode("unicode_escape").decode()
        for char in text
    )


# Foreign text.


def cut(text: str, limit: int) -> str:
    """`text`, or as much of it as fits into `limit` characters, with a mark and the digest of the whole."""
    if len(text) <= limit:
        return text
    mark = f" […cut: {len(text)} characters in all, SHA-256 {digest(text)}]"
    return text[: limit - len(mark)] + mark


def key(name: str) -> str:
    """`name` as a part of an MLflow key or a file's name: unchanged where both allow it, else with its digest."""
    made = re.sub(r"[^\w. -]", "_", name)[:100].strip(" .")
    return name if made == name else f"{made}-{digest(name)[:8]}"
