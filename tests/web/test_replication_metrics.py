"""/metrics of two brokers that replicate: what the leader, the follower and the controller count."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch
from tests.support.scrape import Scrape
from tests.support.waiting import eventually

MANAGER = "kafka_server_replicamanager_"
TRAFFIC = "kafka_server_brokertopicmetrics_"
CONTROLLER = "kafka_controller_kafkacontroller_"
ELECTIONS = "kafka_controller_controllerstats_leaderelections_total"
OF_ARCHIVES = re.compile(r"^\w*(remote(?!time)|archive)\w*[ {]", re.MULTILINE)
SETTINGS = {
    "metrics.listener": "HTTP://127.0.0.1:0",
    "replica.lag.time.max.ms": "30000",
    "zookeeper.session.timeout.ms": "6000",
}


def test_a_lost_follower_and_a_lost_leader_show_in_the_metrics(tmp_path: Path, zookeeper: str) -> None:
    one, two = (
        BrokerProcess(tmp_path / f"{id}", {**SETTINGS, "broker.id": f"{id}"}, zookeeper=f"{zookeeper}/lost")
        for id in (1, 2)
    )
    with one, two:

        def shows(broker: BrokerProcess, name: str, value: float, **labels: str) -> None:
            eventually(lambda: Scrape(broker.metrics_url).total(name, **labels) == value)

        with Requests(one.bootstrap) as ask:
            eventually(lambda: len(ask.metadata().brokers) == 2)
            assignments = [{"partition_index": p, "broker_ids": ids} for p, ids in enumerate(([1, 2], [2, 1]))]
            (made,) = ask.create_topics(
                {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
            )
            assert not made.error_code
            sent = batch(b"a", b"b")
            ask.produce({("t", 0): sent}, acks=-1)
        shows(one, f"{TRAFFIC}replicationbytesout_total", len(sent), topic="t")
        shows(two, f"{TRAFFIC}replicationbytesin_total", len(sent), topic="t")
        shows(one, "kafka_cluster_partition_insyncreplicascount", 2, topic="t", partition="0")
        shows(two, "kafka_server_fetcherlagmetrics_consumerlag", 0, topic="t", partition="0")
        shows(two, "kafka_log_log_logendoffset", 2, topic="t", partition="0")
        assert Scrape(one.metrics_url).total(f"{CONTROLLER}activecontrollercount") == 1, "the first that started"
        elections = Scrape(one.metrics_url).total(ELECTIONS)
        shows(one, f"{MANAGER}underreplicatedpartitions", 0)
        assert not OF_ARCHIVES.search(Scrape(one.metrics_url).text), "samples of an archive that is not there"

        two.kill()
        shows(one, f"{MANAGER}leadercount", 2)
        shows(one, f"{MANAGER}underreplicatedpartitions", 2)
        shows(one, f"{MANAGER}underminisrpartitioncount", 0)
        shows(one, f"{CONTROLLER}activebrokercount", 1)
        shows(one, f"{CONTROLLER}offlinepartitionscount", 0)
        shows(one, f"{CONTROLLER}preferredreplicaimbalancecount", 1)
        shows(one, ELECTIONS, elections + 1)

        two.start()
        shows(one, f"{MANAGER}underreplicatedpartitions", 0)
        assert Scrape(one.metrics_url).total(f"{MANAGER}isrexpands_total") >= 2
