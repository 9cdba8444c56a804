"""Pictures and figures of the README are those of the published report; what was once shown of another run, fails."""

from __future__ import annotations

import io
import re
import shutil
import statistics
from collections import defaultdict
from pathlib import Path

import hydra
import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from PIL import Image

from experiments.core.canonical_json import digest
from experiments.planning import catalogue
from experiments.planning.config import register_schemas
from experiments.planning.plan import plan
from reports import build, pictures
from reports.build import ReportError
from reports.markdown.elements import coverage_text
from reports.pictures import CHART, DRAWN, PAGE, REPORT, TEXT, draw_page
from reports.setting_comparison import Distances
from store import bundles

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "reports" / "evidence"
PUBLISHED = sorted((ROOT / "store" / "published").glob("*.zip"))
README = (ROOT / "README.md").read_text(encoding="utf-8")

REPORTED = """# Evidence report: sweep `s`

## The note in one page

Of 2 claims: 1 supported, 1 refuted.

**What was right**

- **B1** It is so \\[as said\\] &amp; measured. — 3.2 to 3.4. [`0123456789ab` `ba9876543210` and 2 more]

**What was not right**

- **B2** It is not so. — none of it. [`aaaaaaaaaaaa`]

| a | table |
"""


def said(content: bytes) -> dict[str, str]:
    """What a picture says of itself."""
    return dict(Image.open(io.BytesIO(content)).text)


def shown() -> list[str]:
    """Pictures of the README, as paths from it."""
    return re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README)


def reports() -> dict[str, Path]:
    """Published reports by digest."""
    return {digest(path.read_text(encoding="utf-8")): path for path in EVIDENCE.glob("*.md")}


def bundled(report: Path) -> Path:
    return ROOT / "store" / "published" / f"{report.stem}.zip"


# The README's pictures.


def test_the_readme_shows_the_pictures_that_are_made_of_a_report():
    assert sorted(shown()) == [f"reports/evidence/{name}" for name in (CHART, PAGE)]


@pytest.mark.parametrize("name", shown())
def test_a_picture_of_the_readme_is_of_a_published_report_whose_records_are_there(name):
    about = said((ROOT / name).read_bytes())
    assert about[REPORT] in reports(), "run `make publish`, or python -m reports.pictures REPORT.md"
    assert bundled(reports()[about[REPORT]]).is_file()


def test_the_pictures_are_exactly_what_is_made_from_their_report():
    """Byte for byte under the matplotlib that drew them; under another, letters may lie elsewhere."""
    kept = {name: (EVIDENCE / name).read_bytes() for name in (PAGE, CHART)}
    (report,) = {reports()[said(content)[REPORT]] for content in kept.values()}
    made = pictures.pictures(report)
    assert made[CHART] == kept[CHART]
    assert said(made[PAGE])[TEXT] == said(kept[PAGE])[TEXT]
    if said(made[PAGE])[DRAWN] == said(kept[PAGE])[DRAWN]:
        assert made[PAGE] == kept[PAGE]


def test_every_digest_in_the_picture_is_of_a_published_record():
    about = said((EVIDENCE / PAGE).read_bytes())
    report = reports()[about[REPORT]]
    text = report.read_text(encoding="utf-8")
    assert all(line in text for line in about[TEXT].splitlines())
    named = set(re.findall(r"`([0-9a-f]{12})`", about[TEXT]))
    assert named
    with bundles.read_bundle(bundled(report)) as found:
        known = {name[:12] for name in found.digests}
    assert named <= known


def test_every_digest_in_the_readme_is_of_published_evidence():
    """In prose and links there is none now; whoever puts one there is held to it."""
    assert undocumented(README) == set()
    assert undocumented("see `0123456789abcdef`") == {"0123456789abcdef"}


