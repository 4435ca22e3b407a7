"""Pages that belong together, and what answers at which path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter

from pykafka_ui.console import Console
from pykafka_ui.render import Renderer

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
