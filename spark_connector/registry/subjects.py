"""What a schema registry holds: subjects with versions, ids of schemas, levels of compatibility. Pure.

Its memory is a log of records in the format of Confluent's topic `_schemas`: `apply` takes them in order, and what
changes the state returns the record to write, which counts once it is applied. Used by rest.py, over a topic
(embedded_registry.py) or in memory.

Raises Refusal, which has the status, code and message that Confluent's registry answers with.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.errors import ConfigError
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.value_format import AvroSchema
from spark_connector.registry.compatibility import LEVELS, complaints

KINDS: Final = ("AVRO", "JSON", "PROTOBUF")
_MOST_REFERENCES: Final = 500
"""Schemas that one refers to, also by others."""
_DEEPEST: Final = 16
"""Levels of references."""
_LARGEST_ID: Final = 2**31 - 1
_GUIDS: Final = uuid.UUID("5b0d0f2e-7f0c-4c55-9c35-3c1f2b7d8e11")
"""The name space of GUIDs that are made here."""


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def status(self) -> int:
        """Of HTTP: the first three digits of the code."""
        return int(str(self.code)[:3])


class Reference(NamedTuple):
    """`name`: as the schema says it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as it is registered."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> str:
        """The same for the same schema, in each registry of this kind."""
        return str(uuid.uuid5(_GUIDS, json.dumps([self.kind, self.text, self.references])))

    @property
    def fields(self) -> dict[str, Any]:
        """As answers and records show it: the type of Avro is not named."""
        made: dict[str, Any] = {} if self.kind == "AVRO" else {"schemaType": self.kind}
        if self.references:
            made["references"] = [one._asdict() for one in self.references]
        return {**made, "schema": self.text}

    @staticmethod
    def of(fields: dict[str, Any]) -> Schema:
        """Of the fields of a request or a record. Raises Refusal."""
        try:
            references = tuple(
                Reference(str(one["name"]), str(one["subject"]), int(one["version"]))
                for one in fields.get("references") or ()
            )
            text, kind = fields["schema"], fields.get("schemaType") or "AVRO"
        except (KeyError, TypeError, ValueError, OverflowError):
            raise Refusal(42201, "Invalid schema: a text 'schema' or a field of 'references' is missing") from None
        if not isinstance(text, str) or kind not in KINDS:
            raise Refusal(42201, f"Invalid schema of type {kind!r}; types are {', '.join(KINDS)}")
        return Schema(text, kind, references)


