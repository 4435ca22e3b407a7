"""The options of a write, checked and typed: Spark's map of strings in, one frozen value out.

Called by source.py on the driver whenever Spark asks for a writer, before any task runs. The value is small and
picklable: it is sent to every executor. Names and conditions are those of Spark's `KafkaSourceProvider`; an unknown
option is an error that suggests the nearest name (Spark ignores it). Raises ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from spark_connector.formats.write_format import WriteFormats
from spark_connector.options.option_table import DELEGATION_TOKEN, KAFKA_PREFIX, SPARKS_OWN, check_names
from spark_connector.options.option_values import OptionValues
from spark_connector.options.typed_write_options import parse_write_formats
from spark_connector.options.write_option_table import DELIVERIES, WRITE_OPTIONS

_BATCH_BYTES = 250_000
"""Default of `kafka.batch.size`. Kafka's 16 KiB suits records that arrive one by one; a task has thousands at once.
Four batches of this size fit into a request (`kafka.max.request.size`), but only three of 256 KiB would."""

_REJECTED_PROPERTIES = {
    "key.serializer": "is not supported as keys are serialized with ByteArraySerializer.",
    "value.serializer": "is not supported as values are serialized with ByteArraySerializer.",
    "transactional.id": "is not supported as every task has its own; option 'transactionalIdPrefix' sets their prefix.",
}
_EXACTLY_ONCE, _AT_LEAST_ONCE = DELIVERIES
_TIMEOUT = f"{KAFKA_PREFIX}transaction.timeout.ms"


@dataclass(frozen=True)
class WriteOptions:
    """The options of one write. `transaction_timeout_ms`: None for as much as the brokers allow.

    `exactly_once`: a reader sees each row once, also when tasks or batches are repeated.
    """

    topic: str | None
    exactly_once: bool
    transactional_id_prefix: str
    txn_app_id: str | None
    txn_version: int | None
    include_headers: bool | None
    transaction_timeout_ms: int | None
    client: ClientSettings
    delegation_token: str
    formats: WriteFormats


def parse_write_options(options: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Check and parse Spark's options. Raises ConfigError."""
    given = {name: value for name, value in options.items() if name.lower() not in SPARKS_OWN}
    check_names(given, WRITE_OPTIONS)
    values = OptionValues(given, WRITE_OPTIONS)
    asked = values.word("delivery") if values.text("delivery") else ""
    formats = parse_write_formats(values, values.text("topic"), "stream" if stream else "batch")
    if "includeHeaders" in values and not values.boolean("includeHeaders") and _in_headers(values, formats):
        raise ConfigError(
            "Option 'includeHeaders'=false writes no headers, which are to name the schemas: leave it out"
        )
    txn_app_id, txn_version = _txn_options(values, asked)
    exactly_once = asked == _EXACTLY_ONCE if asked else stream or txn_app_id is not None
    topic = values.text("topic")
    if topic == "":
        raise ConfigError("Option 'topic' is empty: name a topic, or leave it out and give each row a column 'topic'")
    return WriteOptions(
        topic=topic,
        exactly_once=exactly_once,
        transactional_id_prefix=_name(values, "transactionalIdPrefix") or "pykafka-sink",
        txn_app_id=txn_app_id,
        txn_version=txn_version,
        include_headers=values.boolean("includeHeaders") if "includeHeaders" in values else None,
        transaction_timeout_ms=values.optional_long(_TIMEOUT),
        client=_client_settings(values, exactly_once=exactly_once),
        delegation_token=values.word(DELEGATION_TOKEN.name),
        formats=formats,
    )


def _in_headers(values: OptionValues, formats: WriteFormats) -> bool:
    """Whether headers say of which schema a record is."""
    is_azure = formats.registry is not None and formats.registry.type == "azure"
    return is_azure or values.word("schemaIdLocation") == "header"


def _name(values: OptionValues, option: str) -> str | None:
    name = values.text(option)
    if name is not None and not re.fullmatch(r"[\w.-]{1,100}", name, re.ASCII):
        raise ConfigError(f"Option '{option}' must be letters, digits, '.', '_' or '-', not '{name}'")
    return name


def _txn_options(values: OptionValues, delivery: str) -> tuple[str | None, int | None]:
    name = _name(values, "txnAppId")
    version = values.optional_long("txnVersion", least=0)
    if name is not None and delivery == _AT_LEAST_ONCE:
        raise ConfigError("Option 'txnAppId' needs delivery=exactly-once: leave option 'delivery' out")
    return name, version


def _client_settings(values: OptionValues, *, exactly_once: bool) -> ClientSettings:
    """Requests to brokers may take `max.block.ms`, because Kafka's producer has no `default.api.timeout.ms`."""
    ours = {"client.id": "spark-kafka-sink", "batch.size": str(_BATCH_BYTES)}
    settings, given = values.client_settings("producer", ours, _REJECTED_PROPERTIES)
    if "default.api.timeout.ms" not in given:
        settings = replace(settings, default_api_timeout_ms=settings.max_block_ms)
    if exactly_once and (settings.required_acks != -1 or not settings.enable_idempotence):
        raise ConfigError(
            f"kafka.acks={settings.acks}, kafka.enable.idempotence={str(settings.enable_idempotence).lower()}: "
            "exactly-once needs acks=all and idempotence; leave them out, or set option 'delivery' to at-least-once"
        )
    return settings
