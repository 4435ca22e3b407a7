"""Text to typed values: the options of one read or write, looked up by name in any case.

A value that cannot be used raises ConfigError, which names the option, the value given and the values allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from spark_connector.options.option_table import KAFKA_PREFIX, Option, default

_MAX_LONG = 2**63 - 1
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_SIZE = re.compile(r"(\d{1,19})\s*(?:([kmgtp])b?|b)?", re.ASCII)
_UNIT_MS = {"us": 0.001, "ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionValues:
    """The user's options by lower-case name, without blanks around the values."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value).strip() for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """The value; None when the option is not set."""
        return self._values.get(name.lower())

    def plain(self, declared: Iterable[Option]) -> dict[str, Any]:
        """The options whose kind is declared, by the name of their field."""
        found = {}
        for option in declared:
            if option.kind is not None:
                bound = {"least": option.least} if option.kind == "long" else {}
                found[option.field] = getattr(self, option.kind)(option.name, **bound)
        return found

    def boolean(self, name: str) -> bool:
        """`true` or `false` in any case; the table's default when unset."""
        value = self._or_default(name)
        if value.lower() not in {"true", "false"}:
            raise ConfigError(f"Option '{name}' must be true or false, not '{value}'")
        return value.lower() == "true"

    def long(self, name: str, *, least: int) -> int:
        """An integer ≥ `least`; the table's default when unset."""
        return _parse_long(name, self._or_default(name), least)

    def optional_long(self, name: str, *, least: int = 1) -> int | None:
        """An integer ≥ `least`; None when unset."""
        return self.long(name, least=least) if name in self else None

    def bytes(self, name: str, *, least: int = 0) -> int:
        """A size ≥ `least` in Spark's notation (`500k`, `64m`, `1g`: powers of 1024; bare: bytes), or the default."""
        value = self._or_default(name)
        match = _SIZE.fullmatch(value.lower())
        if match is None:
            raise ConfigError(f"Option '{name}' must be a size in bytes, or like 500k, 64m or 1g, not '{value}'")
        return _parse_long(name, str(int(match[1]) << (10 * "bkmgtp".index(match[2] or "b"))), least)

    def optional_bytes(self, name: str) -> int | None:
        """A size > 0 in the same notation; None when unset."""
        return self.bytes(name, least=1) if name in self else None

    def duration_ms(self, name: str) -> int:
        """A duration in Spark's notation (`500ms`, `10s`, `15m`, `2h`); a bare number is milliseconds."""
        value = self._or_default(name)
        match = _DURATION.fullmatch(value.lower())
        if match is None or match[2] not in _UNIT_MS:
            raise ConfigError(f"Option '{name}' must be a time like 500ms, 10s, 15m or 2h, not '{value}'")
        return int(int(match[1]) * _UNIT_MS[match[2]])

    def one_of(self, name: str, choices: tuple[str, ...]) -> str:
        """One of `choices`, given in any case, returned in lower case; the table's default when unset."""
        value = self._or_default(name)
        if value.lower() not in choices:
            raise ConfigError(f"Option '{name}' must be {' or '.join(choices)}, not '{value}'")
        return value.lower()

    def client_settings(
        self, role: str, ours: Mapping[str, str], rejected: Mapping[str, str]
    ) -> tuple[ClientSettings, frozenset[str]]:
        """The settings of the Kafka client, and the names of the properties that the user set (`kafka.*`).

        The user's properties win over `ours`. `rejected` maps properties that must not be set to the reason. `role`
        (consumer or producer) is used in messages. Equal options give equal, hashable settings.
        """
        properties = {n[len(KAFKA_PREFIX) :]: v for n, v in self._values.items() if n.startswith(KAFKA_PREFIX)}
        for name, why in rejected.items():
            if name in properties:
                raise ConfigError(f"Kafka option '{name}' {why}")
        if not properties.get("bootstrap.servers"):
            raise ConfigError(
                f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {role}, "
                "e.g. 'localhost:9092'"
            )
        try:
            return ClientSettings.from_properties({**ours, **properties}), frozenset(properties)
        except ConfigError as error:
            raise ConfigError(f"Options of the Kafka client ('kafka.*'): {error}") from None

    def store_options(self) -> dict[str, str]:
        """The options that `offset_store.base.open_store` needs."""
        return {n: v for n, v in self._values.items() if n.startswith((KAFKA_PREFIX, "offsetstore"))}

    def _or_default(self, name: str) -> str:
        value = self.text(name)
        return default(name) if value is None else value


def _parse_long(name: str, value: str, least: int) -> int:
    if not re.fullmatch(r"[+-]?\d{1,40}", value, re.ASCII):
        raise ConfigError(f"Option '{name}' must be a whole number, not '{value}'")
    number = int(value)
    if least > 0 and number <= 0:
        raise ConfigError(f"Option '{name}' must be positive, not {number}")
    if not least <= number <= _MAX_LONG:
        raise ConfigError(f"Option '{name}' must be at least {least} and fit in 64 bits, not {number}")
    return number
