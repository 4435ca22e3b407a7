"""The pictures of the console in the docs, which `docs/images/draw.py --console` (`make pictures`) takes.

They show a real cluster of three under some load, for long enough that the charts have a line.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.embedded import EmbeddedCluster
from pykafka_demo.flights import flights
from tests.support.chromium import browser
from tests.support.plain_loads import PlainLoads
from tests.support.ui_process import UiProcess

LASTS_S = 240
TOPICS = {"flights": 6, "bookings": 3, "weather": 1}
SETTINGS = {
    "default.replication.factor": "3",
    "remote.log.storage.system.enable": "true",
    "log.retention.check.interval.ms": "5000",
}
ARCHIVED = {
    "remote.storage.enable": "true",
    "segment.bytes": "250000",
    "retention.ms": "-1",
    "local.retention.bytes": "500000",
}
"""Settings of `flights`: most of it is in the archive only when the pictures are taken."""


def take(target: Path) -> list[str]:
    """Write `ui-<page>-<scheme>.png` into `target`. The tabs that the console has."""
    with (
        tempfile.TemporaryDirectory(prefix="lake-") as directory,
        EmbeddedCluster(3, settings={**SETTINGS, "archive.url": f"{directory}/archive"}) as cluster,
        _busy(cluster.bootstrap) as closed,
    ):
        lake = Path(directory) / "flights"
        loads = PlainLoads(cluster.bootstrap, "flights", lake, group="nightly")
        with UiProcess(cluster.bootstrap, "--loads", str(lake)) as ui:
            ui.get("/")
            for _ in range(6):
                closed.wait(LASTS_S / 6)
                ui.get("/")
                loads.must_load()
            pages = {
                "overview": "/",
                "records": "/topics/flights/records?limit=12&path=%24.dest&equals=LAX",
                "group": "/groups/delays",
                "archive": "/archive",
                "loads": f"/loads/group?{urlencode({'at': lake, 'group': 'nightly'})}",
            }
            return _shoot(ui.address, pages, target)


@contextlib.contextmanager
def _busy(bootstrap: str) -> Iterator[threading.Event]:
    """Flights are written and read until the block ends."""
    closed = threading.Event()
    with Cluster(bootstrap) as cluster:
        for name, partitions in TOPICS.items():
            Admin(cluster).create_topic(name, partitions, 3, ARCHIVED if name == "flights" else {})
    threads = [
        threading.Thread(target=_write, args=(bootstrap, closed)),
        threading.Thread(target=_read, args=(bootstrap, "dashboard", 0.05, closed)),
        threading.Thread(target=_read, args=(bootstrap, "delays", 0.9, closed)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield closed
    finally:
        closed.set()
        for thread in threads:
            thread.join()


def _write(bootstrap: str, closed: threading.Event) -> None:
    with Producer(bootstrap) as producer:
        for number, row in enumerate(flights().slice(0, 200_000).to_pylist()):
            value = json.dumps(row, default=str).encode()
            producer.send("flights", value, key=str(row.get("tailnum") or "").encode())
            if number % 3 == 0:
                producer.send("bookings", value)
            if number % 100 == 99 and closed.wait(0.1 + 0.2 * ((number // 3_000) % 3)):
                return


def _read(bootstrap: str, group: str, pause_s: float, closed: threading.Event) -> None:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "max.poll.records": "300"}
    with Consumer(bootstrap, settings) as consumer:
        consumer.subscribe(["flights"])
        while not closed.wait(pause_s):
            consumer.poll(0.1)
            consumer.commit()


def _shoot(address: str, pages: dict[str, str], target: Path) -> list[str]:
    tabs: list[str] = []
    with browser() as running:
        for scheme in ("light", "dark"):
            context = running.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 760})
            page = context.new_page()
            for name, path in pages.items():
                page.goto(f"{address}{path}")
                page.wait_for_load_state("networkidle")
                if name == "records":
                    page.locator("#records details").first.locator("summary").first.click()
                page.screenshot(path=target / f"ui-{name}-{scheme}.png")
            tabs = page.locator("nav[aria-label=Pages] a").all_inner_texts()
            context.close()
    return tabs
