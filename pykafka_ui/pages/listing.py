"""A list that is searched, sorted and cut into pages here, so that thousands of rows cost a browser no more."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request

from pykafka_ui.access import own_path

ROWS = 100
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Listing(Generic[T]):
    """One page of a list that was searched and sorted, and the addresses of the others, with all that was asked."""

    path: str
    rows: Sequence[T]
    found: int
    page: int
    pages: int
    sort: str
    asked: Mapping[str, str]

    @property
    def query(self) -> str:
        return self.asked.get("q", "")

    @property
    def hidden(self) -> list[tuple[str, str]]:
        """What a form that searches sends again."""
        return [(name, value) for name, value in self.asked.items() if value and name not in ("q", "page")]

    def address(self, **changed: Any) -> str:
        asked = {**self.asked, **changed}
        kept = {key: of for key, of in asked.items() if of not in ("", None) and (key, str(of)) != ("page", "1")}
        return f"{self.path}?{urlencode(kept)}" if kept else self.path

    def sorted_by(self, column: str) -> str:
        """The address of the list sorted by a column, the other way round if it is sorted by it."""
        return self.address(sort=f"-{column}" if self.sort == column else column, page=1)

    def direction(self, column: str) -> str:
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "none")


def listing(
    request: Request, rows: Iterable[T], keys: Mapping[str, Callable[[T], Any]], sort: str = "name"
) -> Listing[T]:
    """Sort by the column that the address asks for as `sort` (`-column`: the largest first), and take its `page`. A
    column or page that is none is ignored."""
    found, asked = list(rows), dict(request.query_params)
    sort, number = asked.get("sort") or sort, asked.get("page", "")[:9]
    key = keys.get(sort.removeprefix("-"))
    if key is not None:
        found.sort(key=key, reverse=sort.startswith("-"))
    pages = max(math.ceil(len(found) / ROWS), 1)
    page = min(max(int(number) if number.isdecimal() else 1, 1), pages)
    rows = found[(page - 1) * ROWS : page * ROWS]
    return Listing(own_path(request.scope), rows, len(found), page, pages, sort, asked)
