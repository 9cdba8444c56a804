"""Errors of starting a worker."""

from __future__ import annotations


class LaunchError(Exception):
    """A worker could not be started at all: no such interpreter, no folder to run in."""


class LostError(LaunchError):
    """A process can no longer be watched, because what watched it has ended."""