def undocumented(text: str) -> set[str]:
    published = "\n".join([*(path.name for path in PUBLISHED), *(path.read_text() for path in reports().values())])
    return {word for word in re.findall(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b", text) if word not in published}


# Made from the report, and from nothing else.


def test_the_picture_is_of_the_last_page_on_a_note_up_to_where_it_cannot_be_drawn():
    lines = said(draw_page(REPORTED, "r.md"))[TEXT].splitlines()
    assert lines[0] == "## The note in one page"
    assert lines[-1] == "- **B2** It is not so. — none of it. [`aaaaaaaaaaaa`]"
    other = REPORTED + "\n## Another note\n\n- **C1** Last. [`bbbbbbbbbbbb`]\n\n## Digests\n\n- **no** claim\n"
    assert said(draw_page(other, "r.md"))[TEXT].splitlines() == ["## Another note", "- **C1** Last. [`bbbbbbbbbbbb`]"]


@pytest.mark.parametrize(
    ("old", "new"),
    [("3.4", "3.5"), ("ba9876543210", "ba9876543211"), ("1 refuted", "2 refuted"), ("sweep `s`", "sweep `t`")],
)
def test_another_report_makes_another_picture(old, new):
    """The last is not drawn, but the report's digest is."""
    first, second = draw_page(REPORTED, "r.md"), draw_page(REPORTED.replace(old, new), "r.md")
    assert first == draw_page(REPORTED, "r.md")
    assert first != second
    assert said(first)[REPORT] == digest(REPORTED) != said(second)[REPORT]
    assert said(first)[DRAWN] == f"matplotlib {mpl.__version__}"


def drawn(monkeypatch, make) -> list[str]:
    """Every text of the picture that `make` draws."""
    figures: list[Figure] = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (savefig(self, *a, **k), figures.append(self))[0])
    make()
    (figure,) = figures
    (axes,) = figure.axes
    labels = [*axes.texts, axes.title, *axes.get_xticklabels(), *axes.get_yticklabels()]
    return [text.get_text() for text in (*labels, axes._right_title) if text.get_text()]


def test_markup_of_the_report_is_drawn_and_not_shown(monkeypatch):
    words = drawn(monkeypatch, lambda: draw_page(REPORTED, "r.md"))
    joined = " ".join(words)
    assert "B1 It is so [as said] & measured." in joined
    assert "[ 0123456789ab ba9876543210 and 2 more]" in joined
    assert not any(mark in joined for mark in ("**", "`", "\\", "&amp;"))
    assert f"SHA-256 {digest(REPORTED)[:12]}" in joined


def test_a_long_page_is_cut_between_its_lines_and_says_so(monkeypatch):
    items = "\n".join(f"- **B{number}** {'word ' * 60}[`{number:012x}`]" for number in range(3, 40))
    text = REPORTED.replace("| a | table |", items)
    content = draw_page(text, "r.md")
    lines = said(content)[TEXT].splitlines()
    assert all(line in text.splitlines() for line in lines)
    left = len([line for line in text.partition("## ")[2].splitlines() if line]) - len(lines)
    assert left > 20
    assert f"{left} more lines there." in " ".join(drawn(monkeypatch, lambda: draw_page(text, "r.md")))
    assert Image.open(io.BytesIO(content)).height <= pictures.HEIGHT + 80


def test_a_report_without_a_page_on_a_note_or_a_chart_is_refused(tmp_path):
    with pytest.raises(ReportError, match="no page on a note"):
        draw_page("# Evidence report\n\n## Verdicts\n", "r.md")
    report = tmp_path / "r.md"
    report.write_text(REPORTED, encoding="utf-8")
    with pytest.raises(ReportError, match=r"r-machines\.png is not beside r\.md"):
        pictures.write_pictures(report)
    assert pictures.main([str(report)]) == 2
    assert not (tmp_path / PAGE).exists()


def test_pictures_are_written_beside_their_report_under_names_that_stay(tmp_path, capsys):
    shutil.copy(EVIDENCE / CHART, tmp_path / f"r-{CHART}")
    report = tmp_path / "r.md"
    report.write_text(REPORTED, encoding="utf-8")
    assert pictures.main([str(report)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / PAGE), str(tmp_path / CHART)]
    assert (tmp_path / PAGE).read_bytes() == draw_page(REPORTED, "r.md")
    assert (tmp_path / CHART).read_bytes() == (EVIDENCE / CHART).read_bytes()


# The chart.


def test_the_chart_says_how_many_cases_it_leaves_out(monkeypatch):
    """Where cases fail there are no gradients: a bar of equal bits alone says that nothing differs."""
    same = (5, 0, 0, 0, 0, 0, 0)
    listed = [Distances("other", same, 0, 5, 189, 20, 18), Distances("failing", (0,) * 7, 0, 0, 0, 3, 1)]
    listed += [Distances("absent", (0,) * 7, 0, 0, 0, 0, 0)]
    texts = drawn(monkeypatch, lambda: build.chart(listed, {"Report": "x"}))
    assert "other\n189 cases, 20 left out, of which 18 differ" in texts
    assert "failing\n0 cases, 3 left out, of which 1 differs" in texts
    assert build.LEFT_OUT in texts
    assert not any("absent" in text for text in texts), "nothing was compared with it"


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((209, 0, 0), "209 cases"),
        ((1, 20, 0), "1 case, 20 left out, none of which differs"),
        ((189, 20, 1), "189 cases, 20 left out, of which 1 differs"),
    ],
)
def test_cases_left_out_are_counted_in_words(counts, text):
    assert coverage_text(*counts) == text


