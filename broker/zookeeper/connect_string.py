"""`zookeeper.connect`: `host:port[,host:port…][/chroot]`. Free of kazoo: the console checks its arguments with it."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from broker.errors import ConfigError

DEFAULT_PORT = 2181
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]@,]+)(?::(?P<port>\d+))?")


@dataclass(frozen=True)
class ConnectString:
    """A parsed `zookeeper.connect`. `chroot` is "" or begins, and does not end, with a slash."""

    servers: tuple[tuple[str, int], ...]
    chroot: str = ""

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """Raises ConfigError that shows the right form."""
        servers_text, slash, chroot_text = text.strip().partition("/")
        if not servers_text:
            raise _malformed(text, "it names no server")
        servers = tuple(_parse_server(text, server.strip()) for server in servers_text.split(","))
        return cls(servers, _parse_chroot(text, chroot_text) if slash else "")

    @property
    def hosts(self) -> str:
        """`host:port,host:port`, without the chroot."""
        return ",".join(f"{host}:{port}" for host, port in self.servers)

    def __str__(self) -> str:
        return self.hosts + self.chroot

    def diagnose(self, timeout: float = 1.0) -> str:
        """Why each server cannot be reached, for an error message. Connects to each, for up to `timeout` seconds."""
        return "; ".join(f"{host}:{port}: {_why_unreachable(host, port, timeout)}" for host, port in self.servers)


def _parse_server(text: str, server: str) -> tuple[str, int]:
    match = _HOST_PORT.fullmatch(server)
    if match is None:
        raise _malformed(text, f"{server!r} is not host:port")
    port = int(match["port"]) if match["port"] else DEFAULT_PORT
    if not 0 < port < 65536:
        raise _malformed(text, f"port {port} is not in 1–65535")
    return match["host"], port


def _parse_chroot(text: str, chroot: str) -> str:
    if "," in chroot or ":" in chroot:
        raise _malformed(text, "the chroot is given once, after the last server")
    names = chroot.rstrip("/").split("/")
    if names == [""]:
        return ""
    if any(name in {"", ".", ".."} or not name.isprintable() for name in names):
        raise _malformed(text, f"/{chroot} is not a ZooKeeper path")
    return "/" + "/".join(names)


def _malformed(text: str, reason: str) -> ConfigError:
    return ConfigError(f"zookeeper.connect={text}: {reason}; expected host:port[,host:port…][/chroot]")


def _why_unreachable(host: str, port: int, timeout: float) -> str:
    try:
        with socket.create_connection((host.strip("[]"), port), timeout=timeout):
            return "accepts connections but gives no ZooKeeper session"
    except socket.gaierror:
        return "the host name does not resolve"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)
