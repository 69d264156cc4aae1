"""Plots and the report: that they show every run, stand alone, and are the same for the same document.

What draws them is imported by the tests: every process of a run collects this file, and only one runs it."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from unit.hossctl.compare.made_up import comparison

from hossctl.choices import ON_KUBERNETES, Load, Mode
from hossctl.compare.document import Comparison
from hossctl.compare.report.changes import compare
from hossctl.compare.report.summary import summarise

if TYPE_CHECKING:
    from hossctl.compare.report.changes import Report
    from hossctl.compare.report.plots import Plot

NAMES = ["throughput-by-workers", "conflicts-by-fill", "overcommit-by-mode", "latency", "utilisation-by-mode"]


def draw(comparison: Comparison) -> "list[Plot]":
    from hossctl.compare.report import plots  # noqa: PLC0415 - matplotlib takes long to import

    return list(plots.draw(summarise(comparison)))


def as_html(comparison: Comparison, report: "Report | None" = None) -> str:
    from hossctl.compare.report import page  # noqa: PLC0415 - matplotlib takes long to import

    return page.as_html(comparison, report)


@pytest.fixture(scope="module")
def small() -> Comparison:
    return comparison(loads=(Load.UNIFORM, Load.OPENB), workers=(1, 2, 4), fills=(0.8, 0.95), repetitions=2)


@pytest.fixture(scope="module")
def tiny() -> Comparison:
    """For what plots do not matter to: one panel each."""
    return comparison(loads=(Load.UNIFORM,), workers=(1, 2), fills=(0.8,), repetitions=2)


@pytest.fixture(scope="module")
def drawn(small: Comparison) -> "list[Plot]":
    return draw(small)


@pytest.fixture(scope="module")
def html(small: Comparison) -> str:
    return as_html(small)


def test_there_are_five_plots_as_png_and_svg(drawn):
    assert [plot.name for plot in drawn] == NAMES
    assert drawn[0].png().startswith(b"\x89PNG")
    for plot in drawn:
        assert ET.fromstring(plot.svg()).tag.endswith("svg")


def test_modes_on_kubernetes_have_a_plot_of_their_own_and_are_in_no_other():
    peers = comparison(
        modes=ON_KUBERNETES, loads=(Load.UNIFORM,), workers=(1, 2), fills=(0.95,), repetitions=2
    )
    (drawn,) = draw(peers)
    assert drawn.name == "kubernetes"
    for text in ("kube-scheduler, 1", "HOSS, Kubernetes, 2", "pods/s"):
        assert text in drawn.svg().decode()
    page = as_html(peers)
    assert "<dt>HOSS, Kubernetes</dt>" in page
    assert re.search(r'<td>kube-scheduler</td><td class="number">1</td>.*<td class="number">-', page)


def test_the_same_document_gives_the_same_files(tiny):
    once, again = (draw(tiny) for _ in range(2))
    assert len(once) == len(again) == len(NAMES)
    assert [plot.svg() for plot in once] == [plot.svg() for plot in again]
    assert once[0].png() == again[0].png()


def test_texts_of_a_plot_name_axes_with_units_and_every_load(drawn):
    svg = drawn[0].svg().decode()
    for text in ("pods/s", "workers", "uniform, 500 nodes", "openb, 500 nodes", "uncoordinated", "HOSS"):
        assert text in svg


@pytest.mark.parametrize(
    "fields",
    [
        {"modes": (Mode.HOSS,), "loads": (Load.UNIFORM,)},
        {"modes": (Mode.SINGLE,), "loads": (Load.OPENB,)},
        {"loads": (Load.UNIFORM,), "workers": (1,), "fills": (0.8,), "repetitions": 1},
        {"repetitions": 0},
        {
            "modes": (Mode.HOSS, "mine.py:Mode"),
            "loads": ("mine.py:Load",),
            "schedulers": ("default", "mine.py:Scheduler"),
            "workers": (2,),
            "fills": (0.95,),
            "repetitions": 2,
        },
        pytest.param(
            {"loads": tuple(Load), "workers": (1, 2), "fills": (0.95,), "repetitions": 1},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_comparison_of_any_extent_can_be_drawn_and_reported(fields):
    page = as_html(comparison(**fields))
    assert "<title>" in page
    assert page.count("<svg") <= len(NAMES)


def test_bare_runs_can_be_drawn(tiny):
    update = {
        "latency": {},
        "latency_curve": [],
        "utilisation": {},
        "fragmentation": {},
        "services": {},
        "workers": [],
    }
    bare = tiny.model_copy(update={"runs": [run.model_copy(update=update) for run in tiny.runs]})
    assert "<title>" in as_html(bare)


def test_the_report_asks_for_nothing_from_elsewhere(html):
    urls = re.findall(r'(?:src|href|url\()\s*=?\s*"?([^"\s)>]+)', html)
    assert [url for url in urls if not url.startswith("#")] == []
    assert "@import" not in html
    assert "<link" not in html
    assert not re.search(r"https?://(?!www\.w3\.org/)", html)  # names of XML's own spaces are not fetched


def test_the_report_has_every_run_definition_version_and_the_command(small, html):
    assert html.count("<tr><td class=") == len(small.runs)
    for text in (
        small.command,
        small.machine.cpu,
        "6.2.14",
        "What the figures mean",
        "wasted_decisions",
        small.notes[0],
    ):
        assert text in html
    assert html.count("<svg") == len(NAMES)


def test_the_plots_take_the_colours_of_the_page(html):
    drawing = html[html.index("<svg") : html.rindex("</svg>")]
    assert "var(--multi-hoss)" in drawing
    assert "#0072b2" not in drawing
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_no_two_plots_share_an_id(html):
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_what_the_page_refers_to_inside_is_there(html):
    ids = set(re.findall(r'\bid="([^"]+)"', html))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', html)) <= ids


class _Balance(HTMLParser):
    """Fails where an element is closed that was not the last one opened."""

    empty = frozenset({"meta", "br", "use", "path", "rect", "line", "img", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.empty:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.empty:
            assert self.open.pop() == tag


def test_every_element_of_the_page_is_closed(html):
    balance = _Balance()
    balance.feed(html)
    assert balance.open == []


def test_what_others_wrote_into_a_document_is_text_and_no_markup(tiny):
    broken = tiny.runs[0].model_copy(update={"complete": False, "violations": ["<script>alert(1)</script>"]})
    text = as_html(tiny.model_copy(update={"runs": [broken, *tiny.runs[1:]], "notes": ["<b>bold</b>"]}))
    assert "<script>alert" not in text
    assert "&lt;b&gt;bold" in text


def test_interrupted_runs_are_marked_at_the_top_and_in_the_table(tiny):
    broken = tiny.runs[0].model_copy(update={"complete": False})
    text = as_html(tiny.model_copy(update={"runs": [broken, *tiny.runs[1:]], "finished": ""}))
    assert text.count('<tr class="broken">') == 1
    assert f"Broken off: 1 of {len(tiny.runs)} runs." in text
    assert "Interrupted before its end" in text


def test_changes_since_an_earlier_comparison_stand_in_the_report():
    before, now = (
        comparison(loads=(Load.UNIFORM,), workers=(1, 2), fills=(0.8,), repetitions=3, speed=speed, seed=seed)
        for speed, seed in ((3.0, 4), (1.0, 1))
    )
    text = as_html(now, compare(before, now))
    assert "Against an earlier comparison" in text
    assert '<td class="alarm">worse</td>' in text


def test_commands_that_draw_nothing_do_not_wait_for_matplotlib():
    code = "import sys, hossctl.commands.bench.throughput; sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
