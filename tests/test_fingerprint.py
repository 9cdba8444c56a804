"""What changes from run to run is no part of a fingerprint; what tells one error from another is."""

import time

import pytest

from experiments.core.fingerprint import LONGEST, name_folders, normalize, normalize_value

TRACEBACK = """Caught TypeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "site-packages/torch/utils/data/_utils/worker.py", line {line}, in _worker_loop
    data = fetcher.fetch(index)
           ~~~~~~~~~~~~~^^^^^^^
  File "scenario.py", line 3, in __getitem__
    raise TypeError("not a number")
TypeError: not a number"""

SKIPPED = """torch.compile with fullgraph=True found no compiled frames. Skipped frames:
{frames}
Nothing was compiled."""


def skipped(*names):
    return SKIPPED.format(frames="\n".join(f"  - {name} (torch/x/{name}.py:{len(name)}): is skipped" for name in names))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("<object at 0x7f01>", "<object at 0x7fffa2>"),
        ("cannot open '/tmp/tmpab12cd_3/state.pt'", "cannot open '/var/folders/x y/state.pt'"),
        ("cannot open temporary/tmpq1w2e3r4/state.pt", "cannot open temporary/tmpzzzzzzzz/state.pt"),
        ("made tmpq1w2e3r4 for it", "made tmp12345678 for it"),
        ("see file:///home/a/b.html", "see file:///root/c.html"),
        (
            "DataLoader worker (pid(s) 18, 19) exited unexpectedly",
            "DataLoader worker (pid(s) 2201) exited unexpectedly",
        ),
        ("in process 4711", "in process 12"),
        ("pid=4711, tid: 4712", "pid=1, tid: 2"),
        ("connect() to localhost:40123 failed", "connect() to localhost:51999 failed"),
        ("('127.0.0.1', 40123) is in use", "('127.0.0.1', 51999) is in use"),
        ("[::1]:40123 refused", "[::1]:51999 refused"),
        ("port 40123 is taken", "port 51999 is taken"),
        ("timed out after 1.52 seconds", "timed out after 1.61 seconds"),
        ("at 2026-11-30 08:16:40.123", "at 2025-01-02T03:04:05Z"),
        ("[W1130 08:16:40.123456789 a.cpp:12] x", "[W0102 03:04:05.987654321 a.cpp:13] x"),
        ("on Mon Nov 30 08:16:40 2026", "on Tue Feb  3 18:06:41 2026"),
        ("group 123e4567-e89b-12d3-a456-426614174000", "group 00000000-e89b-12d3-a456-426614174000"),
        ("fail at alloc_cpu.cpp:127] err", "fail at alloc_cpu.cpp:119] err"),
        ("id 139872839123456 is stale", "id 140272839123456 is stale"),
        (TRACEBACK.format(line=12), TRACEBACK.format(line=349)),
        (skipped("call", "to_flat"), skipped("call", "to_flat", "hook", "exec_module")),
        ("x\n(12 more frames)", "x\n(9 more frames)"),
        ("x\n[Previous line repeated 982 more times]", "x\n[Previous line repeated 12 more times]"),
        ("frame #0: a + 0x1 (0x7f in a.so)\nframe #1: b\nx", "frame #0: c\nx"),
    ],
)
def test_what_changes_from_run_to_run_is_left_out(ours, theirs):
    assert normalize(ours) == normalize(theirs)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("saved torch.Size([2, 4, 8])", "saved torch.Size([1, 2, 8, 4])"),
        ("tried to allocate 343597383680 bytes", "tried to allocate 319975063552 bytes"),
        ("expected 3 arguments", "expected 4 arguments"),
        ("no module named 'a'", "no module named 'b'"),
        ("is refused", "is now refused"),
        ("device 0", "device 1"),
        ("size mismatch at line with (2, 3)", "size mismatch at line with (3, 2)"),
        (skipped("call") + "!", skipped("call")),
    ],
)
def test_what_tells_one_error_from_another_stays(ours, theirs):
    assert normalize(ours) != normalize(theirs)


def test_a_traceback_inside_a_message_leaves_the_words_around_it():
    said = normalize(TRACEBACK.format(line=12))
    assert said == "Caught TypeError in DataLoader worker process N.\nTypeError: not a number"


def test_only_the_first_paragraph_of_a_message_counts():
    """What follows is advice, which changes with each release."""
    assert normalize("is refused\n \nTry this.") == "is refused"


def test_where_a_message_was_cut_says_nothing():
    """A list of frames that is longer than what is kept ends in the middle of a line."""
    long = skipped(*(f"name{number}" for number in range(50)))
    cuts = (f"{long[:length]}\n[cut here: {length * 9} characters in all, SHA-256 ab]" for length in (900, 1201))
    assert len({normalize(cut) for cut in cuts}) == 1


def test_observed_texts_are_normalized_wherever_they_lie():
    value = {"error": ["at 0x7f01", 3], "paragraphs": "in process 12\n\nat 0x01"}
    assert normalize_value(value) == {"error": ["at ADDRESS", 3], "paragraphs": "in process N\n\nat ADDRESS"}


def test_folders_of_a_machine_are_named_by_what_they_are():
    folders = [("/home/anna/env/lib/torch", "torch/"), ("/home/anna", "home/")]
    assert name_folders("/home/anna/env/lib/torch/nn.py in /home/anna", folders) == "torch/nn.py in home"
    assert name_folders("/home/annabel/x", folders) == "/home/annabel/x"


def test_a_message_that_is_made_to_be_slow_takes_no_long_time():
    for text in ("/" * 60000, "a/" * 30000, "- " * 30000, "0x" * 30000, "1." * 30000, "tmp" * 20000, "x:" * 30000):
        assert isinstance(normalize(text), str)


def test_a_long_observed_text_is_data_and_counts_as_it_is():
    """To normalize 20 MB took the driver of a sweep minutes, once for each time that the record was compared."""
    most = LONGEST // len("at 0x7f01 ")
    assert normalize_value("at 0x7f01 " * most) == ("at ADDRESS " * most).strip()
    long = "at 0x7f01 " * (most + 1)
    assert normalize_value({"drawn": [long]}) == {"drawn": [long]}


UNITS = (
    " ",
    "\t",
    ":",
    "[:",
    "[a:",
    "(",
    "[",
    "1.",
    "1:",
    "12:34:",
    "/",
    "/a",
    "a/",
    "a a/",
    "\\",
    "'",
    "1, ",
    "a-",
    "a.py/",
)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("around", [("x", "x"), ("[", "]"), ("\n", "\nx")])
def test_the_longest_text_takes_no_longer_than_its_length(unit, around):
    """A run of blanks once took the square of its length, 37 seconds at this one: a tenth of one is what it takes."""
    before, after = around
    text = before + (unit * LONGEST)[: LONGEST - len(before + after)] + after
    began = time.process_time()
    normalize.__wrapped__(text)
    assert time.process_time() - began < 5
