"""The options that a user gave, as typed values, and the refusals that their rows in the table declare.

A value that cannot be used raises ConfigError, which names the option, the value given and the values allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from spark_connector.formats.value_format import FORMATS
from spark_connector.options.option import Option
from spark_connector.options.option_table import KAFKA_PREFIX, OPTIONS
from spark_connector.options.registry_option_table import REGISTRY_TYPE, REGISTRY_URL

_COLUMNS = ["value", "key"]

_MAX_LONG = 2**63 - 1
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_SIZE = re.compile(r"(\d{1,19})\s*(?:([kmgtp])b?|b)?", re.ASCII)
_UNIT_MS = {"us": 0.001, "ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionValues:
    """The user's options by lower-case name, without blanks around the values; `declared` has their defaults."""

    def __init__(self, options: Mapping[str, str], declared: Iterable[Option] = OPTIONS) -> None:
        self._values = {name.lower(): str(value).strip() for name, value in options.items()}
        self._declared = {option.name: option for option in declared}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """The value; None when the option is not set."""
        return self._values.get(name.lower())

    @property
    def has_registry(self) -> bool:
        """Whether there is a schema registry: one with a URL, or Glue, which needs none. Raises ConfigError."""
        kind = self.word(REGISTRY_TYPE) if REGISTRY_TYPE in self else ""
        if kind and kind != "glue" and REGISTRY_URL not in self:
            raise ConfigError(f"Option '{REGISTRY_TYPE}'={kind} needs option '{REGISTRY_URL}'")
        return kind == "glue" or REGISTRY_URL in self

    def prefixed(self, prefix: str) -> dict[str, str]:
        """The options whose names begin with `prefix`, by the rest of their names, in lower case."""
        return {name[len(prefix) :]: value for name, value in self._values.items() if name.startswith(prefix)}

    def plain(self, declared: Iterable[Option]) -> dict[str, Any]:
        """The options whose kind is declared, by the name of their field."""
        return {option.field: getattr(self, option.kind)(option.name) for option in declared if option.kind is not None}

    def boolean(self, name: str) -> bool:
        """`true` or `false` in any case; the table's default when unset."""
        value = self._or_default(name)
        if value.lower() not in {"true", "false"}:
            raise ConfigError(f"Option '{name}' must be true or false, not '{value}'")
        return value.lower() == "true"

    def long(self, name: str) -> int:
        """An integer within the row's bounds; the table's default when unset."""
        row = self._declared[name]
        number = _parse_long(name, self._or_default(name), row.least)
        if row.most is not None and number > row.most:
            raise ConfigError(f"Option '{name}' should not be greater than {row.most}, it is {number}")
        return number

    def optional_long(self, name: str, *, least: int = 1) -> int | None:
        """An integer ≥ `least`; None when unset."""
        text = self.text(name)
        return None if text is None else _parse_long(name, text, least)

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

    def word(self, name: str) -> str:
        """One of the row's `choices`, given in any case, in lower case; the table's default when unset."""
        value, choices = self._or_default(name), self._declared[name].choices
        if value.lower() not in map(str.lower, choices):
            raise ConfigError(f"Option '{name}' must be {' or '.join(choices)}, not '{value}'")
        return value.lower()

    def client_settings(
        self, role: str, ours: Mapping[str, str], rejected: Mapping[str, str]
    ) -> tuple[ClientSettings, frozenset[str]]:
        """The settings of the Kafka client, and the names of the properties that the user set (`kafka.*`).

        The user's properties win over `ours`. `rejected` maps properties that must not be set to the reason. `role`
        (consumer or producer) is used in messages. Equal options give equal, hashable settings.
        """
        properties = self.prefixed(KAFKA_PREFIX)
        for name, why in rejected.items():
            if name in properties:
                raise ConfigError(f"Kafka option '{name}' {why}")
        if not {**ours, **properties}.get("bootstrap.servers"):
            raise ConfigError(
                f"Option 'kafka.bootstrap.servers' must be specified for configuring Kafka {role}, "
                "e.g. 'localhost:9092'"
            )
        try:
            return ClientSettings.from_properties({**ours, **properties}), frozenset(properties)
        except ConfigError as error:
            raise ConfigError(f"Options of the Kafka client ('kafka.*'): {error}") from None

    def given(self, option: Option) -> str | None:
        """The name under which the option is set; None when it is not. A name with `*` stands for all that begin so."""
        if option.name.endswith("*"):
            return next((name for name in self._values if name.startswith(option.name[:-1])), None)
        return option.name if option.name in self else None

    def store_options(self) -> dict[str, str]:
        """The options that `offset_store.base.open_store` needs."""
        return {n: v for n, v in self._values.items() if n.startswith((KAFKA_PREFIX, "offsetstore"))}

    def _or_default(self, name: str) -> str:
        """The default must be the same in batch and stream."""
        value = self.text(name)
        if value is None:
            value = self._declared[name].default
        assert value is not None
        return value


def _parse_long(name: str, value: str, least: int) -> int:
    if not re.fullmatch(r"[+-]?\d{1,40}", value, re.ASCII):
        raise ConfigError(f"Option '{name}' must be a whole number, not '{value}'")
    number = int(value)
    if least > 0 and number <= 0:
        raise ConfigError(f"Option '{name}' must be positive, not {number}")
    if not least <= number <= _MAX_LONG:
        raise ConfigError(f"Option '{name}' must be at least {least} and fit in 64 bits, not {number}")
    return number


def check_rows(values: OptionValues, declared: Iterable[Option], scope: str, formats: Mapping[str, str]) -> None:
    """Raise ConfigError for an option that a stream cannot have, or that has no effect beside the others.

    `scope`: batch or stream; any while it is not known. `formats`: those of `key` and `value`, where they have one.
    """
    for option in declared:
        name = values.given(option)
        if name is None:
            continue
        if option.in_stream and scope == "stream":
            raise ConfigError(option.in_stream)
        columns = [one for one in _COLUMNS if option.name.startswith(one)] or _COLUMNS
        if option.formats and not {formats.get(one) for one in columns} & {*option.formats}:
            words = () if option.formats == FORMATS else option.formats
            raise _without_effect(name, [f"{one}Format" for one in columns], words)
        if option.needs and option.scope in {"both", scope} and not _has_needed(values, option):
            raise _without_effect(name, option.needs, option.being)


def _has_needed(values: OptionValues, option: Option) -> bool:
    if option.being:
        return values.word(option.needs[0]) in {word.lower() for word in option.being}
    in_registry = REGISTRY_URL in option.needs and any(is_http(values.text(f"{one}Schema")) for one in _COLUMNS)
    return in_registry or any(needed in values for needed in option.needs)


def is_http(text: str | None) -> bool:
    """Whether the text says that a schema is in a registry."""
    return re.match(r"https?://", text or "", re.IGNORECASE) is not None


def _without_effect(name: str, needed: Iterable[str], words: tuple[str, ...]) -> ConfigError:
    to_be = f" to be {' or '.join(filter(None, (', '.join(words[:-1]), words[-1])))}" if words else ""
    return ConfigError(f"Option '{name}' has no effect: it needs {' or '.join(map(repr, needed))}{to_be}")
