"""A load that fails for what a person can mend says what to do: buckets, keys, drivers, lost topics, rivals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ConfigError
from spark_connector.destinations import open_destination
from spark_connector.errors import DataLoss
from spark_connector.loads.record import LoadError, failed_load
from spark_connector.loads.request import Target
from spark_connector.offset_store.base import OffsetConflict
from tests.support.fake_s3 import FakeS3
from tests.support.history_loads import HistoryLoads
from tests.support.kafka import Kafka
from tests.support.topics import Topic


@pytest.mark.parametrize(
    ("bucket", "without", "message"),
    [
        (
            "missing-lake",
            (),
            r"NoSuchBucket.* There is no such bucket: create it, or mend its name, .*--storage-opt",
        ),
        ("lake", ("key", "secret"), r"Set the storage options key and secret .*, or AWS_ACCESS_KEY_ID and AWS_SECRET"),
        ("lake", ("secret",), r"Set the storage options key and secret .*--storage-option"),
    ],
)
def test_a_store_that_cannot_be_used_says_what_is_missing(
    bucket: str, without: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with FakeS3() as s3:
        options = {name: value for name, value in s3.options.items() if name not in without}
        target = Target(f"s3://{bucket}/t", "g", format="delta", storage_options=options).check()
        with pytest.raises(LoadError, match=message) as caught:
            look_into(target)
    assert not caught.value.retriable


def look_into(target: Target) -> None:
    """What a load does first."""
    with open_destination(target) as site:
        site.repair()
        site.log.newest()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the table x: OSError: When reading: AWS Error NO_SUCH_BUCKET during HeadObject", "There is no such bucket"),
        ("gs://b/t: PermissionError: DefaultCredentialsError: no file", "options token, .*GOOGLE_APPLICATION_CRED"),
        ("abfs://b/t: PermissionError: ClientAuthenticationError: no token", "options account_name and account_key"),
        ("abfss://b/t: OSError: ContainerNotFound", "There is no such bucket"),
    ],
)
def test_each_store_has_its_own_words(text: str, message: str) -> None:
    assert failed_load(text, text.partition(": ")[2]).args[0].startswith(text)
    with pytest.raises(LoadError, match=message):
        raise failed_load(text, text.partition(": ")[2])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://h/db#t", "'MySQLdb'. pip install mysqlclient, or name a driver that is installed in the URL"),
        ("postgresql+psycopg2://h/db#t", "'psycopg2'. pip install psycopg2-binary, or name a driver"),
        (
            "postgresql+nope://h/db#t",
            r"knows no database 'postgresql\+nope': install the package that has this dia",
        ),
    ],
)
def test_a_database_without_its_driver_says_what_to_install(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), open_destination(Target(url, "g").check()):
        pass


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_topic_that_was_made_again_says_how_to_go_on(broker: Kafka, topic: str, tmp_path: Path, format: str) -> None:
    made, loads = Topic(broker.bootstrap, topic), HistoryLoads(broker.bootstrap, topic, str(tmp_path / "t"), format)
    made.number(3)
    loads.must_load()
    made.delete()
    made.create()
    made.number(2)
    told = r"deleted and created again.* run the load once with option failOnDataLoss=false \(--option failOnDataLoss=f"
    with pytest.raises(DataLoss, match=told):
        loads.load()
    assert loads.load(options={"failOnDataLoss": "false"}).rows == 2
    made.number(1)
    assert loads.load().rows == 1


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_of_two_rival_loads_one_is_told_to_run_again(broker: Kafka, topic: str, tmp_path: Path, format: str) -> None:
    made, loads = Topic(broker.bootstrap, topic), HistoryLoads(broker.bootstrap, topic, str(tmp_path / "t"), format)
    made.produce([json.dumps({"n": number}).encode() for number in range(3)])

    def rival(phase: str, record: Any) -> None:
        if phase == "write":
            loads.must_load()

    with pytest.raises(OffsetConflict, match=r"Nothing is lost, and nothing is there twice: run it again"):
        loads.load(rival)
    assert loads.load().load_id is None, "the rival has loaded all"
