"""Pages: headings, text, tables and charts, as one HTML file that works offline, or as Markdown.

    page = Page("runs/a: timeline", [Text("2 processes"), Chart("The whole run", option)])
    page.html(); page.markdown()

A chart is an option of Apache ECharts; `static/` holds that library, the shapes that are ours, and
the template of a page. Everything shown may come from a run folder, so all of it is escaped here.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import NamedTuple, TypeAlias

from rookery.report.number_format import printable

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | int | bool | None"
Option: TypeAlias = dict[str, Json]
PagePart: TypeAlias = "Heading | Text | Points | Table | Chart"


class Heading(NamedTuple):
    text: str

    def html(self) -> str:
        return f"<h2>{safe(self.text)}</h2>"

    def markdown(self) -> str:
        return f"## {plain(self.text)}"


class Text(NamedTuple):
    text: str

    def html(self) -> str:
        return f"<p>{safe(self.text)}</p>"

    def markdown(self) -> str:
        return plain(self.text)


class Points(NamedTuple):
    """A list of sentences."""

    texts: Sequence[str]

    def html(self) -> str:
        return f"<ul>{''.join(f'<li>{safe(text)}</li>' for text in self.texts)}</ul>"

    def markdown(self) -> str:
        return "\n".join(f"- {plain(text)}" for text in self.texts)


class Table(NamedTuple):
    """A table: its first row is the head, its first column names the rows."""

    title: str
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        head, *rows = self.rows
        top = "".join(f'<th scope="col">{safe(cell)}</th>' for cell in head)
        body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
        table = f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'
        return f"<h3>{safe(self.title)}</h3>{table}" if self.title else table

    def markdown(self) -> str:
        head, *rows = [[plain(cell) for cell in row] for row in self.rows]
        lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
        return "\n".join([f"### {plain(self.title)}", "", *lines] if self.title else lines)


class Chart(NamedTuple):
    """A chart, an option of ECharts; pages in Markdown leave it out."""

    caption: str
    option: Option
    height: int = 360  # pixels

    def html(self) -> str:
        data = json.dumps(self.option, allow_nan=False, separators=(",", ":"))
        data = data.replace("<", "\\u003c")  # no tag, such as that of the script's end
        return (
            f"<figure><figcaption>{safe(self.caption)}</figcaption>"
            f'<div role="img" aria-label="{safe(self.caption)}" style="height:{self.height}px">'
            f'</div><script type="application/json">{data}</script>'
            "</figure>"
        )

    def markdown(self) -> str:
        return ""


class Page(NamedTuple):
    """A page about runs, as HTML or Markdown."""

    title: str
    parts: Sequence[PagePart]

    def html(self) -> str:
        static = files(__package__).joinpath("static")
        scripts = {name: static.joinpath(file).read_text("utf-8") for name, file in SCRIPTS.items()}
        body = [f"<h1>{safe(self.title)}</h1>", *(part.html() for part in self.parts)]
        template = Template(static.joinpath("page.html").read_text("utf-8"))
        return template.substitute(scripts, title=safe(self.title), body="\n".join(body))

    def markdown(self) -> str:
        parts = [f"# {plain(self.title)}", *(part.markdown() for part in self.parts)]
        return "\n\n".join(part for part in parts if part) + "\n"


SCRIPTS = {"echarts": "echarts.min.js", "kit": "kit.js"}


def safe(text: str) -> str:
    """Escapes a text for HTML."""
    return escape(printable(text))


def plain(text: str) -> str:
    """Escapes a text for Markdown, which may contain HTML."""
    marked = "".join(f"\\{sign}" if sign in "\\`*[]|" else sign for sign in printable(text))
    return marked.replace("&", "&amp;").replace("<", "&lt;")


def _row(row: Sequence[str]) -> str:
    name, *cells = map(safe, row)
    return f'<th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells)
