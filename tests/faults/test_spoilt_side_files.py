"""A broker is killed and its side files are spoilt, as a power loss leaves them: it starts, and serves what it can."""

from __future__ import annotations

import shutil
from pathlib import Path

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.conftest import BrokerFactory
from tests.support.raw_requests import LATEST, Requests, ask_for, batch
from tests.support.scrape import health
from tests.support.waiting import eventually

PARTITIONS = range(8)
VALUES = [b"%d" % number for number in range(20)]


def test_a_broker_starts_without_its_side_files_and_without_a_directory(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    roots = [tmp_path / "first", tmp_path / "second"]
    settings = {
        "log.dirs": ",".join(map(str, roots)),
        "metrics.listener": "HTTP://127.0.0.1:0",
        # The file with its ZooKeeper session is spoilt too: the start waits until the killed broker's session expires.
        "zookeeper.session.timeout.ms": "2000",
    }
    broker = broker_factory(settings)
    with Requests(broker.bootstrap) as requests:
        requests.create("t", len(PARTITIONS))
        for partition in PARTITIONS:
            requests.put("t", *VALUES, partition=partition)
    broker.kill()
    for path in [*roots[0].glob("t-*/*"), *roots[0].iterdir()]:
        if path.is_file() and path.suffix != ".log" and path.name != ".lock":
            path.write_bytes(b"")
    shutil.move(roots[1], tmp_path / "aside")
    roots[1].write_text("a file where a directory was")

    broker.start()
    served = [partition for partition in PARTITIONS if (roots[0] / f"t-{partition}").is_dir()]
    lost = [partition for partition in PARTITIONS if partition not in served]
    assert served
    assert lost
    with Requests(broker.bootstrap) as requests:
        for partition in served:
            assert requests.values("t", partition=partition) == VALUES
            requests.put("t", b"goes on", partition=partition)
        for partition in lost:
            answer = requests.produce({("t", partition): batch(b"refused")})["t", partition]
            assert answer.error_code is ErrorCode.kafka_storage_error
            assert f"t-{partition} is offline: cannot use {roots[1]}" in answer.error_message
            [found] = requests.fetch([ask_for("t", partition=partition)], version=12)
            assert found.error_code is ErrorCode.kafka_storage_error
        requests.create("new", 2)
        requests.put("new", b"a new topic lies in the other directory", partition=1)
        directories = requests.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}).results
        assert {found.log_dir: found.error_code for found in directories} == {
            str(roots[0]): ErrorCode.none,
            str(roots[1]): ErrorCode.kafka_storage_error,
        }
    assert f"log.dirs: {roots[1]} is offline" in broker.output
    assert "Traceback" not in broker.output
    status, report = health(broker)
    assert status == 503
    assert str(roots[1]) in report["checks"]["log.dirs"]

    roots[1].unlink()
    shutil.move(tmp_path / "aside", roots[1])
    broker.restart()
    with Requests(broker.bootstrap) as requests:
        ends = {partition: requests.list_offset("t", LATEST, partition).offset for partition in PARTITIONS}
        assert ends == {partition: 21 if partition in served else 20 for partition in PARTITIONS}
    eventually(lambda: health(broker)[0] == 200)
