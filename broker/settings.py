"""How a setting is declared: name, type, default, check and one line of doc, once.

Used by config.py (broker), log_config.py (topics) and whatever else reads Kafka's property names. A
group of settings is a frozen dataclass whose fields are made by `setting()`; `parse_properties` turns
text values into an instance and refuses what it does not know.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from broker.errors import ConfigError

__all__ = [
    "Setting",
    "UpdateMode",
    "at_least",
    "between",
    "did_you_mean",
    "gzip_level",
    "one_of",
    "parse_properties",
    "read_properties_file",
    "setting",
    "settings_of",
]

Check = Callable[[Any], str | None]
T = TypeVar("T")


class UpdateMode(StrEnum):
    """How a broker setting changes while the broker runs, in the words of Kafka's documentation (KIP-226)."""

    READ_ONLY = "read-only"
    """Only by a restart."""
    PER_BROKER = "per-broker"
    """For one broker at a time."""
    CLUSTER_WIDE = "cluster-wide"
    """For all brokers at once, or for one."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One declared key. `type` is Kafka's name for it: boolean, string, int (32 bits), short, long, double, list,
    password."""

    name: str
    attribute: str
    type: str
    default: Any
    doc: str
    group: str
    check: Check | None
    update: UpdateMode = UpdateMode.READ_ONLY

    @property
    def sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type == "password"

    def parse(self, text: str) -> Any:
        """The value of `text`; raises ConfigError that names the key, the text and what is allowed."""
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise ConfigError(f"{self.name}={text}: expected a value of type {self.type}") from None
        return self.checked(value)

    def checked(self, value: Any) -> Any:
        complaint = self.check(value) if self.check else None
        if complaint:
            raise ConfigError(f"{self.name}={self.format(value)}: {complaint}")
        return value

    def format(self, value: Any) -> str:
        """The value as a properties file or DescribeConfigs shows it; a password never is."""
        if value is None:
            return ""
        if self.sensitive:
            return "(hidden)"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return str(value).replace("e+", "E").replace("e", "E")  # as Java writes them
        return str(value)


def setting(
    name: str,
    default: Any,
    doc: str,
    *,
    group: str = "",
    check: Check | None = None,
    type: str = "",
    update: UpdateMode = UpdateMode.READ_ONLY,
) -> Any:
    """A dataclass field that declares the key `name`. `type` where the annotation does not say it: a `long` or `short`
    among the ints, a `password` among the strings."""
    metadata = {"name": name, "doc": doc, "group": group, "check": check, "type": type, "update": update}
    return dataclasses.field(default=default, metadata=metadata, repr=type != "password")


def settings_of(cls: type[Any]) -> Mapping[str, Setting]:
    """Every key that `cls` declares, in the order of declaration."""
    return _declared(cls)  # type: ignore[arg-type]  # mypy takes classes for not hashable


@functools.cache
def _declared(cls: type[Any]) -> Mapping[str, Setting]:
    hints = typing.get_type_hints(cls)
    result = {}
    for field in dataclasses.fields(cls):
        meta = field.metadata
        if not meta:
            continue  # a field that is no setting
        kind = meta["type"] or _type_name(hints[field.name])
        result[meta["name"]] = Setting(
            meta["name"], field.name, kind, field.default, meta["doc"], meta["group"], meta["check"], meta["update"]
        )
    return MappingProxyType(result)


def parse_properties(cls: type[T], properties: Mapping[str, str], *, base: T | None = None) -> T:
    """An instance of `cls` with `properties` over `base` (or the defaults). Raises ConfigError."""
    declared = settings_of(cls)
    values: dict[str, Any] = {}
    for name, text in properties.items():
        if name not in declared:
            raise ConfigError(f"unknown setting {name!r}{did_you_mean(name, declared)}")
        values[declared[name].attribute] = declared[name].parse(text)
    return dataclasses.replace(base, **values) if base is not None else cls(**values)  # type: ignore[type-var]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def read_properties_file(path: Path) -> dict[str, str]:
    """A Java properties file without the exotic escapes: `key=value`, `#` or `!` comments, `\\` continues."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is no text file in UTF-8 ({error.reason})") from error
    properties: dict[str, str] = {}
    for number, line in enumerate(text.replace("\\\n", "").splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"{path}, line {number}: expected key=value, found {line!r}")
        properties[key.strip()] = value.strip()
    return properties


def at_least(low: int) -> Check:
    """The value must not be smaller than `low`."""
    return lambda value: None if value is None or value >= low else f"must be at least {low}"


def between(low: float, high: float) -> Check:
    """The value must lie in [low, high]."""
    return lambda value: None if value is None or low <= value <= high else f"must lie between {low} and {high}"


def gzip_level(value: int) -> str | None:
    """A level of zlib's: 1 to 9, or -1 for its own choice."""
    return None if value == -1 or 1 <= value <= 9 else "must lie between 1 and 9, or be -1"


def one_of(allowed: Sequence[str]) -> Check:
    """The value, or each item of a list, must be one of `allowed`."""

    def check(value: Any) -> str | None:
        items = value if isinstance(value, tuple) else (value,)
        wrong = [item for item in items if item not in allowed]
        return f"{wrong[0]!r} is not one of {', '.join(allowed)}" if wrong else None

    return check


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _whole_number(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(text)
        return value

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "short": _whole_number(16),
    "int": _whole_number(32),
    "long": _whole_number(64),
    "boolean": _boolean,
    "string": str,
    "password": str,
    "list": _list,
    "double": float,
}


def _type_name(hint: Any) -> str:
    options = [h for h in (typing.get_args(hint) or (hint,)) if h is not type(None)]
    if typing.get_origin(hint) is tuple:
        return "list"
    return {int: "int", bool: "boolean", str: "string", float: "double"}[options[0]]
