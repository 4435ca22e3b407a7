"""A directory of log.dirs, or a log in it, is not there at a start: nothing is lost without a word."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from broker.errors import ErrorCode, PykafkaError
from broker.log.checkpoints import PARTITION_METADATA, write_topic_id
from broker.log.log_directory import partition_name
from broker.protocol.api_keys import ApiKey
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.registry import Registry
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, verdict_of
from tests.support.raw_requests import LATEST, Requests, ask_for, batch
from tests.support.scrape import Scrape, health
from tests.support.waiting import eventually

PARTITIONS = range(6)
VALUES = [b"%d" % number for number in range(20)]
METRICS = {"metrics.listener": "HTTP://127.0.0.1:0"}
SHORT_SESSION = {"zookeeper.session.timeout.ms": "2000"}
"""The file with the session is gone with the disk: the start waits until the session expires."""


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    return [tmp_path / "first", tmp_path / "second"]


@pytest.fixture
def broker(tmp_path: Path, roots: list[Path]) -> Iterator[BrokerProcess]:
    """Two directories, each with some partitions of the topic `t`."""
    settings = {"standalone": "true", "log.dirs": ",".join(map(str, roots)), **METRICS}
    with BrokerProcess(tmp_path / "process", settings) as broker:
        fill(broker)
        yield broker


def fill(broker: BrokerProcess, topic: str = "t", count: int = len(PARTITIONS)) -> None:
    with Requests(broker.bootstrap) as ask:
        ask.create(topic, count)
        for partition in range(count):
            ask.put(topic, *VALUES, partition=partition)


def partitions_in(root: Path, topic: str = "t") -> list[int]:
    found = (partition_name(path) for path in root.glob(f"{topic}-*"))
    return sorted(tp.partition for tp in found if tp is not None)


def ends(broker: BrokerProcess, topic: str = "t", count: int = len(PARTITIONS)) -> Mapping[int, int]:
    with Requests(broker.bootstrap) as ask:
        return {partition: ask.list_offset(topic, LATEST, partition).offset for partition in range(count)}


def check_offline(broker: BrokerProcess, lost: list[int], reason: str, topic: str = "t") -> None:
    """To clients, to whoever describes the topic, to metrics, to a load balancer and in the log."""
    with Requests(broker.bootstrap) as ask:
        told = {one.partition_index: one for one in ask.metadata(topic).topics[0].partitions}
        for partition, one in told.items():
            if partition not in lost:
                assert (one.error_code, one.leader_id, one.offline_replicas) == (ErrorCode.none, 0, ())
                assert ask.values(topic, partition=partition) == VALUES
                continue
            assert (one.error_code, one.leader_id, one.isr_nodes) == (ErrorCode.leader_not_available, -1, ())
            assert one.offline_replicas == (0,)
            answer = ask.produce({(topic, partition): batch(b"refused")})[topic, partition]
            assert answer.error_code is ErrorCode.kafka_storage_error
            assert f"{topic}-{partition} is offline: " in answer.error_message
            assert reason in answer.error_message
            [found] = ask.fetch([ask_for(topic, partition=partition)], version=12)
            assert found.error_code is ErrorCode.kafka_storage_error
            assert ask.list_offset(topic, LATEST, partition).error_code is ErrorCode.kafka_storage_error
    status, report = health(broker)
    assert (status, report["status"]) == (503, "failing")
    assert reason in report["checks"]["log.dirs"]
    scrape = Scrape(broker.metrics_url)
    assert scrape.total("kafka_server_replicamanager_offlinereplicacount") == len(lost)
    assert scrape.total("kafka_controller_kafkacontroller_offlinepartitionscount") == len(lost)
    [line] = [line for line in broker.output.splitlines() if "ERROR" in line and "offline, in no directory" in line][
        -1:
    ]
    assert f"{topic}-{lost[0]}" in line
    assert "--adopt" in line
    assert "ount the disk" in line or "Mount it" in line
    described = answer_of("topics", "describe", "--topic", topic, "-b", broker.bootstrap)
    assert len([row for row in described.splitlines() if "Leader: -1" in row]) == len(lost), described


@pytest.mark.parametrize(
    ("stop", "mount_point"), [("killed", "empty"), pytest.param("clean", "missing", marks=pytest.mark.slow)]
)
def test_a_disk_that_is_not_mounted_takes_its_partitions_offline_until_it_is_back(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path, stop: str, mount_point: str
) -> None:
    lost = partitions_in(roots[1])
    assert 0 < len(lost) < len(PARTITIONS)
    broker.kill() if stop == "killed" else broker.stop()
    shutil.move(roots[1], tmp_path / "disk")
    if mount_point == "empty":
        roots[1].mkdir()
    for _ in range(2):
        broker.start()
        check_offline(broker, lost, f"`pykafka log dirs --adopt {roots[1]}`")
        assert Scrape(broker.metrics_url).total("kafka_log_logmanager_offlinelogdirectorycount") == 1
        with Requests(broker.bootstrap) as ask:
            directories = ask.ask(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}).results
            assert {Path(found.log_dir): found.error_code for found in directories} == {
                roots[0]: ErrorCode.none,
                roots[1]: ErrorCode.kafka_storage_error,
            }
        broker.stop()
    # A mount over it would hide what is written there.
    assert not roots[1].exists() if mount_point == "missing" else not list(roots[1].iterdir())

    shutil.rmtree(roots[1], ignore_errors=True)
    shutil.move(tmp_path / "disk", roots[1])
    broker.start()
    assert set(ends(broker).values()) == {20}
    with Requests(broker.bootstrap) as ask:
        ask.put("t", b"goes on", partition=lost[0])
    eventually(lambda: health(broker)[0] == 200)
    assert "Traceback" not in broker.output


def test_a_lost_disk_is_given_up_by_a_command_and_its_return_is_noticed(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path
) -> None:
    lost = partitions_in(roots[1])
    broker.kill()
    shutil.move(roots[1], tmp_path / "disk")
    broker.start()
    said = answer_of("log", "dirs", "--adopt", str(roots[1]))
    assert said.startswith(f"{roots[1]} is confirmed for the next start of its broker.")
    broker.restart()
    assert ends(broker) == {partition: 0 if partition in lost else 20 for partition in PARTITIONS}
    names = ", ".join(f"t-{partition}" for partition in lost)
    said = f"begin anew, empty, because their logs are gone and {roots[1]} was adopted: {names}"
    assert said in broker.output
    eventually(lambda: health(broker)[0] == 200)
    assert not list(roots[1].glob(".pykafka_adopted"))
    with Requests(broker.bootstrap) as ask:
        for partition in PARTITIONS:
            ask.put("t", b"newer", partition=partition)
    broker.restart()
    assert ends(broker) == {partition: 1 if partition in lost else 21 for partition in PARTITIONS}
    broker.stop()

    # The old disk comes back where another one was planned.
    third = tmp_path / "disk"
    with (
        pytest.raises(
            PykafkaError, match=r"the same partition is in \S+/t-\d .* and \S+/disk/t-\d .*Move the ones that"
        ),
        BrokerProcess(
            tmp_path / "process",
            {"standalone": "true", "log.dirs": ",".join(map(str, [*roots, third]))},
        ),
    ):
        pass
    said = verdict_of("log", "check", *map(str, [*roots, third]))
    for partition in lost:
        assert f"{third}/t-{partition}: is the same partition as" in said.replace("\n", "")
    broker.start()
    assert ends(broker) == {partition: 1 if partition in lost else 21 for partition in PARTITIONS}


def test_a_new_directory_is_used_when_it_was_confirmed(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path
) -> None:
    broker.stop()
    new = tmp_path / "new" / "disk"
    settings = {"standalone": "true", "log.dirs": ",".join(map(str, [*roots, new])), **METRICS}
    with BrokerProcess(tmp_path / "process", settings) as larger:
        assert set(ends(larger).values()) == {20}
        status, report = health(larger)
        assert status == 503
        assert f"{new} does not exist, so it has no meta.properties, and {roots[0]} has one" in str(report)
        answer_of("log", "dirs", "--adopt", str(new))
        larger.restart()
        assert health(larger)[0] == 200
        fill(larger, "u", 3)
        assert partitions_in(new, "u") == [0, 1, 2]
        larger.restart()
        assert set(ends(larger).values()) == {20}
        assert set(ends(larger, "u", 3).values()) == {20}
        assert "begin anew" not in larger.output


def test_a_directory_that_is_taken_out_of_log_dirs_takes_its_partitions_with_it(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path
) -> None:
    lost = partitions_in(roots[1])
    broker.kill()
    fewer = {"standalone": "true", "log.dirs": str(roots[0]), **METRICS}
    with BrokerProcess(tmp_path / "process", fewer) as smaller:
        for _ in range(2):
            check_offline(smaller, lost, "its log is gone, and no other broker has one")
            smaller.restart()
    broker.start()
    assert set(ends(broker).values()) == {20}


def test_a_directory_that_lost_its_meta_properties_only_is_whole_when_confirmed(
    broker: BrokerProcess, roots: list[Path]
) -> None:
    lost = partitions_in(roots[1])
    broker.stop()
    (roots[1] / "meta.properties").unlink()
    broker.start()
    check_offline(broker, lost, f"{roots[1]} has no meta.properties")
    answer_of("log", "dirs", "--adopt", str(roots[1]))
    broker.restart()
    assert set(ends(broker).values()) == {20}
    assert "begin anew" not in broker.output


@pytest.mark.parametrize(
    ("stop", "left"),
    [("killed", "nothing"), pytest.param("clean", "an empty directory", marks=pytest.mark.slow)],
)
def test_a_log_that_is_gone_from_a_sound_directory(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path, stop: str, left: str
) -> None:
    broker.kill() if stop == "killed" else broker.stop()
    path = next(root / "t-3" for root in roots if (root / "t-3").exists())
    shutil.move(path, tmp_path / "aside")
    if left != "nothing":
        path.mkdir()
    for _ in range(2):
        broker.start()
        check_offline(broker, [3], "its log is gone, and no other broker has one. Mount the disk that has it")
        broker.kill()
    if left != "nothing":
        path.rmdir()
    shutil.move(tmp_path / "aside", path)
    broker.start()
    assert set(ends(broker).values()) == {20}

    # The topic may be deleted and made again while a log of it is gone, and the loss may be accepted.
    broker.kill()
    shutil.rmtree(path)
    broker.start()
    with Requests(broker.bootstrap) as ask:
        assert ask.delete("t") is ErrorCode.none
        assert health(broker)[0] == 200
    fill(broker)
    assert set(ends(broker).values()) == {20}
    broker.stop()
    path = next(root / "t-3" for root in roots if (root / "t-3").exists())
    shutil.rmtree(path)
    answer_of("log", "dirs", "--adopt", str(roots[0]))
    broker.start()
    assert ends(broker) == {partition: 0 if partition == 3 else 20 for partition in PARTITIONS}
    assert health(broker)[0] == 200


def test_a_partition_that_never_had_a_log_is_made(broker: BrokerProcess, roots: list[Path]) -> None:
    """The broker is killed between ZooKeeper's write and its own: nothing can have been acknowledged."""
    broker.stop()
    with LocalStore(roots[0] / "standalone.metadata") as store:
        Registry(store).create_topic("u", {0: (0,)})
    broker.start()
    with Requests(broker.bootstrap) as ask:
        assert ask.put("u", b"x") == 0
    assert health(broker)[0] == 200


