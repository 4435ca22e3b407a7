"""A list that is searched, sorted and cut into pages here, so that thousands of rows cost a browser no more."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

ROWS = 100
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Listing(Generic[T]):
    """One page of a list that was searched and sorted, and the addresses of its other pages."""

    path: str
    rows: Sequence[T]
    found: int
    page: int
    pages: int
    query: str
    sort: str
    extra: tuple[tuple[str, str], ...] = ()

    def address(self, **changed: Any) -> str:
        asked = {"q": self.query, "sort": self.sort, "page": self.page, **dict(self.extra), **changed}
        kept = {
            name: value for name, value in asked.items() if value not in ("", None) and (name, value) != ("page", 1)
        }
        return f"{self.path}?{urlencode(kept)}" if kept else self.path

    def sorted_by(self, column: str) -> str:
        """The address of the list sorted by a column, the other way round if it is sorted by it."""
        return self.address(sort=f"-{column}" if self.sort == column else column, page=1)

    def direction(self, column: str) -> str:
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "none")


def listing(
    path: str,
    rows: Iterable[T],
    keys: dict[str, Callable[[T], Any]],
    *,
    sort: str,
    page: int,
    query: str = "",
    extra: tuple[tuple[str, str], ...] = (),
) -> Listing[T]:
    """Sort by the column `sort` (`-column`: the largest first), and take page `page`. An unknown column is ignored."""
    found = list(rows)
    key = keys.get(sort.removeprefix("-"))
    if key is not None:
        found.sort(key=key, reverse=sort.startswith("-"))
    pages = max(math.ceil(len(found) / ROWS), 1)
    page = min(max(page, 1), pages)
    return Listing(path, found[(page - 1) * ROWS : page * ROWS], len(found), page, pages, query, sort, extra)
