"""What pages have in common: what answers at which path, and lists that are searched, sorted and cut into pages.

That is done here, so that thousands of rows cost a browser no more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter
from starlette.requests import Request

from broker.protocol.described_config import ConfigEntry, ConfigSource
from pykafka_ui.access import own_path
from pykafka_ui.console import Console
from pykafka_ui.render import Renderer, setting_text

ROWS = 100
T = TypeVar("T")
Key = str | Callable[[Any], Any]
Answer = TypeVar("Answer", bound=Callable[..., Any])
_ROUTES: dict[object, tuple[str, str]] = {}
"""Function → (path, HTTP method)."""


def route(path: str, method: str = "GET") -> Callable[[Answer], Answer]:
    """Marks what answers at a path, a method of a `PageSet`."""

    def mark(answer: Answer) -> Answer:
        _ROUTES[answer] = path, method
        return answer

    return mark


class PageSet:
    """`router` has what is marked with `route`, in that order."""

    def __init__(self, console: Console, render: Renderer) -> None:
        self._console = console
        self._render = render.page
        self.router = APIRouter(include_in_schema=False)
        for name, answer in vars(type(self)).items():
            if callable(answer) and answer in _ROUTES:
                path, method = _ROUTES[answer]
                self.router.add_api_route(path, getattr(self, name), methods=[method])


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


def listing(request: Request, rows: Iterable[T], keys: Mapping[str, Key], sort: str = "name") -> Listing[T]:
    """Sort by the column that the address asks for as `sort` (`-column`: the largest first), and take its `page`. A
    column or page that is none is ignored. `keys`: by what a column is sorted, an attribute or what a function gives;
    None is the least."""
    found, asked = list(rows), dict(request.query_params)
    sort, number = asked.get("sort") or sort, asked.get("page", "")[:9]
    if key := keys.get(sort.removeprefix("-")):
        value_of = attrgetter(key) if isinstance(key, str) else key
        found.sort(key=lambda row: ((value := value_of(row)) is not None, value), reverse=sort.startswith("-"))
    pages = max(math.ceil(len(found) / ROWS), 1)
    page = min(max(int(number) if number.isdecimal() else 1, 1), pages)
    rows = found[(page - 1) * ROWS : page * ROWS]
    return Listing(own_path(request.scope), rows, len(found), page, pages, sort, asked)


def settings_listing(request: Request, entries: Iterable[ConfigEntry], *, changed: bool) -> Listing[ConfigEntry]:
    """Those whose name, value or documentation has the text; with `changed` only those that somebody has set."""
    needle = request.query_params.get("q", "").strip().casefold()

    def is_wanted(one: ConfigEntry) -> bool:
        if changed and one.source is ConfigSource.DEFAULT_CONFIG:
            return False
        value = "" if one.sensitive else one.value or ""
        texts = (one.name, value, setting_text(one.name, value), one.documentation or "")
        return any(needle in text.casefold() for text in texts)

    keys: Mapping[str, Key] = {"name": "name", "source": lambda one: (one.source.name, one.name)}
    return listing(request, filter(is_wanted, entries), keys)
