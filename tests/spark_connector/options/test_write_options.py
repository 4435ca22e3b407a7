"""The options of a write: names, defaults, and what is refused how."""

from __future__ import annotations

import pickle

import pytest

from broker.errors import ConfigError
from spark_connector.options.option_table import WRITE_OPTIONS
from spark_connector.options.write_options import WriteOptions, parse_write_options

SERVERS = {"kafka.bootstrap.servers": "host:9092"}


def parse(stream: bool = False, **options: str) -> WriteOptions:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return parse_write_options({**SERVERS, **named}, stream=stream)


def test_defaults_differ_between_batch_and_stream() -> None:
    assert not parse().exactly_once
    assert parse(stream=True).exactly_once
    assert parse(delivery="Exactly-Once").exactly_once
    assert parse().include_headers is None
    assert parse().transactional_id_prefix == "pykafka-sink"
    assert parse().transaction_timeout_ms is None


def test_names_are_taken_in_any_case_and_sparks_own_are_let_through() -> None:
    given = {**SERVERS, "checkpointlocation": "/tmp/x", "TOPIC": "t", "KAFKA.linger.ms": "1"}
    options = parse_write_options(given, stream=True)
    assert options.topic == "t"
    assert options.client.linger_ms == 1


def test_producer_properties_reach_the_client_over_our_defaults() -> None:
    assert 4 * parse().client.batch_size < parse().client.max_request_size, "four to a request"
    assert parse(kafka_batch_size="1000").client.batch_size == 1000
    assert parse(kafka_transaction_timeout_ms="5000").transaction_timeout_ms == 5000


def test_a_write_with_a_name_is_exactly_once_and_a_stream_takes_none() -> None:
    options = parse(txnAppId="copy", txnVersion="7")
    assert (options.exactly_once, options.txn_app_id, options.txn_version) == (True, "copy", 7)
    assert parse(txnAppId="copy").txn_version is None
    with pytest.raises(ConfigError, match="are for batch writes"):
        parse(stream=True, txnAppId="copy")


def test_options_travel_and_show_no_password() -> None:
    options, same = (
        parse(kafka_sasl_password="geheim", kafka_sasl_mechanism="PLAIN", kafka_sasl_username="me") for _ in range(2)
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options) == hash(same)
    assert "geheim" not in repr(options)


def test_every_declared_option_is_read() -> None:
    values = {"delivery": "exactly-once", "includeHeaders": "true", "transactionalIdPrefix": "x", "topic": "t"}
    values |= {"txnAppId": "a", "txnVersion": "1"}
    assert {option.name for option in WRITE_OPTIONS} == {*values, *SERVERS}
    changed = parse_write_options({**SERVERS, **values}, stream=False)
    assert (changed.topic, changed.include_headers, changed.transactional_id_prefix) == ("t", True, "x")
