"""What a page holds: its words, and the options of its charts."""

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br"}


class PageParser(HTMLParser):
    """Reads a page; fails where tags do not match."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []  # of everything but scripts and styles
        self.options: list[dict[str, Any]] = []
        self.scripts = 0  # that run
        self._is_data = False
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._is_data = ("type", "application/json") in attrs
        self.scripts += tag == "script" and not self._is_data
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._is_data and self.open[-1:] == ["script"]:
            self.options.append(json.loads(data))
        elif self.open and self.open[-1] not in ("script", "style") and data.strip():
            self.words.append(data.strip())
