"""Text that somebody else wrote, as a terminal or a page may have it. Every command that prints such text uses this.

Only the standard library is imported here, and nothing newer than Python 3.9.
"""

from __future__ import annotations


def visible(text: str, *, lines: bool = False) -> str:
    """`text` with everything that does not print as a backslash escape, so that nothing in it can steer a terminal or
    turn the direction of what follows; line ends too unless `lines`.
    """
    return "".join(
        char if char.isprintable() or (lines and char in "\n\t") else char.encode("unicode_escape").decode()
        for char in text
    )
