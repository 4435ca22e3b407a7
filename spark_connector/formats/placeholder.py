"""Debezium's placeholder for a value that an event does not have, as its connector is configured to write it.

A plain value that is cheap to import: part of the formats of a read (value_format.py). unavailable.py finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.errors import ConfigError

OPTION: Final = "unavailable.value.placeholder"
"""The reader's option and Debezium's property."""
DEFAULT: Final = "__debezium_unavailable_value"
_HEX: Final = "hex:"

Path = tuple[str, ...]


@dataclass(frozen=True)
class Placeholder:
    """The placeholder of a connector as its configuration has it; small and picklable.

    `fields`: column → the paths in it that count, each with all below it; without an entry a column counts as a whole.
    """

    text: str = DEFAULT
    fields: tuple[tuple[str, tuple[Path, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Placeholder | None:
        """None for an empty text, with which nothing is a placeholder. Raises ConfigError."""
        if not text:
            return None
        try:
            bytes.fromhex(text.removeprefix(_HEX) if text.startswith(_HEX) else "")
        except ValueError:
            raise ConfigError(f"Option '{OPTION}' must be a text, or bytes like hex:DEADBEEF, not '{text}'") from None
        return None if text == _HEX else cls(text)

    @property
    def values(self) -> tuple[bytes, ...]:
        """Its bytes. Only some connectors read `hex:`, to the others it is part of the text."""
        plain = self.text.encode()
        return (bytes.fromhex(self.text.removeprefix(_HEX)), plain) if self.text.startswith(_HEX) else (plain,)

    def paths_in(self, column: str) -> tuple[Path, ...]:
        return dict(self.fields).get(column, ((),))

    def reason(self, path: str) -> str:
        """Why a record with the placeholder in `path` is bad."""
        return (
            f"{f'field {path}' if path else 'it'} does not have its value, which the update has not changed, but "
            f"Debezium's placeholder ({self.text}): set REPLICA IDENTITY FULL for the table in the database "
            "(PostgreSQL), or let the connector read such columns again (ReselectColumnsPostProcessor), and snapshot "
            f"it again. Option {OPTION} names another placeholder; an empty one takes it for a value"
        )