def test_a_deleted_topic_does_not_come_back_with_its_disk(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path
) -> None:
    old = partitions_in(roots[1])
    broker.stop()
    shutil.move(roots[1], tmp_path / "disk")
    broker.start()
    with Requests(broker.bootstrap) as ask:
        assert ask.delete("t") is ErrorCode.none
        ask.create("t", len(PARTITIONS))
    assert partitions_in(roots[0]) == list(PARTITIONS)
    broker.stop()
    shutil.move(tmp_path / "disk", roots[1])
    broker.start()
    assert set(ends(broker).values()) == {0}
    with Requests(broker.bootstrap) as ask:
        assert ask.delete("t") is ErrorCode.none
        ask.create("t", len(PARTITIONS))
    assert partitions_in(roots[1]) == old, "this directory had fewer partitions"
    assert set(ends(broker).values()) == {0}
    assert health(broker)[0] == 200


def test_a_log_of_a_deleted_topic_stands_for_none_of_a_later_one(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path
) -> None:
    """One disk comes back, and the other one, which has the new topic, is away."""
    third = tmp_path / "third"
    broker.stop()
    settings = {"standalone": "true", "log.dirs": ",".join(map(str, [*roots, third])), **METRICS}
    answer_of("log", "dirs", "--adopt", str(third))
    with BrokerProcess(tmp_path / "process", settings) as broker:
        old = partitions_in(roots[1])
        broker.stop()
        shutil.move(roots[1], tmp_path / "disk")
        broker.start()
        with Requests(broker.bootstrap) as ask:
            assert ask.delete("t") is ErrorCode.none
        fill(broker)
        lost = partitions_in(third)
        assert set(lost) & set(old)
        broker.stop()
        shutil.move(third, tmp_path / "other disk")
        shutil.move(tmp_path / "disk", roots[1])
        broker.start()
        check_offline(broker, lost, f"{third} does not exist")
        broker.stop()
        shutil.move(tmp_path / "other disk", third)
        broker.start()
        assert set(ends(broker).values()) == {20}
        assert health(broker)[0] == 200


