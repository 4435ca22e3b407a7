"""Numbers in addresses and forms, which may be anything. Raises ConfigError that names the field."""

from __future__ import annotations

from broker.errors import ConfigError

_LONGEST = 40


def number(name: str, text: str) -> int:
    """A whole number of 64 bits; spaces around it do not matter."""
    digits = text.strip()
    if len(digits) > _LONGEST or not digits.removeprefix("-").isdecimal():
        raise ConfigError(f"{name}={text[:_LONGEST]}: expected a number")
    return in_range(name, int(digits))


def in_range(name: str, value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise ConfigError(f"{name}={value}: there is no such offset or time")
    return value
