"""A hook of mkdocs: every page's right column lists its parts, and tables of names say so to the style sheet.

A page of decisions has no headings but its own: its parts are the items of its list, which begin in bold or with a
link. A table whose first column is code, as those of options are, gets the mark `data-names`; its cells get the head of
their column, and its names places to be broken at.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from mkdocs.structure.toc import AnchorLink

_ITEM = re.compile(r"<li>(?P<begin>\s*(?:<p>)?<(?:strong|a [^>]*)>(?P<title>.+?)</(?:strong|a)>)", re.DOTALL)
_TABLE = re.compile(r"<table>(?P<head>.*?</thead>)(?P<rows>.*?)</table>", re.DOTALL)
_CELL = re.compile(r"<(?P<kind>t[hd])(?P<given>[^>]*)>(?P<text>.*?)</t[hd]>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_BEFORE_PART = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[._/:,])(?=\w)")
"""Where a name may be broken: `log.<wbr>dirs`, `starting<wbr>Offsets`."""


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """The page with anchors where it has parts without headings, and marked tables. Adds to `page.toc`."""
    headings = page.toc.items[0].children if page.toc.items else []
    if not headings:
        html = _ITEM.sub(lambda item: _anchored(item, headings), html)
    return _TABLE.sub(_marked, html)


def _anchored(item: re.Match[str], headings: list[AnchorLink]) -> str:
    title = unescape(re.sub(r"<[^>]+>", "", item["title"])).rstrip(".,:; ").replace("\n", " ")
    anchor = re.sub(r"\W+", "-", title.lower()).strip("-")
    headings.append(AnchorLink(title, anchor, 2))
    return f'<li id="{anchor}">{item["begin"]}'


def _marked(table: re.Match[str]) -> str:
    heads = [re.sub(r"<[^>]+>", "", cell["text"]) for cell in _CELL.finditer(table["head"])]
    rows = [list(_CELL.finditer(row)) for row in table["rows"].split("</tr>")]
    firsts = [row[0]["text"].strip() for row in rows if row]
    if len(heads) < 3 or not firsts or not all(re.match(r"(<a [^>]*>)?<code>", text) for text in firsts):
        return table[0]
    columns = iter(heads * len(firsts))

    def cell_of(cell: re.Match[str]) -> str:
        text = _CODE.sub(lambda code: _BEFORE_PART.sub("<wbr>", code[0]), cell["text"])
        return f'<td data-head="{next(columns)}"{cell["given"]}>{text}</td>'

    return f"<table data-names>{table['head']}{_CELL.sub(cell_of, table['rows'])}</table>"
