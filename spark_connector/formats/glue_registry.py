"""AWS's Glue Schema Registry: schemas by the UUID of a version, which stands before a value with two bytes more.

A value of its serializers begins with a byte of 3, one that says how the data is compressed (0: not, 5: zlib), and the
UUID. Each process has credentials of its own, as boto3 finds them: variables, profiles, the role of an instance or of a
pod. A schema has a name in a registry; AWS's serializers take the topic's.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from broker.errors import ConfigError
from spark_connector.formats.frames import Framing, Key, Place, SchemaId, varint
from spark_connector.formats.schema_registry import SchemaRegistry, Stamp, UnknownSchema, unavailable
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import RegistrySettings

_VERSION: Final = 3
_HEAD: Final = 18
_NO_HEAD: Final = "not in the wire format of Glue's serializers, which begins with a byte of 3"
_ZLIB: Final = 5
_REGISTRY: Final = "default-registry"
_COMPATIBILITY: Final = "BACKWARD"
"""Of a schema that is created, as AWS's serializers do."""
_CHECKED_S: Final = 30.0
_ASK_EVERY_S: Final = 0.2
_NOT_THERE: Final = "EntityNotFoundException"
_REFUSED: Final = frozenset({_NOT_THERE, "InvalidInputException", "ResourceNumberLimitExceededException"})


class GlueRegistry(SchemaRegistry):
    """One registry of an account in a region."""

    def __init__(self, settings: RegistrySettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError for a region or a profile that is not there."""
        super().__init__(settings, clock=clock)
        self._name = settings.group or _REGISTRY
        timeout_s = settings.timeout_ms / 1000
        patience = Config(connect_timeout=timeout_s, read_timeout=timeout_s, retries={"mode": "standard"})
        try:
            session = boto3.Session(profile_name=settings.profile, region_name=settings.region)
            endpoint = settings.urls[0] if settings.urls else None
            self._glue = session.client("glue", endpoint_url=endpoint, config=patience)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"schema.registry.type=glue: {error} (options 'schema.registry.region', 'schema.registry.profile')"
            ) from None

    def framing(self, column: str, format: str) -> Framing:
        """As SchemaRegistry."""
        return Framing((Place(_head, _HEAD),), _NO_HEAD, _message)

    def stamp(self, key: Key, column: str, *, in_header: bool, message: bytes = b"") -> Stamp:
        """As SchemaRegistry."""
        if in_header:
            raise ConfigError("schema.registry.type=glue has no headers: leave out the option 'schemaIdLocation'")
        return Stamp(bytes([_VERSION, 0]) + uuid.UUID(str(key)).bytes)

    def key_of(self, text: str) -> Key:
        """As SchemaRegistry."""
        try:
            return str(uuid.UUID(text))
        except ValueError:
            raise ConfigError(f"the id of a schema in Glue is the UUID of a schema version, not '{text}'") from None

    def topic_subject(self, topic: str, column: str) -> str:
        """As SchemaRegistry: values as by AWS's serializers."""
        return topic if column == "value" else f"{topic}-{column}"

    def look_up(self, subject: str, schema: Mapping[str, Any]) -> Key | None:
        """As SchemaRegistry."""
        try:
            found = self._ask("get_schema_by_definition", SchemaId=self._id(subject), SchemaDefinition=_text(schema))
        except UnknownSchema as error:
            if str(error).startswith(_NOT_THERE):
                return None
            raise
        return self._checked(found)

    def complaints(self, subject: str, schema: Mapping[str, Any]) -> list[str]:
        """As SchemaRegistry: none, because Glue compares when it registers."""
        return []

    def register(self, subject: str, schema: Mapping[str, Any]) -> Key:
        """As SchemaRegistry."""
        text = _text(schema)
        try:
            made = self._ask("register_schema_version", SchemaId=self._id(subject), SchemaDefinition=text)
        except UnknownSchema as error:
            if not str(error).startswith(_NOT_THERE):
                raise
            made = self._ask(
                "create_schema",
                RegistryId={"RegistryName": self._name},
                SchemaName=subject,
                DataFormat=schema.get("schemaType", "AVRO"),
                Compatibility=_COMPATIBILITY,
                SchemaDefinition=text,
            )
        return self._checked(made)

    def _answer(self, key: Key, query: str = "") -> Any:
        return _as_answer(self._ask("get_schema_version", SchemaVersionId=str(key)))

    def _version(self, subject: str, version: str, query: str = "") -> Any:
        number = {"LatestVersion": True} if version == "latest" else {"VersionNumber": int(version)}
        return _as_answer(self._ask("get_schema_version", SchemaId=self._id(subject), SchemaVersionNumber=number))

    def _id_in(self, answer: Any) -> Key:
        return str(answer["id"])

    def _id(self, subject: str) -> dict[str, str]:
        return {"RegistryName": self._name, "SchemaName": subject}

    def _checked(self, found: Any) -> Key:
        """The id of a version, when Glue has compared it with the others. Raises UnknownSchema if that has failed."""
        key, deadline = str(found["SchemaVersionId"]), self._clock() + _CHECKED_S
        status = found.get("Status", found.get("SchemaVersionStatus"))
        while status == "PENDING" and self._clock() < deadline:
            time.sleep(_ASK_EVERY_S)
            status = self._ask("get_schema_version", SchemaVersionId=key)["Status"]
        if status != "AVAILABLE":
            raise UnknownSchema(f"schema version {key} is {status}: it is not compatible with the schema's others")
        return key

    def _ask(self, operation: str, **given: Any) -> Any:
        """Raises UnknownSchema for what is not there or refused, ConnectorError."""
        try:
            return getattr(self._glue, operation)(**given)
        except ClientError as error:
            code, said = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
            if code in _REFUSED:
                raise UnknownSchema(f"{code} {said}") from None
            raise unavailable(f"glue '{self._name}'", operation, f"{code} {said}") from None
        except BotoCoreError as error:
            raise unavailable(f"glue '{self._name}'", operation, f"{type(error).__name__} {error}") from None


def _head(head: bytes) -> SchemaId | None:
    if head[:1] != bytes([_VERSION]):
        return None
    if len(head) < _HEAD:
        raise BadValue(_NO_HEAD)
    if head[1] not in {0, _ZLIB}:
        raise BadValue(f"its data is compressed in a way that Glue's serializers do not know: {head[1]}")
    return SchemaId(str(uuid.UUID(bytes=head[2:])), _HEAD, is_deflated=head[1] == _ZLIB)


def _message(raw: bytes, at: int) -> tuple[Hashable, int]:
    return varint(raw, at)


def _text(schema: Mapping[str, Any]) -> str:
    if schema.get("schemaType") == "PROTOBUF":
        raise ConfigError("Protobuf is read with schema.registry.type=glue, and not written")
    return str(schema["schema"])


def _as_answer(found: Any) -> dict[str, Any]:
    """As Confluent's registry answers."""
    if found.get("Status", "AVAILABLE") != "AVAILABLE":
        raise UnknownSchema(f"schema version {found['SchemaVersionId']} is {found['Status']}")
    return {
        "id": found["SchemaVersionId"],
        "schema": found["SchemaDefinition"],
        "schemaType": found["DataFormat"],
    }
