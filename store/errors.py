"""The one error of this package."""

from __future__ import annotations


class ArchiveError(Exception):
    """The archive cannot do what was asked. The message says what was found and what to do.

    Whoever gets it may rely on this: what was in the archive before is still there, and of what was
    being added no part counts until it is added again.
    """
