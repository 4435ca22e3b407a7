"""The settings of the archive: what they need of each other, and that nobody sees the options of the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.api.config_entries import broker_entries
from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_config import DynamicConfig
from broker.errors import ConfigError

ON = {"remote.log.storage.system.enable": "true", "archive.url": "s3://bucket/kafka"}


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"archive.url": "s3://bucket/kafka"}, "remote.log.storage.system.enable is not true: set it"),
        ({"remote.log.storage.system.enable": "true"}, "set archive.url"),
        ({"archive.options.secret": "x"}, "archive.options.secret is set, but archive.url is not"),
        (ON | {"archive.url": "hdfs://me:hunter2@host/x"}, "archive.url=hdfs://me:***@host/x: clients see it"),
        (ON | {"archive.options.secret": "${env:NO_SUCH_VARIABLE}"}, "no variable NO_SUCH_VARIABLE"),
        (ON | {"archive.options.secret": "${file:/nowhere}"}, "write ${file:PATH:KEY}"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_set(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.load(None, properties)
    assert complaint in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_an_option_comes_from_where_its_value_points_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("the.key=of the file\n", encoding="utf-8")
    monkeypatch.setenv("ARCHIVE_SECRET", "of the environment")
    given = {
        "archive.options.key": f"${{file:{secrets}:the.key}}",
        "archive.options.secret": "${env:ARCHIVE_SECRET}",
        "archive.options.endpoint_url": "http://localhost:1",
    }
    config = BrokerConfig.load(None, ON | given)
    assert config.archive_options == {
        "key": "of the file",
        "secret": "of the environment",
        "endpoint_url": "http://localhost:1",
    }
    with pytest.raises(ConfigError, match=r"has no line other=…"):
        BrokerConfig.load(None, ON | {"archive.options.key": f"${{file:{secrets}:other}}"})


def test_nobody_sees_the_options_of_the_store() -> None:
    config = BrokerConfig.load(None, ON | {"archive.options.secret": "hunter2"})
    assert "hunter2" not in repr(config)
    entries = {entry.name: entry for entry in broker_entries(DynamicConfig(config))}
    option = entries["archive.options.secret"]
    assert (option.value, option.sensitive, option.read_only) == (None, True, True)
    assert [one.value for one in option.synonyms] == [None]
    assert entries["archive.url"].value == "s3://bucket/kafka"


@pytest.mark.parametrize("url", ["data/archive", "file:data/archive", "local:data/archive"])
def test_clients_get_the_whole_path_of_a_directory(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run in other directories than the broker."""
    monkeypatch.chdir(tmp_path)
    config = BrokerConfig.load(None, ON | {"archive.url": url})
    assert config.archive_url == f"file://{tmp_path}/data/archive"
    entries = {entry.name: entry for entry in broker_entries(DynamicConfig(config))}
    assert entries["archive.url"].value == config.archive_url


@pytest.mark.parametrize("url", ["file:///data/archive", "hdfs://host/data", "s3://bucket/kafka"])
def test_a_whole_url_stays_as_it_is(url: str) -> None:
    assert BrokerConfig.load(None, ON | {"archive.url": url}).archive_url == url
