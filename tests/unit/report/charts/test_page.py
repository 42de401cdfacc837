"""Pages: one file that asks for nothing, and in which nothing from a run folder is code."""

import shutil
import subprocess
from importlib.resources import files

import pytest

from page_parts import PageParser
from rookery.report.charts import page as pages
from rookery.report.charts.options import Goal, Interval, intervals, lines, looks
from rookery.report.charts.page import Chart, Heading, Page, Points, Table, Text
from rookery.report.number_format import LONGEST
from rookery.report.statistics.bootstrap import Estimate

EVIL = "</script><script>alert(1)</script><!-- <b>&\"'\x00|*"


@pytest.fixture
def evil():
    """A page with a name that is trouble wherever a name can be."""
    found = {EVIL: {0.0: Estimate(1.0, 0.5, 1.5), 10.0: Estimate(2.0, 1.0, 3.0)}}
    ends = {EVIL: Interval(EVIL, Estimate(1.0, 0.5, 2.0))}
    drawn = lines(found, looks([EVIL]), across=EVIL, up=EVIL, goal=Goal(1.0, EVIL))
    bars = intervals(EVIL, ends, looks([EVIL]), across=EVIL, goal=Goal(1.0, EVIL))
    table = Table(EVIL, [["a", EVIL], [EVIL, "b"]])
    parts = [Heading(EVIL), Text(EVIL), Points([EVIL]), table]
    return Page(EVIL, [*parts, Chart(EVIL, drawn), bars])


def test_a_page_is_whole_and_asks_for_nothing(evil):
    html = evil.html()
    found = PageParser(html)

    assert html.startswith("<!doctype html>")
    assert not {"link", "img", "iframe", "object"} & set(found.tags)
    assert not any(name in ("src", "href") or name.startswith("on") for name, _ in found.attributes)
    assert "default-src 'none'" in html
    assert found.scripts == 2  # the library and ours


def test_what_is_shown_cannot_become_a_tag(evil):
    found = PageParser(evil.html())

    assert "b" not in found.tags
    assert found.options[0]["series"][0]["name"] == EVIL
    shown = EVIL.replace("\x00", "?")
    assert found.words.count(shown) == 10  # titles, heading, text, list, table, captions


def test_in_markdown_too_it_is_text(evil):
    shown = evil.markdown()

    assert "<" not in shown
    assert "\x00" not in shown
    assert "\\|\\*" in shown
    assert "| --- | --- |" in shown


def test_a_number_that_json_does_not_know_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        Chart("c", {"series": [float("nan")]}).html()


def test_a_text_without_end_is_cut():
    assert len(pages.safe("x" * 10_000)) == LONGEST


def test_the_library_comes_with_its_licence():
    static = files(pages.__package__).joinpath("static")

    assert "Apache License" in static.joinpath("LICENSE-echarts").read_text()
    assert "</script" not in static.joinpath("echarts.min.js").read_text("utf-8")
    assert "</script" not in static.joinpath("kit.js").read_text("utf-8")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the browser chromium")
def test_a_browser_draws_every_chart_and_runs_nothing_else(evil, tmp_path):
    (tmp_path / "page.html").write_text(evil.html(), "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom"]

    done = subprocess.run(
        ["chromium", *flags, f"file://{tmp_path / 'page.html'}"],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.stdout.count("<svg") == 2
    assert "CONSOLE" not in done.stderr
