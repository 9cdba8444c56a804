"""The folder of one process: made, put right again after its case, measured, and removed whatever the case did to it.

A case runs as the user who started the sweep and may do with its folder what that user may: take rights away, delete
it, put pipes and links into it, nest it deeper than a path can say. None of that may reach whoever runs the next case.
Nothing here follows a link, waits for a pipe, or descends by recursion.

Only the standard library is imported here, and nothing newer than Python 3.9.
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
"""What the owner may do with a folder: list it, write into it, go into it."""
OUTPUT = ("stdout", "stderr")

_BELOW = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_ORDINARY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.listdir in os.supports_fd
"""False on Windows, which knows folders by their paths only."""


def prepare(folder: Path) -> None:
    """Make the folder of a process (which must not exist): its own temporary folder, contents, output."""
    folder.mkdir(parents=True)
    (folder / "tmp").mkdir()
    (folder / "blobs").mkdir()
    for name in OUTPUT:
        (folder / name).touch()


def mend(folder: Path) -> str:
    """Make the folder again what it was, without what was temporary. Gives what the case did to it that nobody can
    make up for: a folder that was gone, rights that were taken away. Empty if there was nothing of the kind.
    """
    allow(folder.parent)
    harm = [_mended(folder, "its folder")]
    remove(folder / "tmp")  # First of all: a disk that the case has filled has room again.
    harm.append(_mended(folder / "blobs", "its folder of contents"))
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


def _mended(folder: Path, name: str) -> str:
    """Make one folder be there, with its owner's rights; gives what it lacked."""
    mode = _mode(folder)
    if mode is None or not stat.S_ISDIR(mode):
        remove(folder)
        folder.mkdir(parents=True)
        return f"{name} was gone"
    if allow(folder):
        return f"{name} had lost its rights (mode {stat.S_IMODE(mode):03o})"
    return ""


def _mode(path: Path) -> Optional[int]:
    """Kind and rights; None if there is nothing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


def allow(folder: Path) -> bool:
    """Give the owner of a folder its rights back; whether they were taken away. Where there is no folder, they were
    not.
    """
    mode = _mode(folder)
    if mode is None or not stat.S_ISDIR(mode) or mode & OWNER == OWNER:
        return False
    folder.chmod(stat.S_IMODE(mode) | OWNER)
    return True


def read(path: Path, most: int) -> Optional[str]:
    """The first `most` bytes of an ordinary file. None for whatever else is there, without waiting for it."""
    try:
        with open(os.open(path, _ORDINARY), "rb") as file:  # noqa: PTH123 - of a descriptor
            return file.read(most).decode("utf-8", "backslashreplace") if _is_ordinary(file.fileno()) else None
    except OSError:
        return None


def _is_ordinary(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def length(path: Path) -> int:
    """Bytes of an ordinary file. -1 for whatever else is there, and for nothing."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def measure(folder: Path, most: int) -> tuple[int, int]:
    """Bytes of all that lies below the folder, and how many files and folders it is. What vanishes meanwhile counts
    nothing, and counting ends beyond `most` of them.
    """
    total = count = 0
    for _, _, found in _inside(folder):
        count += 1
        if not stat.S_ISDIR(found.st_mode):
            total += found.st_size
        if count > most:
            break
    return total, count


def remove(path: Path) -> bool:
    """Remove a file or a folder with all that is in it, also what its owner may not read any more. Whether nothing is
    left of it: what belongs to somebody else may stay.
    """
    with contextlib.suppress(OSError):
        mode = _mode(path)
        if mode is None:
            return True
        if not stat.S_ISDIR(mode):
            path.unlink()
            return True
        allow(path)
        for descriptor, name, found in _inside(path, allowing=True):
            with contextlib.suppress(OSError):
                _remove_below(descriptor, name, found)
        path.rmdir()
        return True
    return not os.path.lexists(path)


def _remove_below(descriptor: int, name: str, found: os.stat_result) -> None:
    if not _BY_DESCRIPTOR:
        shutil.rmtree(name) if stat.S_ISDIR(found.st_mode) else os.unlink(name)  # noqa: PTH108 - a name below a folder
    elif stat.S_ISDIR(found.st_mode):
        os.rmdir(name, dir_fd=descriptor)
    else:
        os.unlink(name, dir_fd=descriptor)


def free(folder: Path) -> Path:
    """A name that nothing has: `folder`, once what had it is removed, or one beside it if that cannot be removed."""
    place, number = folder, 2
    while not remove(place):
        place, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return place


@contextlib.contextmanager
def temporary(prefix: str, where: Optional[Path] = None) -> Iterator[Path]:
    """A new folder that is gone afterwards, whatever was done to it."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
    try:
        yield made
    finally:
        remove(made)


def _inside(folder: Path, *, allowing: bool = False) -> Iterator[tuple[int, str, os.stat_result]]:
    """All that lies below a folder: a descriptor of the folder that it is in, its name there, what it is. Folders come
    after what is in them; those that cannot be looked into are as empty, unless `allowing` gives their owner the right.

    One descriptor is open at a time and no path is longer than a name, so no depth is too deep.
    """
    if not _BY_DESCRIPTOR:
        yield from _inside_by_path(folder)
        return
    try:
        current = os.open(folder, _BELOW)
    except OSError:
        return
    try:
        waiting, entered = [_listed(current)], [os.fstat(current)]
        names: list[str] = []
        while True:
            if waiting[-1]:
                name = waiting[-1].pop()
                try:
                    found = os.stat(name, dir_fd=current, follow_symlinks=False)
                except OSError:
                    continue
                below = _opened(current, name, found, allowing=allowing)
                if below is None:
                    yield current, name, found
                    continue
                os.close(current)
                current = below
                waiting.append(_listed(current))
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
                return  # It was moved meanwhile, and this is somebody else's.
            yield current, names.pop(), left
    finally:
        os.close(current)


def _inside_by_path(folder: Path) -> Iterator[tuple[int, str, os.stat_result]]:
    for place, names, files in os.walk(folder, topdown=False):
        for name in (*files, *names):
            with contextlib.suppress(OSError):
                path = os.path.join(place, name)  # noqa: PTH118 - walked five times a second
                yield -1, path, os.lstat(path)


def _listed(descriptor: int) -> list[str]:
    try:
        return os.listdir(descriptor)
    except OSError:
        return []


def _opened(current: int, name: str, found: os.stat_result, *, allowing: bool) -> Optional[int]:
    """The folder of this name, to look into. None if it is none, or cannot be looked into."""
    if not stat.S_ISDIR(found.st_mode):
        return None
    with contextlib.suppress(OSError):
        if allowing and found.st_mode & OWNER != OWNER:
            os.chmod(name, OWNER, dir_fd=current)
        return os.open(name, _BELOW, dir_fd=current)
    return None
