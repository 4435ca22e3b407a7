"""What is wrong in options of reads and writes, and how it is said; test_option_table.py has more, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from broker.errors import ConfigError
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options

MINIMUM = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
URL = "schema.registry.url"
USER = "schema.registry.basic.auth.user.info"
TOKEN = "schema.registry.bearer.auth.token"
JSON = {"valueFormat": "json", "valueSchema": "a INT"}
AVRO = {"valueFormat": "avro", "valueSchema": '"long"'}

Options = Mapping[str, str | None]
"""Beside MINIMUM; None takes one of that away."""
Wrong = list[tuple[Options, str]]

OF_READS: Wrong = [
    ({"maxOffsetPerTriger": "5"}, r"Unknown option 'maxOffsetPerTriger'.*'maxOffsetsPerTrigger'"),
    ({"path": "t"}, r"Unknown option 'path'"),
    ({"security.protocol": "SSL"}, r"begin with 'kafka.'"),
    ({"kafka.no.such": "1"}, r"'kafka\.\*'.*no\.such"),
    ({"kafka.isolation.level": "dirty"}, r"isolation\.level"),
    ({"kafka.bootstrap.servers": None}, r"Option 'kafka.bootstrap.servers' must be specified"),
    ({"kafka.bootstrap.servers": "localhost:x"}, r"is not host or host:port"),
    ({"subscribe": None}, r"One of the following options must be specified for Kafka source: subscribe"),
    ({"assign": '{"t":[0]}'}, r"Only one of the following options can be specified.*subscribe, assign"),
    ({"subscribe": None, "assign": '{"t":[-1]}'}, r"Option 'assign': Expected e.g. .*got"),
    ({"startingOffsets": '{"t":'}, r"Option 'startingOffsets' is not JSON"),
    ({"startingOffsets": '{"t":{"0":"5"}}'}, r"Option 'startingOffsets': Expected e.g."),
    ({"startingOffsets": '{"t":{"0":true}}'}, r"Option 'startingOffsets': Expected e.g."),
    ({"startingOffsets": '{"t":{"0":9223372036854775808}}'}, r"Expected e.g."),
    ({"startingOffsets": '{"t":{"x":5}}'}, r"Option 'startingOffsets': Expected e.g."),
    ({"startingTimestamp": "noon"}, r"'startingTimestamp' must be a whole number, not 'noon'"),
    ({"endingOffsetsByTimestamp": '{"t":{"0":-1}}'}, r"timestamp -1 of t-0 must not be negative"),
    ({"startingOffsets": "latest"}, r"starting offset can't be latest for batch queries"),
    ({"startingOffsets": '{"t":{"0":-1}}'}, r"startingOffsets for t-0 can't be latest for batch"),
    ({"endingOffsets": "committed"}, r"committed only makes sense as a start"),
    ({"startingOffsets": "committed"}, r"needs options 'offsetStore' and 'group'"),
    ({"offsetStore": "files"}, r"'offsetStore' needs option 'group'"),
    ({"group": "g"}, r"'group' needs option 'offsetStore'"),
    ({"offsetStore": "redis", "group": "g"}, r"must be one of zookeeper, files, group, not 'redis'"),
    ({"offsetStore": "files", "group": "a/b"}, r"group 'a/b' cannot be used"),
    ({"failOnDataLoss": "yes"}, r"'failOnDataLoss' must be true or false, not 'yes'"),
    ({"columns": "key,val"}, r"'columns': unknown column 'val'\. Did you mean 'value'\? Columns are: key"),
    ({"columns": "x"}, r"unknown column 'x'\. Columns are: key, value, topic"),
    ({"columns": " "}, r"'columns' has an empty name"),
    ({"columns": "key,value,KEY"}, r"'columns' names 'key' twice"),
    ({"columns": "key", "includeHeaders": "true"}, r"'includeHeaders' is true, option 'columns'"),
    ({"columns": "headers", "includeHeaders": "false"}, r"'includeHeaders' is false, option"),
    ({"minPartitions": "1.5"}, r"'minPartitions' must be a whole number, not '1.5'"),
    ({"maxBytesPerTrigger": "64 megs"}, r"'maxBytesPerTrigger' must be a size in bytes, or like .* not '64 megs'"),
    ({"maxBytesPerPartition": "0k"}, r"'maxBytesPerPartition' must be positive"),
    ({"maxBytesPerPartition": "9000p"}, r"'maxBytesPerPartition' must be at least 1 and fit in 64"),
    ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, r"\(9\) is higher than the .*\(5\)"),
    ({"kafka.auto.offset.reset": "latest"}, r"is not supported.*'startingOffsets'"),
]
OF_COLUMNS: Wrong = [
    ({"valueFormat": "xml"}, "must be binary or string or json or avro or protobuf or csv, not 'xml'"),
    ({"valueFormat": "json"}, "'valueFormat'=json needs option 'valueSchema': Spark's DDL"),
    ({"valueFormat": "avro"}, r"needs option 'valueSchema': an Avro schema, a file, or a registry"),
    ({"valueSchema": "a INT"}, "'valueSchema' has no effect: it needs 'valueFormat' to be json"),
    ({"keyFormat": "string", "keySchema": "a INT"}, "'keySchema' has no effect: it needs 'keyFormat' to be json"),
    ({"mode": "FAILFAST"}, "'mode' has no effect: it needs 'valueFormat' or 'keyFormat'"),
    ({"badRecordsTopic": "b"}, "'badRecordsTopic' has no effect"),
    ({URL: "http://h"}, "has no effect"),
    ({"valueFormat": "csv", "valueSchema": "a INT", URL: "http://h"}, "to be json, avro or protobuf"),
    ({**JSON, "recursiveFieldMaxDepth": "3"}, "'recursiveFieldMaxDepth' has no effect: it needs .* to be avro"),
    ({**AVRO, "recursiveFieldMaxDepth": "16"}, "^Option 'recursiveFieldMaxDepth' should not be greater than 15"),
    ({**AVRO, "recursiveFieldMaxDepth": "-2"}, "'recursiveFieldMaxDepth' must be at least -1"),
    ({**AVRO, "recursiveFieldMaxDepth": "x"}, "'recursiveFieldMaxDepth' must be a whole number"),
    ({**JSON, "sep": ";"}, "'sep' has no effect: it needs 'valueFormat' or 'keyFormat' to be csv"),
    ({**JSON, "mode": "LENIENT"}, "'mode' must be permissive or dropmalformed or failfast, not 'LENIENT'"),
    ({**JSON, "mode": "FAILFAST", "columnNameOfCorruptRecord": "c"}, "needs 'mode' to be PERMISSIVE"),
    ({**JSON, "mode": "FAILFAST", "badRecordsTopic": "b"}, "the first bad record ends the read"),
    ({**JSON, "badRecordsTopic": "t"}, "a topic that is not itself read, not 't'"),
    ({**JSON, "columnNameOfCorruptRecord": "offset"}, "there is a column 'offset' already"),
    ({**JSON, "columns": "key,offset"}, "option 'columns' leaves out value"),
    ({**JSON, "valueSchema": "a INTEGR"}, "'valueSchema': Schema is not Spark's DDL.*'integr' is not a type"),
    ({"valueFormat": "csv", "valueSchema": "http://h/subjects/s/versions/1"}, "csv cannot come from a registry"),
    ({**JSON, "valueFormat": "csv", "valueSchema": "a ARRAY<INT>"}, "CSV values cannot hold field a"),
    ({"valueFormat": "csv", "valueSchema": "a INT", "sep": "||"}, "'sep' must be one ASCII character"),
    ({"valueFormat": "csv", "valueSchema": "a INT", "sep": '"'}, "'sep' must be one ASCII character"),
    ({**AVRO, "valueSchema": "a INT"}, "'valueSchema': Not an Avro schema"),
    ({**AVRO, "valueSchema": "http://me@h/schema.avsc"}, r"must be in a schema registry.*'http://\*\*\*@h/schema"),
    ({**AVRO, "valueSchema": "http://me:hush@h/subjects/s/versions/1"}, f"plans would show: .* set '{URL}'"),
    ({**AVRO, "keyFormat": "avro", "keySchema": "ftp://me:hush@h/a.avsc"}, "'keySchema' has a user and a password"),
    ({**AVRO, URL: "ftp://h"}, r"must be http\(s\)://host:port"),
    ({**AVRO, URL: "http://h:port"}, r"must be http\(s\)://host:port"),
    ({**AVRO, USER: "me:hush"}, f"it needs '{URL}'"),
    ({**AVRO, URL: "http://a:b@h", USER: "me:hush"}, "Set one of"),
    ({**AVRO, URL: "http://h", USER: "me:hush", TOKEN: "x"}, "Set one of"),
    ({**AVRO, "valueSchema": "http://h/subjects/s/versions/1", URL: "http://i"}, "more than one registry"),
    ({**AVRO, URL: "http://h", TOKEN: "hu\nsh"}, f"'{TOKEN}' has a blank, a line break or"),
    ({**AVRO, URL: "http://h", TOKEN: "hu\u20acsh"}, f"'{TOKEN}' has a blank, a line break or"),
]
OF_FILTERS: Wrong = [
    ({"filterPartitions": '{"t":[0]}'}, r"'filterPartitions': Expected e.g. 0,2-5 or per topic"),
    ({"filterPartitions": "{"}, r"'filterPartitions' is not JSON"),
    ({"filterOffsets": '{"t":"5"}'}, r"'filterOffsets': Expected e.g. 100-199 or per partition"),
    ({"filterOffsets": '{"t":{"x":"5"}}'}, r"'filterOffsets': Expected e.g."),
    ({"filterTimestampFrom": "noon"}, r"'filterTimestampFrom' must be a whole number"),
    ({"filterTimestampUntil": "-1"}, r"'filterTimestampUntil' must be at least 0"),
    ({"filterTimestampFrom": "5", "filterTimestampUntil": "5"}, r"From\(5\) must be below filterTimestampUntil\(5"),
    ({"filterKeyPrefix": " "}, r"'filterKeyPrefix' is empty"),
    ({"filterKeyPrefix": "X''"}, r"'filterKeyPrefix' is empty"),
    ({"filterHeader": "=x"}, r"'filterHeader' must be a name"),
    ({"filterHeder": "x"}, r"Unknown option 'filterHeder'.*Did you mean 'filterHeader'"),
    ({"filterKey": " "}, r"'filterKey' has an empty key"),
    ({"filterKey": "a,,b"}, r"'filterKey' has an empty key.*X''; a key with a comma is written as bytes"),
    ({"filterKeyPartitioner": "murmur2"}, r"'filterKeyPartitioner' has no effect without 'filterKey', or key ="),
    ({"filterKeyPartitioner": "murmur2", "filterKeyPrefix": "a"}, r"'filterKeyPartitioner' has no effect without"),
    ({"filterKeyPartitioner": "crc32", "filterKey": "a"}, r"'filterKeyPartitioner' must be murmur2, not 'crc32'"),
    ({"timestampsGrow": "yes"}, r"'timestampsGrow' must be true or false, not 'yes'"),
    ({"where": ""}, r"'where' cannot use the term"),
    ({"where": "key = 'a' OR key = 'b'"}, r"'where' cannot use the term .*joined by AND"),
    ({"pushDown": "true"}, r"'pushDown'.*silently misses rows.*Use the options columns, where and filter…"),
    ({"pushDown": "maybe"}, r"'pushDown' must be true or false"),
]
OF_WRITES: Wrong = [
    ({"delivery": "twice"}, "must be exactly-once or at-least-once, not 'twice'"),
    ({"delivary": "x"}, "Did you mean 'delivery'"),
    ({"subscribe": "u"}, "Unknown option 'subscribe'"),
    ({"batch.size": "1"}, "begin with 'kafka.': 'kafka.batch.size'"),
    ({"topic": " "}, "'topic' is empty"),
    ({"includeHeaders": "yes"}, "true or false"),
    ({"transactionalIdPrefix": "a b"}, "transactionalIdPrefix"),
    ({"txnAppId": "a~b"}, "'txnAppId' must be letters"),
    ({"txnAppId": "a", "txnVersion": "-1"}, "'txnVersion' must be at least 0"),
    ({"txnVersion": "1"}, "'txnVersion' has no effect: it needs 'txnAppId'"),
    ({"txnAppId": "a", "delivery": "at-least-once"}, "needs delivery=exactly-once"),
    ({"kafka.key.serializer": "x"}, "key.serializer' is not supported"),
    ({"kafka.transactional.id": "x"}, "transactionalIdPrefix"),
    ({"kafka.transaction.timeout.ms": "soon"}, "whole number"),
    ({"kafka.acks": "maybe"}, "kafka"),
    ({"kafka.bootstrap.servers": ""}, "bootstrap.servers' must be specified"),
    ({"kafka.acks": "1", "delivery": "exactly-once"}, "exactly-once needs acks=all"),
    ({"kafka.enable.idempotence": "false", "delivery": "exactly-once"}, "exactly-once needs acks=all"),
]


def read(mode: Mode) -> Callable[[dict[str, str]], object]:
    return lambda options: parse_options(options, mode)


def write(options: dict[str, str]) -> object:
    given = {name: value for name, value in options.items() if (name, value) != ("subscribe", "t")}
    return parse_write_options(given, stream=False)


def in_stream(options: Options, said: str) -> str:
    of_batches = {"filterOffsets", "timestampsGrow"} & options.keys()
    return f"'{of_batches.pop()}' is for batch queries" if of_batches else said


CASES = [
    *((read(Mode.BATCH), options, said) for options, said in OF_READS),
    *((read(Mode.ANY), options, said) for options, said in OF_COLUMNS),
    *((read(mode), options, said) for options, said in OF_FILTERS for mode in (Mode.ANY, Mode.BATCH)),
    *((read(Mode.STREAM), options, in_stream(options, said)) for options, said in OF_FILTERS),
    *((write, options, said) for options, said in OF_WRITES),
]


@pytest.mark.parametrize(("parse", "options", "said"), CASES, ids=[f"{options}" for _, options, _ in CASES])
def test_what_is_wrong_is_said(parse: Callable[[dict[str, str]], object], options: Options, said: str) -> None:
    given = {name: value for name, value in {**MINIMUM, **options}.items() if value is not None}
    with pytest.raises(ConfigError, match=said) as raised:
        parse(given)
    assert "hush" not in str(raised.value)