def test_a_log_with_the_id_of_another_topic_is_none_of_this_one(broker: BrokerProcess, roots: list[Path]) -> None:
    """As after an old copy of a directory was put back. It may be all there is, so it is kept."""
    broker.stop()
    path = next(root / "t-3" for root in roots if (root / "t-3").exists())
    write_topic_id(path / PARTITION_METADATA, uuid.uuid4())
    for _ in range(2):
        broker.start()
        check_offline(broker, [3], "its log is gone, and no other broker has one")
        broker.stop()
    [kept] = path.parent.glob("t-3.*-stray")
    assert f"{path} is of another topic of that name" in broker.output
    assert f"it is kept as {kept.name}" in broker.output


def test_a_topic_that_was_made_again_while_its_broker_was_dead_is_new(broker: BrokerProcess, roots: list[Path]) -> None:
    """Other brokers did it, before they noticed that this one was gone, and wrote down that the first was deleted."""
    broker.kill()
    with LocalStore(roots[0] / "standalone.metadata") as store:
        registry = Registry(store)
        registry.deletions.delete("t")
        registry.create_topic("t", dict.fromkeys(PARTITIONS, (0,)))
    broker.start()
    assert set(ends(broker).values()) == {0}
    assert health(broker)[0] == 200


def test_the_directory_with_the_metadata_is_not_mounted(
    broker: BrokerProcess, roots: list[Path], tmp_path: Path
) -> None:
    broker.stop()
    shutil.move(roots[0], tmp_path / "disk")
    with pytest.raises(PykafkaError, match=f"if the disk of {roots[0]} is not mounted, mount it"):
        broker.start()
    assert not roots[0].exists()
    shutil.move(tmp_path / "disk", roots[0])
    broker.start()
    assert set(ends(broker).values()) == {20}


