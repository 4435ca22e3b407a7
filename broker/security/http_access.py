"""Which HTTP requests a server takes that has no login, or whose login a browser sends by itself.

Every page that a browser shows may send requests to a server on loopback. Browsers say where a request comes from, and
what the server is called in the page's address; programs say neither. Used by the console in the browser and by the
schema registry of notebooks. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple


class HttpRequest(NamedTuple):
    """A request; the names of `headers` are in lower case."""

    method: str
    query: str
    headers: Mapping[str, str]


class Refused(NamedTuple):
    """A status of HTTP, and why."""

    status: int
    why: str


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refused(asked: HttpRequest, *, loopback_only: bool) -> Refused | None:
    """Why a request is not answered; None if it is.

    - `loopback_only`, of a server that listens there: a name that is not of loopback is another site's, which points
      here (DNS rebinding).
    - A page of another site can neither read nor send anything. A link may lead here from it, without a query: so no
      other site can make this server search.
    """
    host = asked.headers.get("host", "")
    if loopback_only and not is_loopback(_without_port(host)):
        return Refused(421, f"this server is not called {host}: use localhost")
    if not _is_same_site(asked, host):
        return Refused(403, "refused: the request comes from a page of another site")
    return None


def _is_same_site(asked: HttpRequest, host: str) -> bool:
    """Browsers send the first of these headers with every request."""
    site = asked.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        is_link = asked.method == "GET" and asked.headers.get("sec-fetch-mode") == "navigate"
        return is_link and not asked.query
    origin = asked.headers.get("origin")
    return origin is None or origin.partition("://")[2] == host


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
