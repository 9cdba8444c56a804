"""The one error of this package."""

from __future__ import annotations


class ArchiveError(Exception):
    """The archive cannot do what was requested. The message states what was found and what to do.

    A caller may rely on this: the previous contents of the archive are still there, and nothing that was being added
    counts until it is added again.
    """