class TestWithZooKeeper:
    """It knows the topics, leaders and ISRs of a broker whose only directory was wiped."""

    def test_a_wiped_disk_does_not_serve_empty_partitions(self, broker_factory: BrokerFactory, tmp_path: Path) -> None:
        broker = broker_factory({**METRICS, **SHORT_SESSION})
        fill(broker)
        data = broker.data_dir / "broker"
        broker.kill()
        shutil.move(data, tmp_path / "disk")
        for number in range(2):
            broker.start()
            check_offline(broker, list(PARTITIONS), "its log is gone, and no other broker has one")
            fill(broker, f"new-{number}", 1)
            broker.kill()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "disk", data)
        broker.start()
        assert set(ends(broker).values()) == {20}
        broker.kill()
        shutil.rmtree(data)
        answer_of("log", "dirs", "--adopt", str(data))
        broker.start()
        assert set(ends(broker).values()) == {0}
        assert health(broker)[0] == 200

    def test_a_wiped_replica_is_fetched_again_from_its_leader(
        self, broker_factory: BrokerFactory, tmp_path: Path
    ) -> None:
        settings = {**METRICS, **SHORT_SESSION}
        brokers = [broker_factory({"broker.id": str(number), **settings}, name=f"b{number}") for number in (0, 1)]
        with Requests(brokers[0].bootstrap) as ask:
            eventually(lambda: len(ask.metadata().brokers) == 2)
            topic = {"name": "t", "num_partitions": 4, "replication_factor": 2}
            ask.create_topics(topic)
            leaders = {one.partition_index: one.leader_id for one in ask.metadata("t").topics[0].partitions}

        def is_written(partition: int) -> bool:
            """Its leader may not have heard of the topic yet."""
            with Requests(brokers[leaders[partition]].bootstrap) as ask:
                return not ask.produce({("t", partition): batch(*VALUES)}, acks=-1)["t", partition].error_code

        for partition in leaders:
            eventually(partial(is_written, partition))
        brokers[0].kill()
        shutil.rmtree(brokers[0].data_dir / "broker")
        brokers[0].start()

        def in_sync() -> bool:
            with Requests(brokers[1].bootstrap) as ask:
                found = ask.metadata("t").topics[0].partitions
                return all(sorted(one.isr_nodes) == [0, 1] for one in found)

        eventually(in_sync)
        assert health(brokers[0])[0] == 200
        brokers[1].stop()
        eventually(lambda: set(ends(brokers[0], "t", 4).values()) == {20})

    def test_one_of_two_disks_of_a_replica_is_lost_and_the_others_lead(
        self, broker_factory: BrokerFactory, tmp_path: Path, roots: list[Path]
    ) -> None:
        settings = {**METRICS, **SHORT_SESSION}
        two_disks = {"broker.id": "0", "log.dirs": ",".join(map(str, roots)), **settings}
        brokers = [broker_factory(two_disks, name="b0"), broker_factory({"broker.id": "1", **settings}, name="b1")]

        def isrs() -> dict[int, tuple[int, ...]]:
            with Requests(brokers[1].bootstrap) as ask:
                return {
                    one.partition_index: tuple(sorted(one.isr_nodes)) for one in ask.metadata("t").topics[0].partitions
                }

        with Requests(brokers[1].bootstrap) as ask:
            eventually(lambda: len(ask.metadata().brokers) == 2)
            ask.create_topics({"name": "t", "num_partitions": 4, "replication_factor": 2})
        # The ISR was so from the beginning; the first broker may not have heard of the topic yet.
        eventually(lambda: len(partitions_in(roots[0]) + partitions_in(roots[1])) == 4)
        lost = partitions_in(roots[1])
        assert 0 < len(lost) < 4
        brokers[0].kill()
        shutil.move(roots[1], tmp_path / "disk")
        brokers[0].start()
        eventually(lambda: isrs() == {partition: (1,) if partition in lost else (0, 1) for partition in range(4)})
        assert health(brokers[0])[0] == 503
        with Requests(brokers[1].bootstrap) as ask:
            for partition in lost:
                assert ask.produce({("t", partition): batch(*VALUES)}, acks=-1)["t", partition].base_offset == 0
        with Requests(brokers[0].bootstrap) as ask:
            [found] = ask.fetch([ask_for("t", partition=lost[0])], version=12)
            assert found.error_code is ErrorCode.kafka_storage_error

        shutil.move(tmp_path / "disk", roots[1])
        brokers[0].restart()
        eventually(lambda: set(isrs().values()) == {(0, 1)})
        assert health(brokers[0])[0] == 200
        brokers[1].stop()
        eventually(lambda: [ends(brokers[0], "t", 4)[partition] for partition in lost] == [20] * len(lost))
