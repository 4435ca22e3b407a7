"""The list of groups with its filters, and the pages of brokers and of a group, as a real console shows them."""

from __future__ import annotations

import re

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from spark_connector.write.decision import Decision
from spark_connector.write.decision_log import DecisionLog, Recorded
from spark_connector.write.write_plan import SinkNames
from tests.support.kafka import Kafka
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually


def rows_of(page: str) -> list[str]:
    return re.findall(r'<tr><td><a href="/groups/([^"]+)">', page)


def test_own_groups_are_folded_counted_and_found(ui: UiProcess, broker: Kafka, topic: str, group: str) -> None:
    names = SinkNames(group, "sink")
    with Cluster(broker.bootstrap) as cluster, Producer(broker.bootstrap) as producer:
        Admin(cluster).create_topic(topic, 2)
        for _ in range(7):
            producer.send(topic, b"x", partition=0)
        producer.flush(30)
        at = {TopicPartition(topic, 0): 2}
        GroupOffsets(cluster, group).commit({**at, TopicPartition(topic, 1): 4})
        GroupOffsets(cluster, f"{group}-load").commit(at, "pykafka load nightly-000007-0123abcd")
        DecisionLog(cluster, names).mark_done(Recorded(Decision(3, ()), topic))
    mine = {group, f"{group}-load", names.group_of_done}
    eventually(lambda: mine <= set(rows_of(ui.get("/groups?own=1").text)))
    folded = ui.get("/groups").text
    assert mine & set(rows_of(folded)) == {group}
    assert mine & set(rows_of(ui.get("/groups?state=own").text)) == mine - {group}
    assert ">2 groups of loads and sinks</a> are folded away here" in folded
    assert set(rows_of(ui.get(f"/groups?q={group}").text)) == mine, "what is looked for is found"
    behind = ui.get(f"/groups?q={group}&state=behind").text
    assert set(rows_of(behind)) == {group, f"{group}-load"}
    assert ">behind 2</a>" in behind
    assert "of the loads of nightly" in behind
    assert f"of the sink {group}-sink" in ui.get("/groups?own=1").text
    assert "No group has" in ui.get(f"/groups?q={group}&state=growing").text

    eventually(lambda: "beyond the end by 4" in ui.get(f"/groups/{group}").text)
    page = ui.get(f"/groups/{group}").text
    assert "Reset the offsets." in page
    assert '<span class="state bad">beyond the end</span>' in page
    sink = ui.get(f"/groups/{names.group_of_done}").text
    assert "The newest batch is 3." in sink
    assert "<dt>Lag</dt>" not in sink
    streams = ui.get("/streams").text
    assert names.group_of_done in streams
    assert f"{group}-load" not in streams


def test_brokers_have_states_and_disks(ui: UiProcess, broker: Kafka) -> None:
    eventually(lambda: "% of <span" in ui.get("/brokers").text)
    page = ui.get("/brokers").text
    assert '<span class="state ok">up</span>' in page
    assert ">controller<" in page
    assert "every partition is led by its first replica" in page
