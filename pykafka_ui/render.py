"""Makes pages from templates: with escaping, and with numbers and times as people read them.

Every number, size, duration and time of a page is written by a filter from here. What it rounds is whole in a hint. The
line of a sparkline is made here, too, so that a list of a hundred of them needs no script.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from broker.tools.output import counted
from pykafka_ui.access import own_path
from pykafka_ui.records.json_text import json_text, visible
from pykafka_ui.seen.history import STEP_S

if TYPE_CHECKING:
    from pykafka_ui.console import Console
import math
from collections.abc import Iterator
from itertools import groupby

from broker.client.cluster_metadata import UnknownTopic
from broker.client.denials import DENIED
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from pykafka_ui.loads.places import UnknownPlace

STATIC = Path(__file__).parent / "static"


class Renderer:
    def __init__(self, console: Console, version: str, *, allow_changes: bool = False) -> None:
        self._console = console
        self._templates = templates()
        self._templates.globals["static"] = static_address
        self._templates.globals |= {"version": version, "allow_changes": allow_changes, "step_s": STEP_S}
        self._templates.globals["has_loads"] = console.loads is not None

    def page(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        every: int = 5,
        problem: Exception | None = None,
        **values: Any,
    ) -> Response:
        """`every`: the seconds after which the page is asked for again; 0 for never. `problem`: what could not be done
        or shown; the page says it first, and the status is its."""
        address = own_path(request.scope) + (f"?{request.url.query}" if request.url.query else "")
        status, told = (status_of(problem), str(problem)) if problem else (status, "")
        seen = self._console.sampler.snapshot
        values = {"seen": seen, "address": address, "every": every, "problem": told, **values}
        html = self._templates.get_template(template).render(values)
        return HTMLResponse(html.encode(errors="replace"), status)  # JSON may have half a character

    def error(self, request: Request, status: int, message: str) -> Response:
        """It asks again where that may help (a group may be away for a moment) and sends nothing again."""
        every = {404: 10}.get(status, 5 if status >= 500 else 0) if request.method == "GET" else 0
        return self.page(request, "error.html", status=status, message=message, every=every)


def templates() -> jinja2.Environment:
    """The templates with their filters; what a page does not give is an error."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("pykafka_ui"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    filters = (
        count,
        counted,
        size,
        segment,
        duration,
        moment,
        setting,
        ago,
        visible,
        sparkline_path,
        spark_words,
        bar_places,
    )
    made.filters |= {one.__name__: one for one in filters}
    made.filters["tojson_text"] = lambda data: visible(json_text(data))
    return made


@functools.cache
def static_version(name: str) -> str:
    """Of the content of a static file: a new one is at a new address. "" if there is none."""
    file = STATIC / name
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12] if file.is_file() else ""


def static_address(name: str) -> str:
    """Of a static file, which a browser may keep for ever."""
    return f"/static/{name}?v={static_version(name)}"


def count(number: float | None) -> str:
    """1234567 → "1,234,567"; below ten with one decimal; "?" while it is not known."""
    if number is None:
        return "?"
    if isinstance(number, int):
        return f"{number:,}"  # offsets have more digits than a float
    return f"{number:,.1f}" if 0 < number < 10 and number != int(number) else f"{number:,.0f}"


def spark_words(points: Sequence[float | None]) -> str:
    """What a sparkline shows, for who does not see it."""
    newest = points[-1] if points and known(points[-1:]) else None
    return f"now {count(newest)}, at most {count(max(known(points), default=None))}"


def bar_places(parts: Sequence[tuple[str, float, str]]) -> list[tuple[str, float, float]]:
    """(class, x, width) in a bar of 100 of each (class, share of it 0..1, words). No share goes beyond its end."""
    places, at = [], 0.0
    for name, share, _ in parts:
        width = round(min(max(share, 0.0) * 100, 100 - at), 2)
        places.append((name, round(at, 2), width))
        at += width
    return places


def size(number: float | None) -> str:
    """Bytes with a unit of 1024, and in a hint all of them; "?" for -1 and None."""
    return "?" if number is None or number < 0 else _hinted(size_text(number), f"{count(number)} bytes")


def duration(seconds: float) -> str:
    """Two units at most, "3 h 20 min", and in a hint all seconds."""
    return _hinted(duration_text(seconds), f"{seconds:,.3f}".rstrip("0").rstrip(".") + " s")


def moment(ms: int, *, exact: bool = False) -> str:
    """A time in UTC, which it says, with seconds or `exact` with ms; "" for -1. In a hint the ms since 1970."""
    if ms < 0:
        return ""
    machine = moment_text(ms, exact=True).replace(" UTC", "Z").replace(" ", "T")
    shown = Markup('<time datetime="{}" title="{} ms since 1970">{}</time>')
    return shown.format(machine, ms, moment_text(ms, exact=exact))


