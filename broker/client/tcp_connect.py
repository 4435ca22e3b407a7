"""The way to a broker: the addresses of its name, or a proxy. Sockets are connected, and non-blocking.

A name is looked up for every connection, because the addresses behind a load balancer change. Called by
broker_connection.py, which tries the ways one after the other until a broker answers on one.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from broker.errors import ConfigError, ConnectionFailed
from broker.keep_alive import keep_alive

if TYPE_CHECKING:
    from python_socks.sync import Proxy

USE_ALL, CANONICAL = "use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"
"""The values of client.dns.lookup."""

_SCHEMES: Final = ("socks5", "http")
_NAMED: Final = "socks5://[user:password@]host:port or http://[user:password@]host:port"

Dial = Callable[[], socket.socket]


def proxy_complaint(url: str | None) -> str | None:
    """What is wrong with the value of proxy.url, without its password; None if nothing is."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        well = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port is not None
    except ValueError:
        well = False
    return None if well and not parts.path.strip("/") else f"must be {_NAMED}"


def ways(
    host: str, port: int, timeout_s: float, proxy_url: str | None = None, *, silent_s: float
) -> Iterator[tuple[str, Dial]]:
    """Each address of `host` with what connects to it; with a proxy, which looks up names itself, only the proxy.

    A connection breaks when its other host acknowledges nothing for `silent_s`.

    Raises ConnectionFailed for a name without an address. Each connects within `timeout_s`, or raises ConnectionFailed.
    """
    if proxy_url is not None:
        yield "the proxy", partial(_through, _proxy(proxy_url), urlsplit(proxy_url), host, port, timeout_s, silent_s)
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError, OverflowError) as error:  # the last two: a host or port that cannot be one
        raise ConnectionFailed(f"no connection to {host}:{port}: {error}") from error
    for family, kind, protocol, _, address in found:
        made = partial(socket.socket, family, kind, protocol)
        yield str(address[0]), partial(_connect, made, address, f"{host}:{port}", timeout_s, silent_s)


def canonical(addresses: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """The canonical name of every address of these hosts, as Kafka has it for Kerberos; a host without one stays."""
    named: list[tuple[str, int]] = []
    for host, port in addresses:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            named.append((host, port))  # connecting says what is wrong with it
            continue
        for ip in (str(row[4][0]) for row in found):
            name = ip
            with contextlib.suppress(OSError):
                name = socket.gethostbyaddr(ip)[0]
            named.append((name, port))
    return list(dict.fromkeys(named))


def _connect(
    make: Callable[[], socket.socket], to: Any, named: str, timeout_s: float, silent_s: float
) -> socket.socket:
    sock = None
    try:
        sock = make()  # fails for a family that this machine does not have
        sock.settimeout(timeout_s)
        sock.connect(to)
        return _ready(sock, silent_s)
    except (OSError, ValueError, OverflowError) as error:
        if sock is not None:
            sock.close()
        if isinstance(error, TimeoutError):
            raise ConnectionFailed(f"no connection to {named} within {timeout_s:g} s") from None
        raise ConnectionFailed(f"no connection to {named}: {error}") from error


def _proxy(url: str) -> Proxy:
    try:
        from python_socks.sync import Proxy
    except ImportError:
        raise ConfigError("proxy.url needs python-socks: pip install 'pykafka-spark[proxy]'") from None
    return Proxy.from_url(url, rdns=True)


def _through(proxy: Proxy, url: SplitResult, host: str, port: int, timeout_s: float, silent_s: float) -> socket.socket:
    try:
        return _ready(proxy.connect(host, port, timeout=timeout_s), silent_s)
    except Exception as error:  # the library's own have no common base that it documents
        where = f"the proxy {url.scheme}://{url.hostname}:{url.port} (proxy.url)"
        raise ConnectionFailed(f"no connection to {host}:{port} through {where}: {error}") from error


def _ready(sock: socket.socket, silent_s: float) -> socket.socket:
    keep_alive(sock, silent_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)  # it waits with poll(), and only when nothing can be moved
    return sock
