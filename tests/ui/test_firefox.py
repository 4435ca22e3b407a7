"""What people do with the console, once through Firefox; test_pages.py and the others have it in detail."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import pytest

from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from tests.support.debian_packages import unpacked_program
from tests.support.kafka import Kafka
from tests.support.npm_package import node_modules, program
from tests.support.plain_loads import PlainLoads
from tests.support.requirements import Unavailable, give_up
from tests.support.source_tree import ROOT
from tests.support.topic_data import TopicData
from tests.support.ui_process import UiProcess

# --- Debian's Firefox, driven by Puppeteer (WebDriver BiDi): Playwright needs a Firefox of its own, which is not
# packaged.
# One `node` runs tests/ui/firefox_driver.mjs. Fetching needs `node` and `npm` on the PATH.

VERSION = "24.43.1"
DRIVER = ROOT / "tests" / "ui" / "firefox_driver.mjs"


class Firefox:
    """A tab of a headless Firefox. Every step waits up to 20 s for what it needs. Raises Unavailable."""

    def __init__(self, address: str, entrance: str) -> None:
        self.entrance = entrance
        self._address = address.rstrip("/")
        installed = shutil.which("firefox-esr")
        binary, environment = (
            (installed, None) if installed else unpacked_program("firefox-esr", "usr/lib/firefox-esr/firefox-esr")
        )
        puppeteer = node_modules("puppeteer-core", VERSION) / "puppeteer-core"
        self._node = subprocess.Popen(
            [program("node"), str(DRIVER), str(puppeteer), str(binary)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.close()
        self._node.wait(60)
        self._node.stdout.close()

    def open(self, path: str) -> None:
        self._do("open", f"{self._address}{path}")

    def click(self, selector: str, text: str = "") -> None:
        """The first element of a CSS selector that has the text."""
        self._do("click", selector, text)

    def type(self, selector: str, text: str) -> None:
        """Key by key."""
        self._do("type", selector, text)

    def see(self, selector: str, text: str) -> None:
        """Wait until an element has the text."""
        self._do("see", selector, text)

    def count(self, selector: str, count: int) -> None:
        """Wait until so many elements are there."""
        self._do("count", selector, count)

    def complaints(self) -> list[str]:
        """Console errors, exceptions, and requests to another host."""
        found: list[str] = self._do("complaints", self._address)
        return found

    def _do(self, step: str, *arguments: Any) -> Any:
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps([step, *arguments]) + "\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        assert line, f"node ended with {self._node.wait(10)} on {step}"
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"{step} {arguments}: {answer['error']}")
        return answer.get("result")


# --- the tests

TOPIC, GROUP = "fox-flights", "fox-group"


@pytest.fixture
def lake(broker: Kafka, tmp_path: Path) -> Path:
    TopicData(broker.bootstrap, TOPIC, partitions=1)
    with Producer(broker.bootstrap) as producer:
        for number in range(30):
            producer.send(TOPIC, b'{"number": %d, "who": {"name": "<b>Ann</b>"}}' % number)
        producer.flush(30)
    PlainLoads(broker.bootstrap, TOPIC, tmp_path, group="nightly").must_load()
    with Cluster(broker.bootstrap) as cluster:
        GroupOffsets(cluster, GROUP).commit({TopicPartition(TOPIC, 0): 10})
    return tmp_path


@pytest.fixture
def tab(broker: Kafka, lake: Path) -> Iterator[Firefox]:
    with UiProcess(broker.bootstrap, "--loads", str(lake), "--allow-changes") as ui:
        try:
            firefox = Firefox(ui.address, ui.entrance.removeprefix(ui.address))
        except Unavailable as error:
            give_up(f"firefox: {error}")
        with firefox:
            yield firefox
            assert firefox.complaints() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_flows_of_the_console_in_firefox(tab: Firefox, broker: Kafka, lake: Path) -> None:
    tab.open(tab.entrance)
    tab.see("h1", "Overview")
    tab.count("figure.chart canvas", 2)
    tab.click("nav a", "Topics")
    tab.type("[type=search]", "FOX")
    tab.see("tbody a", TOPIC)
    tab.click("tbody a", TOPIC)
    tab.see("h1", TOPIC)  # the list has such cells and links, too
    tab.see("#list td", "in sync")
    tab.click("a", "Records")
    tab.see("h1", f"Records of {TOPIC}")
    tab.count("#records tbody tr", 30)
    tab.click("#records summary", '"number": 29')
    tab.see("#records .string", "<b>Ann</b>")
    tab.open(f"/topics/{TOPIC}/records?{urlencode({'path': '$.number', 'equals': '7'})}")
    tab.count("#records tbody tr", 1)
    tab.open(f"/topics/{TOPIC}/records?live=true&limit=5")
    with Producer(broker.bootstrap) as producer:
        producer.send(TOPIC, b'{"number": "live"}').result(30)
    tab.see("#records td", '"live"')
    tab.open(f"/groups/{GROUP}")
    tab.see("dd", "21")
    tab.click("a", "Reset offsets")
    tab.click("button", "Reset")
    tab.see(".message", f"Reset the offsets of the group {GROUP} in 1 partitions to the start of the log.")
    tab.click("button", "Yes, do it")
    tab.see("dd", "31")
    tab.click("nav a", "Loads")
    tab.click("tbody a", "nightly")
    tab.see("h1", "Loads of nightly")
    tab.click("button", "Verify")
    tab.see("#verification", "Verified: 1 loads agree")
    for path, heading in (("/transactions", "Open transactions"), ("/brokers", "Brokers")):
        tab.open(path)
        tab.see("h1", heading)