def ago(ms: int, now_ms: int) -> str:
    """How long before `now_ms` a time is, "3 min ago", and in a hint the time; one that is to come is written out."""
    if ms > now_ms + 60_000:
        return moment(ms)
    return _hinted(f"{duration_text(max(now_ms - ms, 0) / 1000)} ago", moment_text(ms, exact=True))


def setting(name: str, value: str | None) -> str:
    """A value of a setting: durations and sizes for people, and beside them what was set."""
    meant = setting_text(name, value or "")
    return Markup("{} <small>{}</small>").format(meant, value) if meant else value or ""


def size_text(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}".replace(".0 ", " ")
        number /= 1024
    raise AssertionError


def duration_text(seconds: float) -> str:
    for length, unit, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= length:
            rest = int(seconds % length // part)
            return f"{seconds // length:.0f} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.0f} s"


def moment_text(ms: int, *, exact: bool = False) -> str:
    """For a sentence; a time that no calendar has is in ms."""
    try:
        found = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms since 1970"
    return found.strftime("%Y-%m-%d %H:%M:%S") + (f".{ms % 1000:03d}" if exact else "") + " UTC"


_UNITS_MS = {"ms": 1, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}
_LARGEST = 2**63 - 1


def setting_text(name: str, value: str) -> str:
    """What a number means to people, "7 d" or "1 GiB"; "" where it says so itself."""
    unit = name.rpartition(".")[2]
    if (unit != "bytes" and unit not in _UNITS_MS) or not value.removeprefix("-").isdecimal() or len(value) > 20:
        return ""
    number = int(value)
    if number == _LARGEST or (number == -1 and "retention" in name):
        return "no limit"
    if unit == "bytes":
        return size_text(number) if number >= 1024 else ""
    ms = number * _UNITS_MS[unit]
    if ms % 1000 or ms < 1000:
        return f"{ms / 1000:g} s" if ms > 1000 else ""
    return duration_text(ms / 1000)


def kept_text(settings: Mapping[str, str]) -> str:
    """How long records stay, by the settings of their topic; "" where they are not known."""
    if not settings:
        return ""
    policy, limits = settings.get("cleanup.policy", "").split(","), []
    if "delete" in policy:
        limits = [
            (setting_text(name, settings[name]) or f"{settings[name]} {unit}") + where
            for name, unit, where in (("retention.ms", "ms", ""), ("retention.bytes", "B", " a partition"))
            if settings.get(name, "-1") != "-1"
        ]
    found = " or ".join(limits)
    if "compact" in policy:
        return "the newest of each key" + (f", for {found}" if found else "")
    return found or "for ever"


def segment(name: str) -> str:
    return quote(name, safe="")


def _hinted(text: str, exact: str) -> str:
    return Markup('<span title="{}">{}</span>').format(exact, text)


WIDTH, HEIGHT = 96, 20
"""Of the drawing, in its own units."""
_MARGIN, _DASH = 2, 1.5
MOST_POINTS = 48
"""More are too narrow to be seen: of those that share a place the highest is drawn."""


def known(points: Sequence[float | None]) -> list[float]:
    """Without gaps, in which a number that is none (NaN, infinite) counts."""
    return [one for one in points if one is not None and math.isfinite(one)]


def sparkline_path(points: Sequence[float | None]) -> str:
    """From 0 at the bottom to the highest point at the top; a gap stays one; "" where nothing is known.

    One point between two gaps is a dash, as long as can be seen.
    """
    shown = list(_thinned(points))
    highest = max(known(shown), default=None)
    if highest is None:
        return ""
    step = WIDTH / max(len(shown) - 1, 1)
    scale = highest if highest > 0 else 1.0
    parts = []
    for is_known, run in groupby(enumerate(shown), lambda at: at[1] is not None):
        if is_known:
            line = [(at * step, _height(max(value or 0.0, 0.0) / scale)) for at, value in run]
            if len(line) == 1:
                (x, y) = line[0]
                line = [(max(x - _DASH, 0.0), y), (min(x + _DASH, WIDTH), y)]
            parts.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line))
    return "".join(parts)


def _height(share: float) -> float:
    return HEIGHT - _MARGIN - share * (HEIGHT - 2 * _MARGIN)


def _thinned(points: Sequence[float | None]) -> Iterator[float | None]:
    width = max(math.ceil(len(points) / MOST_POINTS), 1)
    for at in range(0, len(points), width):
        yield max(known(points[at : at + width]), default=None)


_STATUS = {
    **dict.fromkeys(DENIED, 403),
    ErrorCode.unknown_topic_or_partition: 404,
    ErrorCode.group_id_not_found: 404,
    ErrorCode.topic_already_exists: 409,
    ErrorCode.non_empty_group: 409,
}


def status_of(error: Exception) -> int:
    if isinstance(error, UnknownTopic | UnknownPlace):
        return 404
    if isinstance(error, BrokerError):
        return _STATUS.get(error.code, 502 if error.retriable or error.code is ErrorCode.unknown_server_error else 400)
    if isinstance(error, UnsupportedVersion):
        return 501
    return 400 if isinstance(error, ValueError) else 502
