"""Options of reads from an archive: what is refused, and that no secret is shown."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from spark_connector.options.archive_options import ArchiveOptions
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.options.write_options import parse_write_options

BROKER = {"kafka.bootstrap.servers": "localhost:9092"}


def parsed(**options: str) -> SourceOptions:
    return parse_options({"subscribe": "t", **options}, Mode.BATCH)


def test_where_records_come_from() -> None:
    assert parsed(**BROKER).archive is None
    assert parsed(archive="Broker", **BROKER).archive is None
    assert parsed(archive="direct", **BROKER).archive == ArchiveOptions(False)
    storage = {"archive.option.Endpoint_URL": "http://here", "archive.option.secret": "hush"}
    found = parsed(archive="only", **{"archive.url": "s3://b/kafka", "archive.cluster": "c1"}, **storage).archive
    assert found == ArchiveOptions(True, "s3://b/kafka", {"endpoint_url": "http://here", "secret": "hush"}, "c1")


def test_a_storage_option_may_have_a_name_that_spark_hides() -> None:
    found = parsed(archive="direct", **BROKER, **{"archive.option.secret.account_key": "hush"}).archive
    assert found is not None
    assert found.storage_options == {"account_key": "hush"}


def test_no_secret_is_shown() -> None:
    storage = {"archive.option.secret": "hush", "archive.url": "s3://quiet/kafka"}
    shown = repr(parsed(archive="direct", **BROKER, **storage))
    assert "hush" not in shown
    assert "quiet" not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"archive": "fast"}, "'archive' must be broker or direct or only, not 'fast'"),
        ({"archive": "only"}, "'archive'=only needs option 'archive.url'"),
        ({"archive": "direct", "archive.url": ""}, "'archive.url' is empty"),
        ({"archive.url": "s3://b/k"}, "'archive.url' has no effect: it needs 'archive' to be direct or only"),
        ({"archive.option.secret": "hush"}, "'archive.option.secret' has no effect: it needs 'archive'"),
        ({"archive": "direct", "archive.cluster": "c"}, "'archive.cluster' has no effect: it needs 'archive'"),
        ({"archive": "direct", "archive.url": "s3://u:hush@b/k"}, "'archive.url' holds a login"),
        ({"archive": "direct", "archive.option.": "hush"}, "lacks the name of a storage option"),
        ({"archive": "direct", "archive.option.account_key": "hush"}, r"write 'archive\.option\.secret\.account_key'"),
        ({"archive": "direct", "archive.urls": "x"}, "Unknown option 'archive.urls'.*'archive.url'"),
    ],
)
def test_what_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parsed(**BROKER, **options)
    assert "hush" not in str(caught.value)


def test_the_archive_alone_needs_no_broker_unless_something_else_does() -> None:
    only = {"archive": "only", "archive.url": "s3://b/kafka"}
    assert parsed(**only).client.bootstrap_servers == ("no-broker.invalid:9092",)
    assert parsed(**only, **BROKER).client.bootstrap_servers == ("localhost:9092",)
    with pytest.raises(ConfigError, match="'kafka.bootstrap.servers' must be specified"):
        parsed(**only, offsetStore="group", group="g")
    with pytest.raises(ConfigError, match="'kafka.bootstrap.servers' must be specified"):
        parsed(**only, valueFormat="json", valueSchema="a INT", badRecordsTopic="bad")


def test_writes_have_no_archive() -> None:
    with pytest.raises(ConfigError, match=r"Unknown option 'archive\.option\.secret'"):
        parse_write_options({**BROKER, "archive.option.secret": "hush"}, stream=False)
