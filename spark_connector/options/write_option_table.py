"""Every option of a write to `format("pykafka")`, declared as those of reads are in option_table.py."""

from __future__ import annotations

from spark_connector.formats.value_format import FORMATS, REGISTERED, WRITE_FORMATS
from spark_connector.formats.write_format import SubjectStrategy, WriteMode
from spark_connector.options.option import Option, each
from spark_connector.options.option_table import DELEGATION_TOKEN, SERVERS
from spark_connector.options.registry_option_table import (
    AVRO_ENCODING,
    REGISTRY,
    REGISTRY_ACCESS,
    REGISTRY_KIND,
    REGISTRY_URL,
)

DELIVERIES = ("exactly-once", "at-least-once")
_STRATEGIES = tuple(one.value for one in SubjectStrategy)
_OF_BATCHES = "Options 'txnAppId' and 'txnVersion' are for batch writes: a stream knows its own batches"

_BY_REGISTRY = (
    Option(
        "schemaIdLocation",
        "where records say of which schema they are: value (before the data) or header (`__value_schema_id` and "
        "`__key_schema_id` with a GUID, as of Confluent Platform 8's HeaderSchemaIdSerializer; of apicurio its own "
        "headers) (ours)",
        "value",
        choices=("value", "header"),
    ),
    Option("valueSchemaId", "id of the registry's schema to write with, instead of the latest of the subject (ours)"),
    Option("keySchemaId", "the same for the key (ours)"),
    Option(
        "valueSubjectStrategy",
        "subject of the schema in the registry: topic (`<topic>-value`), record (the record's full name) or "
        "topic-record (`<topic>-<full name>`), as Confluent's serializers name them (ours)",
        "topic",
        choices=_STRATEGIES,
    ),
    Option("keySubjectStrategy", "the same for the key, `<topic>-key` (ours)", "topic", choices=_STRATEGIES),
    Option(
        "autoRegister",
        "true: the driver registers the schema of `valueSchema` or `keySchema`, for avro without one that which "
        "`to_avro` makes of the columns, if the registry does not have it and finds it compatible (ours)",
        "false",
    ),
)

WRITE_OPTIONS: tuple[Option, ...] = (
    SERVERS,
    DELEGATION_TOKEN,
    Option("topic", "topic of all rows; wins over a column `topic`. Set the option or have the column"),
    Option(
        "delivery",
        "exactly-once: rows are written in transactions, which readers of committed data see once all tasks have "
        "succeeded; at-least-once: a repeated task or batch writes its rows again, as with Spark's own sink (ours)",
        "at-least-once (batch), exactly-once (stream)",
        choices=DELIVERIES,
    ),
    Option(
        "transactionalIdPrefix",
        "prefix of the transactional ids and the group of an exactly-once write, for brokers that grant rights by "
        "prefix (ours)",
        "pykafka-sink",
    ),
    Option(
        "txnAppId",
        "names an exactly-once write, so that a repeated one writes nothing. Inside `foreachBatch` the query and the "
        "batch are added to it; elsewhere, over Spark Connect and in your own threads also set `txnVersion`. Each "
        "write in the function needs its own name (ours; Delta has options of these names)",
        scope="batch",
        in_stream=_OF_BATCHES,
    ),
    Option(
        "txnVersion",
        "a number that grows with every write of `txnAppId`, such as the batch id: a number that is not higher than "
        "the last one writes nothing (ours)",
        scope="batch",
        in_stream=_OF_BATCHES,
        needs=("txnAppId",),
    ),
    Option(
        "includeHeaders",
        "true: the column `headers` must exist; false: it is not written; unset: it is written if it exists",
    ),
    Option(
        "valueFormat",
        "binary, string, json, avro or protobuf: what the columns of `valueColumns` are encoded to; binary takes a "
        "column of bytes or text as it is, string casts one column to text (ours; docs/how-to/typed-writes.md)",
        "binary",
        choices=WRITE_FORMATS,
    ),
    Option(
        "keyFormat",
        "the same for the columns of `keyColumns` (ours)",
        "binary; with `keyColumns`: string for one column, json for several",
        choices=WRITE_FORMATS,
    ),
    Option(
        "valueColumns",
        "columns to encode, comma-separated, names with commas in backticks; `*` is all but `topic`, "
        "`partition`, `headers` and `timestamp`, and `key` unless `keyColumns` is set. One of these that is named here "
        "is encoded, and is no longer the record's topic, partition, headers or time (ours)",
        "`value` for format binary, else `*`",
        needs=("valueFormat",),
    ),
    Option("keyColumns", "the same for the key, without `*`; they stay in the value, too (ours)", "key"),
    Option(
        "valueSchema",
        "for avro: an Avro schema, or `http(s)://registry/subjects/NAME/versions/latest`; for protobuf: a descriptor "
        "file of protoc; for json with a registry: a JSON Schema, or its URL there; or a file that holds it, any "
        "fsspec URL. If unset and `schema.registry.url` is set: the latest schema of the subject (ours)",
        formats=REGISTERED,
    ),
    Option("keySchema", "the same for the key (ours)", formats=REGISTERED),
    Option("valueMessage", "for protobuf: the message, as for reads; needed with a file (ours)", formats=("protobuf",)),
    Option("keyMessage", "the same for the key (ours)", formats=("protobuf",)),
    *each(_BY_REGISTRY, formats=REGISTERED, needs=REGISTRY),
    Option(
        REGISTRY_URL,
        "schema registry, `http(s)://host:port`, several addresses of one registry separated by commas; values begin "
        "with Confluent's prefix then. Only the driver asks it (ours)",
        formats=REGISTERED,
    ),
    REGISTRY_KIND,
    *REGISTRY_ACCESS,
    *AVRO_ENCODING,
    Option(
        "ignoreNullFields",
        "for json: false writes fields that are null, true leaves them out (ours, as in to_json)",
        "true",
        formats=("json",),
    ),
    Option(
        "timestampFormat",
        "for json: how timestamps are written, in the session's time zone (ours, as in to_json)",
        "`yyyy-MM-dd'T'HH:mm:ss[.SSS][XXXXX]`",
        formats=("json",),
    ),
    Option(
        "timestampNTZFormat",
        "for json: how timestamps without a zone are written (ours, as in to_json)",
        "`yyyy-MM-dd'T'HH:mm:ss[.SSS]`",
        formats=("json",),
    ),
    Option("dateFormat", "for json: how dates are written (ours, as in to_json)", "`yyyy-MM-dd`", formats=("json",)),
    Option(
        "mode",
        "what happens to a row that cannot be encoded: FAILFAST (the write fails and names it), or DROPMALFORMED (it "
        "goes to `badRowsTopic`) (ours)",
        "FAILFAST; DROPMALFORMED with `badRowsTopic`",
        choices=tuple(mode.name for mode in WriteMode),
        formats=FORMATS,
    ),
    Option(
        "badRowsTopic",
        "topic of the rows that cannot be encoded, as JSON with the reason in headers; in the transactions of the "
        "write if that is exactly-once. It must exist (ours)",
        formats=FORMATS,
    ),
)
