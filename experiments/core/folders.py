"""The folder of one process: created, repaired after its case, measured, and removed whatever the case did to it.

A case runs as the user who started the sweep and may do with its folder what that user may: remove permissions, delete
it, put pipes and links into it, nest it deeper than a path can express. None of that may affect the next case.
Nothing here follows a link, waits for a pipe, or recurses.

Imports only the standard library, and runs on Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Iterator, Optional

OWNER = stat.S_IRWXU
"""Permissions of the owner of a folder: to list it, write to it, and enter it."""
OUTPUT = ("stdout", "stderr")

_BELOW = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_ORDINARY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.listdir in os.supports_fd
"""Whether folders can be accessed by descriptor. False on Windows, which has only paths."""


def prepare(folder: Path) -> None:
    """Create the folder of a process, which must not exist, with its temporary folder, blobs and output files."""
    folder.mkdir(parents=True)
    (folder / "tmp").mkdir()
    (folder / "blobs").mkdir()
    for name in OUTPUT:
        (folder / name).touch()


def repair(folder: Path) -> str:
    """Restore the folder of a process after its case, and remove its temporary files.

    Returns what the case did to it that cannot be undone: a folder that was removed, permissions that were taken away.
    Empty if there is nothing of the kind.
    """
    restore_rights(folder.parent)
    harm = [_restore_folder(folder, "its folder")]
    remove(folder / "tmp")  # First of all, to free the disk if the case has filled it.
    harm.append(_restore_folder(folder / "blobs", "its folder of contents"))
    for path in sorted((*folder.iterdir(), *(folder / "blobs").iterdir())):
        mode = path.lstat().st_mode
        if path == folder / "blobs":
            continue
        if not stat.S_ISREG(mode):
            remove(path)
        elif not mode & stat.S_IRUSR:
            path.chmod(stat.S_IMODE(mode) | stat.S_IRUSR | stat.S_IWUSR)
            name = path.name if path.parent == folder else "one of its contents"
            harm.append(f"{name} had lost its rights (mode {stat.S_IMODE(mode):03o})")
    for name in OUTPUT:
        (folder / name).touch()
    return next(filter(None, harm), "")


def _restore_folder(folder: Path, name: str) -> str:
    """Make sure that a folder exists and has its owner's permissions. Returns what was missing, or an empty string."""
    mode = _file_mode(folder)
    if mode is None or not stat.S_ISDIR(mode):
        remove(folder)
        folder.mkdir(parents=True)
        return f"{name} was gone"
    if restore_rights(folder):
        return f"{name} had lost its rights (mode {stat.S_IMODE(mode):03o})"
    return ""


def _file_mode(path: Path) -> Optional[int]:
    """Return the type and permissions of a path, without following links. None if it does not exist."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def restore_rights(folder: Path) -> bool:
    """Restore the permissions of the owner of a folder. Return whether any was missing; False if there is no folder."""
    mode = _file_mode(folder)
    if mode is None or not stat.S_ISDIR(mode) or mode & OWNER == OWNER:
        return False
    folder.chmod(stat.S_IMODE(mode) | OWNER)
    return True


def read_file(path: Path, most: int) -> Optional[str]:
    """Return the first `most` bytes of a regular file as text. None for anything else, without waiting for it."""
    try:
        with open(os.open(path, _ORDINARY), "rb") as file:  # noqa: PTH123 - of a descriptor
            return file.read(most).decode("utf-8", "backslashreplace") if _is_ordinary(file.fileno()) else None
    except OSError:
        return None


def _is_ordinary(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def file_size(path: Path) -> int:
    """Return the size of a regular file in bytes. -1 for anything else, or if there is nothing."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def measure(folder: Path, most: int) -> tuple[int, int]:
    """Return the total size in bytes, and the number, of the files and folders below a folder.

    What disappears meanwhile is not counted, and counting stops once there are more than `most`.
    """
    total = count = 0
    for _, _, found in _walk(folder):
        count += 1
        if not stat.S_ISDIR(found.st_mode):
            total += found.st_size
        if count > most:
            break
    return total, count


