"""The properties file of a command that loads: which of its settings go to the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ConfigError
from spark_connector.cli.load_options import cluster_options
from spark_connector.options.read_options import Mode, SourceOptions, parse_options

CONSUMERS = """\
bootstrap.servers=h:1
group.id=reports
auto.offset.reset=earliest
enable.auto.commit=false
auto.commit.interval.ms=1000
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
fetch.min.bytes=5
"""


def parsed(file: Path, **options: str) -> SourceOptions:
    servers, given = cluster_options(None, file, {f"kafka.{name.replace('_', '.')}": options[name] for name in options})
    return parse_options({"kafka.bootstrap.servers": servers, "subscribe": "t", **given}, Mode.BATCH)


def test_a_consumers_file_is_taken_and_what_would_say_where_to_start_left_out(tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text(CONSUMERS, encoding="utf-8")
    settings = parsed(file).client
    assert (settings.bootstrap_servers, settings.fetch_min_bytes) == (("h:1",), 5)
    for name, value in (("auto_offset_reset", "earliest"), ("enable_auto_commit", "false")):
        with pytest.raises(ConfigError, match="is not supported"):
            parsed(file, **{name: value})
