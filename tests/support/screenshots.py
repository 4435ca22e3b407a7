"""The pictures of the console in the docs: `python -m tests.support.screenshots` takes them anew, in some minutes.

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
from tests.support.source_tree import ROOT
from tests.support.ui_process import UiProcess

LASTS_S = 240
TOPICS = {"flights": 6, "bookings": 3, "weather": 1}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="lake-") as directory,
        EmbeddedCluster(3, settings={"default.replication.factor": "3"}) as cluster,
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
                "loads": f"/loads/group?{urlencode({'at': lake, 'group': 'nightly'})}",
            }
            _take(ui.address, pages)


@contextlib.contextmanager
def _busy(bootstrap: str) -> Iterator[threading.Event]:
    """Flights are written and read until the block ends."""
    closed = threading.Event()
    with Cluster(bootstrap) as cluster:
        for name, partitions in TOPICS.items():
            Admin(cluster).create_topic(name, partitions, 3)
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


def _take(address: str, pages: dict[str, str]) -> None:
    with browser() as running:
        for scheme in ("light", "dark"):
            context = running.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 760})
            page = context.new_page()
            for name, path in pages.items():
                page.goto(f"{address}{path}")
                page.wait_for_load_state("networkidle")
                if name == "records":
                    page.locator("#records details").first.locator("summary").first.click()
                page.screenshot(path=ROOT / "docs" / "images" / f"ui-{name}-{scheme}.png")
            context.close()


if __name__ == "__main__":
    main()