def remove(path: Path) -> bool:
    """Remove a file, or a folder with everything in it, also without permission to read it.

    Returns whether it is gone: files of another user may remain.
    """
    with contextlib.suppress(OSError):
        mode = _file_mode(path)
        if mode is None:
            return True
        if not stat.S_ISDIR(mode):
            path.unlink()
            return True
        restore_rights(path)
        for descriptor, name, found in _walk(path, allowing=True):
            with contextlib.suppress(OSError):
                _remove_entry(descriptor, name, found)
        path.rmdir()
        return True
    return not os.path.lexists(path)


def _remove_entry(descriptor: int, name: str, found: os.stat_result) -> None:
    """Remove a file or an empty folder that `_walk` has yielded."""
    if not _BY_DESCRIPTOR:
        shutil.rmtree(name) if stat.S_ISDIR(found.st_mode) else os.unlink(name)  # noqa: PTH108 - a name below a folder
    elif stat.S_ISDIR(found.st_mode):
        os.rmdir(name, dir_fd=descriptor)
    else:
        os.unlink(name, dir_fd=descriptor)


def free_path(folder: Path) -> Path:
    """Return an unused path: `folder`, after removing it, or one next to it if it cannot be removed."""
    place, number = folder, 2
    while not remove(place):
        place, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return place


@contextlib.contextmanager
def temporary_folder(prefix: str, where: Optional[Path] = None) -> Iterator[Path]:
    """Create a temporary folder for the block, and remove it afterwards whatever was done to it."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        yield made
    finally:
        remove(made)


def _walk(folder: Path, *, allowing: bool = False) -> Iterator[tuple[int, str, os.stat_result]]:
    """Yield everything below a folder: a descriptor of the parent folder, the name in it, and its status.

    Folders come after their contents. A folder that cannot be opened counts as empty, unless `allowing` restores the
    permissions of its owner. One descriptor is open at a time and no path is longer than a name, so the depth is not
    limited.
    """
    if not _BY_DESCRIPTOR:
        yield from _walk_by_path(folder)
        return
    try:
        current = os.open(folder, _BELOW)
    except OSError:
        return
    try:
        waiting, entered = [_list_names(current)], [os.fstat(current)]
        names: list[str] = []
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    found = os.stat(name, dir_fd=current, follow_symlinks=False)
                except OSError:
                    continue
                below = _open_folder(current, name, found, allowing=allowing)
                if below is None:
                    yield current, name, found
                    continue
                os.close(current)
                current = below
                waiting.append(_list_names(current))
                entered.append(os.fstat(current))
                names.append(name)
                continue
            waiting.pop()
            left = entered.pop()
            if not waiting:
                return
            above = os.open("..", _BELOW, dir_fd=current)
            os.close(current)
            current = above
            if not os.path.samestat(os.fstat(current), entered[-1]):
                return  # The folder was moved meanwhile, and this is another one.
            yield current, names.pop(), left
    finally:
        os.close(current)


def _walk_by_path(folder: Path) -> Iterator[tuple[int, str, os.stat_result]]:
    """Do the same by path. The descriptor is -1, and the name is the whole path."""
    for place, names, files in os.walk(folder, topdown=False):
        for name in (*files, *names):
            with contextlib.suppress(OSError):
                path = os.path.join(place, name)  # noqa: PTH118 - walked five times a second
                yield -1, path, os.lstat(path)


def _list_names(descriptor: int) -> list[str]:
    """Return the names in a folder. Empty if it cannot be read."""
    try:
        return os.listdir(descriptor)
    except OSError:
        return []


def _open_folder(current: int, name: str, found: os.stat_result, *, allowing: bool) -> Optional[int]:
    """Return a descriptor of the folder of this name. None if it is not a folder or cannot be opened."""
    if not stat.S_ISDIR(found.st_mode):
        return None
    with contextlib.suppress(OSError):
        if allowing and found.st_mode & OWNER != OWNER:
            os.chmod(name, OWNER, dir_fd=current)
        return os.open(name, _BELOW, dir_fd=current)
    return None
