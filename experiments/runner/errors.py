"""Errors raised when a worker cannot be started or watched."""

from __future__ import annotations


class LaunchError(Exception):
    """A worker could not be started, for example because its interpreter or folder is missing."""


class LostError(LaunchError):
    """A process can no longer be watched because the fork server that reported on it has ended."""
