"""One listener, as `listeners` and `advertised.listeners` name it."""

from __future__ import annotations

import dataclasses

from broker.errors import ConfigError

__all__ = ["Listener"]


@dataclasses.dataclass(frozen=True)
class Listener:
    """Where to listen, or what to tell clients: `PLAINTEXT://host:port`; port 0 takes a free one."""

    protocol: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, key: str = "listeners") -> Listener:
        protocol, separator, rest = text.partition("://")
        host, colon, port = rest.rpartition(":")
        if not separator or not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"{key}={text}: expected PLAINTEXT://host:port")
        if protocol.upper() != "PLAINTEXT":
            raise ConfigError(f"{key}={text}: protocol {protocol} is not supported, use PLAINTEXT")
        return cls("PLAINTEXT", host.strip("[]"), int(port))