# Figures in the README's text.

FIGURE = re.compile(r"\b\d+\.\d+\b(?!\.\d)|\b\d+ (?:GB|MiB|minutes|seconds|cores|cases|machines)\b|\b\d+\.\d+\.\d+\b")
NOT_HELD = {
    "3.11": "the Python that is needed: pyproject.toml",
    "3.9": "the Python that a capsule needs: test_layers.py",
    "2.6": "the torch that a capsule needs",
    "2 GB": "size of .venv",
    "8 MiB": "size of a capsule: test_capsule.py",
    "2 cores": "of the computer that the times are of",
    "2.13": "of the published bundles, which the version beside it holds",
    "2.14": "likewise",
    "0.5": "the version of Process Run Crate",
    "2.0": "the licence",
    "24 cases": "a round of make bench",
    "1.0": "a round of make bench: in no evidence",
    "0.28": "a round of make bench: in no evidence",
    "6.8": "a round of make bench: in no evidence",
    "8.0": "a round of make bench: in no evidence",
    "0.05": "a round of make bench: in no evidence",
}
"""Figures of the README that no published evidence bears, and what does. A new one is held below or is named here."""


def figures(text: str) -> set[str]:
    prose = re.sub(r"\]\([^)]*\)|TORCH=\S+|PYTHON=\S+", "]", text)
    return set(FIGURE.findall(prose))


def test_every_figure_of_the_readme_is_held_or_is_known_not_to_be():
    held = {match.group() for match in re.finditer(r"\d+ minutes", README)} | set(versions(README))
    assert figures(README) - held - set(NOT_HELD) == set()
    assert figures("took 0.31 of 12 minutes") == {"0.31", "12 minutes"}


def versions(text: str) -> list[str]:
    return re.findall(r"torch (\d+\.\d+\.\d+)", text)


def test_every_version_of_torch_in_the_readme_has_published_evidence():
    published = {version for path in PUBLISHED for version in re.findall(r"torch-(\d+\.\d+\.\d+)", path.name)}
    assert set(versions(README)) <= published


def test_the_minutes_of_a_first_run_are_those_of_the_published_records():
    """What each process took, summed over what a newcomer's sweep runs, on two cores."""
    (minutes,) = map(int, re.findall(r"make run-all .*: (\d+) minutes on 2 cores", README))
    assert minutes == pytest.approx(measured_minutes(), rel=0.25)


def measured_minutes() -> float:
    register_schemas()
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = OmegaConf.to_object(hydra.compose("config", overrides=["device=cpu"]))
    (report,) = {reports()[said((EVIDENCE / name).read_bytes())[REPORT]] for name in (PAGE, CHART)}
    took = defaultdict(list)
    with bundles.read_bundle(bundled(report)) as found:
        for record in found.records:
            asked = record.spec.question
            took[asked.scenario, asked.label(), asked.pass_].append(record.ending.duration)
    asked = [spec.question for spec in plan(cfg, catalogue.read_cached()).specs]
    spent = [took[one.scenario, one.label(), one.pass_] for one in asked]
    assert sum(bool(many) for many in spent) > 0.9 * len(spent), "the evidence is of other scenarios: publish again"
    return sum(statistics.median(many) for many in spent if many) / 2 / 60


# How long the published cases took.


def test_what_is_measured_and_takes_long_says_so_in_its_mark():
    """A plan is static, so a mark tells what is run once; the published durations tell whether it is right."""
    cases = {
        (entry.name, case["name"]): case["measured"]
        for entry in catalogue.read_cached().entries
        for case in entry.cases
    }
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    with bundles.read_bundle(bundled(reports()[said((EVIDENCE / PAGE).read_bytes())[REPORT]])) as found:
        for record in found.records:
            kinds = {expectation["kind"] for expectation in record.spec.mark.expectations}
            asked = record.spec.question
            if asked.pass_ == "plain" and (record.spec.mark.series or kinds & {"peaks", "holds"}):
                took[asked.scenario, asked.case].append(record.ending.duration)
    assert took
    for name, spent in took.items():
        if cases.get(name) == "at length":
            assert max(spent) > 5, f"{name} is brief by now"
        elif name in cases:
            # Ten seconds on an idle computer; the published one was busy, and took up to three times as long.
            assert statistics.median(spent) < 30, f'{name} takes long: give its mark measured="at length"'