class Entry(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        return {"subject": self.subject, "version": self.version, "id": self.id, **self.schema.fields}


@dataclass(frozen=True)
class Check:
    """What decides whether a schema may be registered, taken out of the state: the check itself takes its time."""

    subject: str
    schema: Schema
    references: tuple[str, ...]
    others: tuple[tuple[Entry, tuple[str, ...]], ...]
    """Versions to be compatible with, the oldest first, and the texts that each refers to."""
    level: str

    def complaints(self) -> list[str]:
        """Why the schema is not compatible with the versions; none if it is. Raises Refusal for what is no schema."""
        try:
            if self.schema.kind == "AVRO":
                parse_avro(AvroSchema(self.schema.text, self.references))
            elif self.schema.kind == "JSON" and not isinstance(json.loads(self.schema.text), dict | bool):
                raise Refusal(42201, "Invalid schema: a JSON Schema is an object")
        except (ConfigError, ValueError, RecursionError) as error:
            raise Refusal(42201, f"Invalid schema: {error}") from None
        return [
            f"version {entry.version}: {why}"
            for entry, references in reversed(self.others)
            for why in self._complaints(entry.schema, references)
        ]

    def refuse_incompatible(self) -> None:
        """Raises Refusal."""
        if found := self.complaints():
            raise Refusal(
                409,
                f'Schema being registered is incompatible with an earlier schema for subject "{self.subject}", '
                f"details: {found}, compatibility: '{self.level}'",
            )

    def _complaints(self, older: Schema, references: tuple[str, ...]) -> list[str]:
        if self.level == "NONE":
            return []
        if self.schema.kind != older.kind:
            return [f"it is of type {older.kind}, not {self.schema.kind}"]
        if self.schema.kind != "AVRO":
            return []  # compared by real registries only
        newer, before = AvroSchema(self.schema.text, self.references), AvroSchema(older.text, references)
        return complaints(parse_avro(newer), parse_avro(before), self.level)


Record = tuple[bytes, bytes]
"""Key and value."""


@dataclass
class Subjects:
    """The state after the records that `apply` was given."""

    _entries: dict[str, dict[int, Entry]] = field(default_factory=dict)
    _schemas: dict[int, Schema] = field(default_factory=dict)
    _levels: dict[str | None, str] = field(default_factory=dict)
    _guids: dict[int, str] = field(default_factory=dict)
    """By id, where another registry has given one."""

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record of the topic. What it does not understand, or cannot be, it leaves alone."""
        what: Any
        try:
            name, what = json.loads(key or b"{}"), None if value is None else json.loads(value)
            subject = name.get("subject")
            match name.get("keytype"):
                case "SCHEMA" if what is None:
                    self._entries.get(subject, {}).pop(int(name["version"]), None)
                case "SCHEMA" if isinstance(subject, str):
                    entry = Entry(
                        subject,
                        _positive(name["version"]),
                        _positive(what["id"]),
                        Schema.of(what),
                        bool(what.get("deleted")),
                    )
                    self._entries.setdefault(entry.subject, {})[entry.version] = entry
                    self._schemas[entry.id] = entry.schema
                    if isinstance(what.get("guid"), str):
                        self._guids[entry.id] = what["guid"].lower()
                case "DELETE_SUBJECT" if what is not None:
                    for version, entry in self._entries.get(subject, {}).items():
                        if version <= int(what["version"]):
                            self._entries[subject][version] = entry._replace(is_deleted=True)
                case "CONFIG" if what is None:
                    self._levels.pop(subject, None)
                case "CONFIG" if what["compatibilityLevel"] in LEVELS:
                    self._levels[subject] = what["compatibilityLevel"]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, Refusal):
            return

    # --- questions ---------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The subjects, in order."""
        return sorted(name for name in self._entries if self._living(name))

    def versions(self, subject: str) -> list[Entry]:
        """Of a subject, in order."""
        living = self._living(subject)
        if not living:
            raise Refusal(40401, f"Subject '{subject}' not found.")
        return living

    def version(self, subject: str, version: str) -> Entry:
        """`version`: a number, `latest` or -1."""
        living = self.versions(subject)
        if version in {"latest", "-1"}:
            return living[-1]
        if not version.isdecimal() or int(version) < 1:
            raise Refusal(42202, f"The specified version '{version}' is not a valid version id.")
        found = [entry for entry in living if entry.version == int(version)]
        if not found:
            raise Refusal(40402, f"Version {version} not found.")
        return found[0]

    def schema(self, schema_id: int) -> Schema:
        if schema_id not in self._schemas:
            raise Refusal(40403, f"Schema {schema_id} not found")
        return self._schemas[schema_id]

    def guid(self, schema_id: int) -> str:
        """Of the schema with this id."""
        return self._guids.get(schema_id) or self.schema(schema_id).guid

    def by_guid(self, guid: str) -> tuple[int, Schema]:
        """The schema with this GUID, and its id."""
        for schema_id, schema in self._schemas.items():
            if self.guid(schema_id) == guid.lower():
                return schema_id, schema
        raise Refusal(40403, f"Schema {guid} not found")

    def uses(self, schema_id: int) -> list[Entry]:
        """The versions with this schema."""
        self.schema(schema_id)
        return [entry for name in self.names() for entry in self._living(name) if entry.id == schema_id]

    def look_up(self, subject: str, schema: Schema) -> Entry:
        """The version of the subject that is this schema."""
        found = [entry for entry in self.versions(subject) if entry.schema == schema]
        if not found:
            raise Refusal(40403, "Schema not found")
        return found[-1]

    def level(self, subject: str | None) -> str:
        """The level of compatibility; `None` is the default of all subjects."""
        return self._levels.get(subject) or self._levels.get(None) or "BACKWARD"

    def check_of(self, subject: str, schema: Schema, versions: list[Entry] | None = None) -> Check:
        """Whether the schema is one, and compatible with the versions at the level of the subject; None: all of it.

        Raises Refusal for references to what is not there.
        """
        level = self.level(subject)
        others = self._living(subject) if versions is None else versions
        if not level.endswith("_TRANSITIVE"):
            others = others[-1:]
        compared = tuple((entry, self._references(entry.schema)) for entry in others)
        return Check(subject, schema, self._references(schema), compared, level)

    def id_under(self, subject: str, schema: Schema) -> int | None:
        """The id of the schema if the subject has it."""
        return next((entry.id for entry in self._living(subject) if entry.schema == schema), None)

    # --- changes: the record to write ----------------------------------------------------------------

    def register(self, subject: str, schema: Schema, checked: Check | None = None) -> tuple[int, Record | None]:
        """(id, record to write; None if the subject has the schema). `checked` has found no fault, at its time."""
        there = self.id_under(subject, schema)
        if there is not None:
            return there, None
        check = self.check_of(subject, schema)
        if check != checked:
            check.refuse_incompatible()
        known = (one for one, other in self._schemas.items() if other == schema)
        schema_id = next(known, max(self._schemas, default=0) + 1)
        version = max(self._entries.get(subject, {}), default=0) + 1
        value = Entry(subject, version, schema_id, schema).fields
        key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        return schema_id, (_json(key), _json({**value, "deleted": False}))

    def set_level(self, subject: str | None, level: Any) -> Record:
        if level not in LEVELS:
            raise Refusal(42203, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}")
        key = {"keytype": "CONFIG", "subject": subject, "magic": 0}
        return _json(key), _json({"compatibilityLevel": level})

    # --- parts ---------------------------------------------------------------------------------------

    def _living(self, subject: str) -> list[Entry]:
        entries = self._entries.get(subject, {})
        return [entries[version] for version in sorted(entries) if not entries[version].is_deleted]

    def _references(self, schema: Schema) -> tuple[str, ...]:
        """The texts that the schema refers to, each once, and behind those that it refers to itself."""
        found: dict[str, None] = {}
        seen: set[tuple[str, int]] = set()

        def follow(one: Schema, depth: int) -> None:
            if depth > _DEEPEST:
                raise Refusal(42201, "Invalid schema: its references are nested too deep")
            for reference in one.references:
                place = reference.subject, reference.version
                if place in seen:
                    continue
                if len(seen) == _MOST_REFERENCES:
                    raise Refusal(42201, f"Invalid schema: it refers to more than {_MOST_REFERENCES} schemas")
                seen.add(place)
                try:
                    other = self.version(reference.subject, str(reference.version)).schema
                except Refusal as error:
                    raise Refusal(42201, f"Invalid schema: reference {reference.name}: {error.message}") from None
                follow(other, depth + 1)
                found[other.text] = None

        follow(schema, 0)
        return tuple(found)


def _positive(number: Any) -> int:
    """A version or an id, which has 32 bits. Raises ValueError, TypeError, OverflowError."""
    if not 0 < int(number) <= _LARGEST_ID:
        raise ValueError(f"{number} is no version and no id")
    return int(number)


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
