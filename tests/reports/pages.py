"""Reads a page as a browser would, without one."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """The data and the first table of a page, and every address that it names."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.data: dict[str, Any] = {}
        self.rows: list[list[tuple[str, str | None]]] = []
        self.text = ""
        self.addresses: list[str] = []
        self._script: str | None = None
        self._table = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [value for key, value in attrs if key in ("src", "href", "srcset") and value]
        if tag == "script":
            self._script = found.get("id") or ""
        if tag == "section":
            self._table = found.get("id") == "summary"
        if self._table and tag == "tr":
            self.rows.append([])
        if self._table and tag in ("td", "th"):
            self.rows[-1].append(("", found.get("data-value")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None
        if tag == "section":
            self._table = False

    def handle_data(self, data: str) -> None:
        if self._script == "data":
            self.data = json.loads(data)
        elif self._script is None:
            self.text += data
            if self._table and self.rows and self.rows[-1]:
                text, value = self.rows[-1][-1]
                self.rows[-1][-1] = (text + data, value)
