"""Parses `listeners`, `advertised.listeners` and `listener.security.protocol.map`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from broker.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_DEFAULT_MAP = {protocol: protocol for protocol in PROTOCOLS}


@dataclasses.dataclass(frozen=True)
class Listener:
    """An address to listen on or to advertise: `NAME://host:port`; port 0 takes a free one."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"

    @classmethod
    def parse(cls, text: str, key: str = "listeners", protocols: Mapping[str, str] = _DEFAULT_MAP) -> Listener:
        """`protocols`: listener name → security protocol. Raises ConfigError."""
        name, separator, rest = text.partition("://")
        host, colon, port = rest.rpartition(":")
        if not separator or not name or not colon or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"{key}={text}: expected PLAINTEXT://host:port")
        name = name.upper()
        if name not in protocols:
            raise ConfigError(
                f"{key}={text}: listener {name} has no security protocol. Add {name}:PROTOCOL to "
                f"listener.security.protocol.map, PROTOCOL one of {', '.join(PROTOCOLS)}"
            )
        return cls(name, host.strip("[]"), int(port), protocols[name])

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def encrypted(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


def parse_protocol_map(entries: Iterable[str]) -> dict[str, str]:
    """`listener.security.protocol.map`: listener name → security protocol. Raises ConfigError."""
    protocols: dict[str, str] = {}
    for entry in entries:
        name, colon, protocol = (part.strip().upper() for part in entry.partition(":"))
        if not colon or not name or protocol not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map={entry}: expected NAME:PROTOCOL, PROTOCOL of {', '.join(PROTOCOLS)}"
            )
        if name in protocols:
            raise ConfigError(f"listener.security.protocol.map: {name} is there twice")
        protocols[name] = protocol
    return protocols


def parse_listeners(texts: Iterable[str], key: str, protocols: Mapping[str, str]) -> list[Listener]:
    """Raises ConfigError, also when a name is used twice."""
    found: dict[str, Listener] = {}
    for text in texts:
        listener = Listener.parse(text, key, protocols)
        if listener.name in found:
            raise ConfigError(
                f"{key}={text}: there is already a listener {listener.name}; give this one another name and add its "
                "protocol to listener.security.protocol.map"
            )
        found[listener.name] = listener
    return list(found.values())


def advertised_listeners(bound: Iterable[Listener], advertised: Iterable[Listener]) -> list[Listener]:
    """The listeners to advertise to clients, by default the bound ones.

    A wildcard address becomes localhost (Kafka refuses to start), and port 0 the bound port.
    """
    by_name = {listener.name: listener for listener in bound}
    chosen = list(advertised) or list(by_name.values())
    return [
        dataclasses.replace(
            listener,
            host="localhost" if listener.host in ("", "0.0.0.0", "::") else listener.host,
            port=listener.port or by_name[listener.name].port,
        )
        for listener in chosen
    ]
