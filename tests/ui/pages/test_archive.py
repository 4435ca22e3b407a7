"""The page of the archive: what is archived, what waits, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.archive_status import archive_statuses
from broker.client.cluster import Cluster
from broker.embedded import EmbeddedCluster
from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.pages.archive_page import ArchiveRow, places_of
from tests.support.archiving_broker import archiving_broker, close_segments
from tests.support.broker_process import BrokerProcess
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

TP = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with archiving_broker(tmp_path_factory.mktemp("archive")) as process:
        yield process


@pytest.mark.parametrize(
    ("status", "places"),
    [
        (ArchiveStatus(TP, 0, 60, 40, 100), (40, 20, 40)),
        (ArchiveStatus(TP, 0, None, 0, 100), (0, 0, 100)),  # nothing is archived yet
        (ArchiveStatus(TP, 50, 60, 40, 100), (0, 10, 40)),  # retention has passed the local start
        (ArchiveStatus(TP, 50, 20, 50, 100), (0, 0, 50)),  # all that was archived has been deleted
        (ArchiveStatus(TP, 0, 60, None, 100), None),
        (ArchiveStatus(TP), None),
    ],
)
def test_records_are_only_archived_in_both_places_or_only_local(
    status: ArchiveStatus, places: tuple[int, int, int] | None
) -> None:
    assert places_of(status) == places
    row = ArchiveRow("t", "t", [status])
    assert row.places == places
    if places:
        assert ArchiveRow("t", "t", [status, ArchiveStatus(TP)]).places is None, "one that is not known is no zero"
        assert sum(share for _, share, _ in row.bar) == pytest.approx(1)


def test_the_page_shows_how_far_the_archive_is(ui: UiProcess, broker: BrokerProcess) -> None:
    assert "No topic has an archive" in ui.get("/archive").text
    close_segments(broker, "events")
    all_archived = re.compile(r'[1-9][^,]* KiB\W[^,]* archived, [^,]*title="0 bytes"')
    eventually(lambda: bool(all_archived.search(ui.get("/archive").text)), interval=0.5)
    shown = ui.get("/archive").text
    assert 'href="/topics/events"' in shown
    assert "with a problem" not in shown
    assert f"<code>file://{broker.data_dir.parent}/archive</code>" in shown
    assert ">events-0<" in ui.get("/archive?by=partition").text
    row = shown.partition("<tbody>")[2].partition("</tbody>")[0]
    assert '<span class="state ok">archived</span>' in row
    assert re.search(r"\d s</span> ago", row), "how old the first record is"
    assert "No topic with an archive has" in ui.get("/archive?q=nothing").text


def test_a_partition_whose_leader_is_gone_is_not_left_out(tmp_path: Path) -> None:
    """Else the rest would look like all of it. Such a topic is known by its setting."""
    settings = {"remote.log.storage.system.enable": "true", "archive.url": str(tmp_path / "archive")}
    on = {"remote.storage.enable": "true"}
    with EmbeddedCluster(2, tmp_path / "data", settings) as brokers, Cluster(brokers.brokers[1].bootstrap) as cluster:
        admin = Admin(cluster)
        admin.create_topics([NewTopic("both", assignment=[[1], [2]], configs=on)])
        admin.create_topics(
            [NewTopic(f"{name}-2", assignment=[[2]], configs=on if name == "on" else {}) for name in ("on", "off")]
        )
        brokers.brokers[2].kill()

        def problems() -> dict[str, str]:
            cluster.expire()
            return {str(one.tp): one.problem for one in archive_statuses(admin)}

        silent = "its leader does not answer"
        eventually(lambda: problems() == {"both-0": "", "both-1": silent, "on-2-0": silent})
        assert archive_statuses(admin)[-1].archived_bytes is None


def test_the_page_says_why_the_archive_does_not_go_on(ui: UiProcess, broker: BrokerProcess) -> None:
    close_segments(broker, "events")
    archive = broker.data_dir.parent / "archive"
    archive.rename(archive.with_name("away"))
    archive.touch()
    close_segments(broker, "events")
    eventually(lambda: "1 partition with a problem" in ui.get("/archive").text, interval=0.5)
    assert "Not a directory" in ui.get("/archive?sort=problem").text
    assert '<span class="state bad">problem</span>' in ui.get("/archive").text


def test_a_topic_has_the_size_of_its_archive_too(ui: UiProcess, broker: BrokerProcess) -> None:
    (topic,) = set(re.findall(r'href="/topics/([^"/]+)"', ui.get("/archive").text))
    pages = ("/", "/topics", f"/topics/{topic}")
    eventually(lambda: all(re.search(r"\+ .*KiB.* archived", ui.get(page).text) for page in pages), interval=0.5)
