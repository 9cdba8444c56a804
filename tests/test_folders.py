"""The folder of a process, whatever was done to it: looked at without waiting, removed without leaving it."""

from __future__ import annotations

import os
import stat

import pytest

from experiments.core import folders


def nested(folder, depth: int) -> None:
    """Folders in folders, made without a path to the last of them."""
    current = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=current)
        below = os.open("a", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


def test_no_depth_is_too_deep(tmp_path):
    """Deeper than a path can say, than Python recurses, and than descriptors may be open."""
    (tmp_path / "deep").mkdir()
    nested(tmp_path / "deep", 5_000)
    assert folders.measure(tmp_path / "deep", 100_000) == (0, 5_000)
    assert folders.remove(tmp_path / "deep")
    assert not list(tmp_path.iterdir())


def test_removing_follows_no_link(tmp_path):
    (tmp_path / "kept" / "inside").mkdir(parents=True)
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    assert folders.remove(tmp_path / "gone")
    assert folders.remove(tmp_path / "link")
    assert folders.remove(tmp_path / "never there")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["file", "inside"]


def test_a_free_name_is_one_that_nothing_has(tmp_path, monkeypatch):
    """What stands in the way is removed, or left if that cannot be: here nothing can be removed."""
    (tmp_path / "one").mkdir()
    assert folders.free_path(tmp_path / "one") == tmp_path / "one"
    (tmp_path / "one").mkdir()
    (tmp_path / "one-2").touch()
    monkeypatch.setattr(folders, "remove", lambda path: not path.exists())
    assert folders.free_path(tmp_path / "one") == tmp_path / "one-3"


@pytest.mark.parametrize("what", ["a pipe", "a device without an end", "a link to a file", "a folder", "nothing"])
def test_only_an_ordinary_file_is_read_and_nothing_is_waited_for(tmp_path, what):
    path = tmp_path / "phase"
    (tmp_path / "file").write_text("forward")
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a folder":
        path.mkdir()
    elif what != "nothing":
        path.symlink_to("/dev/zero" if "end" in what else tmp_path / "file")
    assert folders.read_file(path, 64) is None
    assert folders.file_size(path) == -1
    assert folders.read_file(tmp_path / "file", 3) == "for"
    assert folders.file_size(tmp_path / "file") == 7


def test_counting_ends_beyond_what_is_allowed(tmp_path):
    for number in range(50):
        (tmp_path / str(number)).write_text("xx")
    assert folders.measure(tmp_path, 100) == (100, 50)
    assert folders.measure(tmp_path, 9) == (20, 10)
    assert folders.measure(tmp_path / "nowhere", 9) == (0, 0)


def test_a_mended_folder_is_as_it_was_made(tmp_path):
    folders.prepare(tmp_path / "whole")
    assert folders.repair(tmp_path / "whole") == ""
    folder = tmp_path / "harmed"
    folders.prepare(folder)
    (folder / "blobs" / "content").write_text("x")
    (folder / "blobs" / "content").chmod(0)
    (folder / "stdout").unlink()
    os.mkfifo(folder / "stdout")
    (folder / "blobs").chmod(0o500)
    assert folders.repair(folder) == "its folder of contents had lost its rights (mode 500)"
    assert stat.S_ISREG((folder / "stdout").lstat().st_mode)
    assert (folder / "blobs" / "content").read_text() == "x"
    assert stat.S_IMODE((folder / "blobs").stat().st_mode) == 0o700
