"""Declares settings with Kafka's property names: name, type, default, check and one line of doc, once.

A group of settings is a frozen dataclass whose fields `setting()` makes. `parse_properties` parses text values into
an instance and refuses unknown names. Used for broker, topic and client settings.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, TypeVar, Union

from broker.errors import ConfigError

_SHORT = 6
"""Characters of a name in which one slip is much."""

Check = Callable[[Any], str | None]
T = TypeVar("T")

Long = Annotated[int, "long"]
Short = Annotated[int, "short"]


class UpdateMode(StrEnum):
    """Whether a broker setting can change while the broker runs, in the terms of Kafka's documentation (KIP-226)."""

    READ_ONLY = "read-only"
    """Only by a restart."""
    PER_BROKER = "per-broker"
    """For each broker separately."""
    CLUSTER_WIDE = "cluster-wide"
    """For all brokers at once, or for one."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A declared key. `type` is Kafka's: boolean, string, int (32 bits), short, long, double, list, password."""

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
        """Whether the value must not be shown."""
        return self.type == "password"

    def parse(self, text: str) -> Any:
        """The value of `text`. Raises ConfigError that names the key, the text and what is allowed."""
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
        """The value as text for a properties file or DescribeConfigs; a password is hidden."""
        if value is None:
            return ""
        if self.sensitive:
            return "(hidden)"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float):
            return str(value).replace("e+", "E").replace("e", "E")  # as Java formats it
        return str(value)


def setting(
    default: Any,
    doc: str,
    check: Check | None = None,
    update: UpdateMode = UpdateMode.READ_ONLY,
    *,
    group: str = "",
    type: str = "",
    **more: object,
) -> Any:
    """A dataclass field that declares a key: `log_dirs` declares `log.dirs`.

    Give `type` where the annotation does not tell (`password`). `more` is for those who read the field's metadata.
    """
    metadata = {"doc": doc, "group": group, "check": check, "type": type, "update": update, **more}
    return dataclasses.field(default=default, metadata=metadata, repr=type != "password")


def settings_of(cls: type[Any]) -> Mapping[str, Setting]:
    """All keys of `cls` in the order of declaration."""
    return _declared(cls)  # type: ignore[arg-type]  # mypy thinks that classes are not hashable


@functools.cache
def _declared(cls: type[Any]) -> Mapping[str, Setting]:
    hints = typing.get_type_hints(cls, include_extras=True)
    result = {}
    for field in dataclasses.fields(cls):
        meta = field.metadata
        if not meta:
            continue  # not a setting
        name, kind = field.name.replace("_", "."), meta["type"] or _type_name(hints[field.name])
        result[name] = Setting(
            name, field.name, kind, field.default, meta["doc"], meta["group"], meta["check"], meta["update"]
        )
    return MappingProxyType(result)


def parse_properties(
    cls: type[T],
    properties: Mapping[str, str],
    *,
    base: T | None = None,
    why_refused: Callable[[str], str] = lambda name: "",
) -> T:
    """An instance of `cls` with `properties` over `base` (or the defaults).

    `why_refused` knows settings of others, and why they cannot be used. Raises ConfigError, which names all that are
    unknown.
    """
    declared = settings_of(cls)
    unknown = [name for name in properties if name not in declared]
    if unknown:
        told = (f"{name!r}{_hint(name, declared, why_refused(name))}" for name in unknown)
        raise ConfigError(f"unknown setting{'s' if len(unknown) > 1 else ''} {', '.join(told)}")
    values = {declared[name].attribute: declared[name].parse(text) for name, text in properties.items()}
    return dataclasses.replace(base, **values) if base is not None else cls(**values)  # type: ignore[type-var]


def _hint(name: str, known: Iterable[str], why_refused: str) -> str:
    return f" ({why_refused})" if why_refused else did_you_mean(name, known)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, where x is no more than a slip away, or nothing."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    near = [other for other in close if _slips(name, other) <= (2 if len(name) > _SHORT else 1)]
    return f"; did you mean {near[0]!r}?" if near else ""


def _slips(one: str, other: str) -> int:
    """How many characters to put in, take out, exchange or swap with their neighbour make one the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return row[-1]


def read_properties_file(path: Path) -> dict[str, str]:
    """Read a Java properties file: `key=value`, `#` and `!` comments, `\\` continues a line; no other escapes."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: it is not a UTF-8 text file ({error.reason})") from error
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
    return lambda value: None if value is None or value >= low else f"must be at least {low}"


def between(low: float, high: float) -> Check:
    return lambda value: None if value is None or low <= value <= high else f"must lie between {low} and {high}"


def gzip_level(value: int) -> str | None:
    """Checks a zlib level: 1 to 9, or -1 for the default."""
    return None if value == -1 or 1 <= value <= 9 else "must lie between 1 and 9, or be -1"


def one_of(allowed: Sequence[str]) -> Check:
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
    if typing.get_origin(hint) is tuple:
        return "list"
    if typing.get_origin(hint) in (Union, UnionType):  # X | None
        hint = typing.get_args(hint)[0]
    return {Long: "long", Short: "short", int: "int", bool: "boolean", str: "string", float: "double"}[hint]
