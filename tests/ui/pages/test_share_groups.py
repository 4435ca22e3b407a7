"""The lag of a share group is one number: of the command, the pages, the REST API and /metrics."""

from __future__ import annotations

import json
import re

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from tests.support.console import answer_of
from tests.support.kafka import Kafka, need
from tests.support.raw_requests import Requests
from tests.support.share_members import ShareMember, configure
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually


def figure(ui: UiProcess, group: str, name: str) -> str:
    found = re.search(rf"<dt>{name}</dt><dd>(.*?)</dd>", ui.get(f"/groups/{group}").text)
    return found[1].strip() if found else ""


def some(member: ShareMember) -> tuple[int, int, int]:
    taken: list[tuple[int, int, int]] = []

    def takes() -> bool:
        taken.extend(member.take())
        return bool(taken)

    eventually(takes)
    return taken[0]


def test_the_lag_of_a_share_group_is_the_same_everywhere(ui: UiProcess, broker: Kafka, topic: str, group: str) -> None:
    need(broker.bootstrap, ApiKey.SHARE_FETCH)
    with (
        Cluster(broker.bootstrap) as cluster,
        Producer(broker.bootstrap) as producer,
        Requests(broker.bootstrap) as ask,
    ):
        Admin(cluster).create_topic(topic, 2)
        for number in range(80):
            producer.send(topic, b"x", partition=number % 2)
        producer.flush(30)
        configure(ask, group, share_auto_offset_reset="earliest")
        member = ShareMember(ask, group, topic).join()
        member.take(max_records=30, batch_size=30)
        assert member.accept(0, 9) is ErrorCode.none
        assert member.accept(20, 29) is ErrorCode.none  # done, behind ten that are not
        eventually(lambda: figure(ui, group, "Lag") == "20")
        (described,) = json.loads(
            answer_of("groups", "describe", "--group", group, "--bootstrap-server", broker.bootstrap, "--json")
        )
        rows = [(one["partition"], one["currentOffset"], one["lag"], one["unread"]) for one in described["partitions"]]
        assert rows == [(0, 10, 20, None), (1, None, None, None)]
        assert described["lag"] == 20

        page = ui.get(f"/groups/{group}").text
        assert "not told by the brokers' API" in page, "how many are in flight"
        assert re.search(r'<code>share.auto.offset.reset</code></td><td class="value">earliest\s*</td>', page)
        assert ">share<" in ui.get(f"/groups?q={group}&state=share").text
        assert "share.auto.offset.reset" in page, "the first read of the other partition begins where the group says"
        assert ">auto.offset.reset" not in page
        assert "unread" not in figure(ui, group, "Lag") + ui.get(f"/groups?q={group}").text.split("<tbody>")[1]
        (seen,) = [one["metadata"]["self"] for one in ui.get("/api/v3/clusters").json["data"]]
        path = f"{seen.removeprefix(ui.address)}/consumer-groups/{group}"
        assert [(one["current_offset"], one["lag"], one["unread"]) for one in ui.get(f"{path}/lags").json["data"]] == [
            (10, 20, None),
            (None, None, None),
        ]
        summary = ui.get(f"{path}/lag-summary").json
        assert (summary["total_lag"], summary["total_unread"], summary["partitions_without_commit"]) == (20, None, 1)
        metrics = ui.get("/metrics").text.splitlines()
        labels = f'consumergroup="{group}",partition="0",topic="{topic}"'
        assert f"kafka_consumergroup_lag{{{labels}}} 20.0" in metrics
        assert f"kafka_consumergroup_current_offset{{{labels}}} 10.0" in metrics
        assert f'kafka_consumergroup_lag_sum{{consumergroup="{group}",topic="{topic}"}} 20.0' in metrics

        assert member.accept(10, 19) is ErrorCode.none
        first, last, _ = some(member)
        assert (first, last) == (30, 39)
        assert member.accept(first, last) is ErrorCode.none
        eventually(lambda: figure(ui, group, "Lag") == "0")
        assert figure(ui, group, "Caught up in") == "?", "the other partition has 40 records that nobody has looked at"
        member.heartbeat(epoch=-1)
