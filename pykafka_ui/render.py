"""Makes pages from templates: with escaping, and with numbers as people read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from pykafka_ui.console import Console
from pykafka_ui.history import STEP_S

__all__ = ["Renderer", "count", "duration", "moment", "segment", "size"]


class Renderer:
    """Templates with escaping, and what they all need."""

    def __init__(self, console: Console, version: str, *, allow_changes: bool = False) -> None:
        self._console = console
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("pykafka_ui"), autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        self._templates.undefined = jinja2.StrictUndefined
        self._templates.filters |= {
            "count": count,
            "size": size,
            "segment": segment,
            "duration": duration,
            "moment": moment,
        }
        self._templates.filters["tojson_text"] = lambda data: json.dumps(data, ensure_ascii=False)
        self._templates.globals |= {"version": version, "allow_changes": allow_changes, "step_s": STEP_S}
        self._templates.globals["has_loads"] = console.loads is not None

    def page(self, request: Request, template: str, *, status: int = 200, every: int = 5, **values: Any) -> Response:
        """`every`: the seconds after which the page is asked for again; 0 for never."""
        address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        values = {"seen": self._console.sampler.snapshot, "address": address, "every": every, **values}
        html = self._templates.get_template(template).render(values)
        return HTMLResponse(html.encode(errors="replace"), status)  # JSON may have half a character

    def error(self, request: Request, status: int, message: str) -> Response:
        """It asks again where that may help (a group may be away for a moment) and sends nothing again."""
        every = {404: 10}.get(status, 5 if status >= 500 else 0) if request.method == "GET" else 0
        return self.page(request, "error.html", status=status, message=message, every=every)


def count(number: float) -> str:
    """1234567 → "1,234,567"; below ten with one decimal."""
    return f"{number:,.1f}" if 0 < number < 10 and number != int(number) else f"{number:,.0f}"


def size(number: float) -> str:
    """Bytes with a unit of 1024; "?" for -1."""
    if number < 0:
        return "?"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def duration(seconds: float) -> str:
    """Two units at most: "3 h 20 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 // 3600:.0f} h"


def moment(ms: int) -> str:
    """UTC with seconds; "" for -1."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms >= 0 else ""


def segment(name: str) -> str:
    """A name as one part of an address."""
    return quote(name, safe="")
