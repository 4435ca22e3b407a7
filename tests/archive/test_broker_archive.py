"""A broker with an archive: what it refuses at its start, and what it tells while its archive does not go on."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest

from broker.archive.broker_archive import open_archive
from broker.clock import SystemClock
from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError, PykafkaError
from tests.support.broker_process import BrokerProcess
from tests.support.fake_s3 import FakeS3
from tests.support.raw_requests import Requests, batch
from tests.support.scrape import Scrape, health
from tests.support.waiting import eventually

PREFIX = "kafka_server_brokertopicmetrics_remote"


def config_of(url: str, options: dict[str, str], data: Path) -> BrokerConfig:
    settings = {"archive.url": url, "remote.log.storage.system.enable": "true", "log.dirs": str(data)}
    return BrokerConfig.load(None, settings | {f"archive.options.{key}": value for key, value in options.items()})


def test_a_store_without_a_working_condition_is_refused_at_the_start(s3: FakeS3, tmp_path: Path) -> None:
    """Promise A13."""
    s3.reset(ignores_conditions=True)
    url = f"s3://careless-{uuid.uuid4().hex}/kafka"
    with pytest.raises(ConfigError, match="ignores the condition"):
        open_archive(config_of(url, s3.options, tmp_path), "cluster", SystemClock())
    settings = {"archive.url": url, "remote.log.storage.system.enable": "true"}
    settings |= {f"archive.options.{key}": value for key, value in s3.options.items()}
    with pytest.raises(PykafkaError) as refused:
        BrokerProcess(tmp_path / "broker", settings, standalone=True).start()
    assert "ignores the condition" in str(refused.value)
    assert s3.options["secret"] not in str(refused.value)


def test_a_store_that_is_away_does_not_keep_a_broker_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: object) -> None:
        raise ConnectionError("no answer of https://me:hunter2@store/")

    monkeypatch.setattr("broker.storage.storage.LocalStorage.probe", away)
    with caplog.at_level(logging.WARNING):
        archive = open_archive(config_of(str(tmp_path / "archive"), {}, tmp_path), "cluster", SystemClock())
    archive.reader.close()
    assert "the archive does not answer: no answer of https://" in caplog.text
    assert "hunter2" not in caplog.text


def test_an_archive_that_does_not_go_on_is_told_and_stops_nobody(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    place.write_text("no directory")
    settings = {
        "archive.url": str(place),
        "remote.log.storage.system.enable": "true",
        "archive.cluster.backup.interval.ms": "200",
        "metrics.listener": "HTTP://127.0.0.1:0",
        "log.flush.scheduler.interval.ms": "50",
    }
    with BrokerProcess(tmp_path / "broker", settings, standalone=True) as broker, Requests(broker.bootstrap) as ask:
        ask.create("events", remote_storage_enable="true", segment_bytes="100")
        for _ in range(3):
            ask.produce({("events", 0): batch(b"x")})
        said = ("events-0: ", "cannot back up the cluster's metadata: ")
        eventually(lambda: all(words in health(broker)[1]["checks"]["archive"] for words in said))
        code, report = health(broker)
        assert (code, report["status"]) == (200, "degraded")

        def total(name: str) -> float:
            return Scrape(broker.metrics_url).total(PREFIX + name, topic="events")

        assert total("copylagsegments") == 2
        assert total("copylagbytes") == 2 * len(batch(b"x"))
        assert total("copyerrors_total") > 0
        place.unlink()
        eventually(lambda: health(broker)[1]["status"] == "ok" and total("copylagsegments") == 0)
        assert total("copybytes_total") == total("logsizebytes") == 2 * len(batch(b"x"))
        assert total("copyrequests_total") == 2
        assert ask.values("events") == [b"x"]
