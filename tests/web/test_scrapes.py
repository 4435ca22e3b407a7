"""/metrics of a broker with many groups: requests are served meanwhile, what is large is kept, and a login is asked."""

from __future__ import annotations

import asyncio
import base64
import gc
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.group_state import ClassicGroup
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.web import collector
from broker.web.app import FRESH_S, LARGE, Scrapes
from tests.conftest import BrokerFactory
from tests.support.scrape import health

GROUPS, PARTITIONS = 2000, 50


def sources_with_groups() -> Any:
    """What `_groups` looks at: each group has committed in each partition."""
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    groups = []
    for number in range(GROUPS):
        offsets = GroupOffsets()
        for tp in partitions:
            offsets.apply(tp, OffsetAndMetadata(3))
        groups.append(ClassicGroup(f"g{number}", GroupSettings(), 0, offsets))
    led = {tp: SimpleNamespace(high_watermark=10) for tp in partitions}
    replicas = SimpleNamespace(led=led)
    return SimpleNamespace(groups=SimpleNamespace(all_groups=lambda: groups), topics=SimpleNamespace(replicas=replicas))


async def test_requests_are_served_between_slices_of_what_groups_have_committed() -> None:
    sources, found = sources_with_groups(), collector._Collected()
    turns = 0

    async def serve() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    serving = asyncio.ensure_future(serve())
    tracked = len(gc.get_objects())
    await collector._groups(sources, found)
    serving.cancel()
    lags = found.of_groups["kafka_consumergroup_lag"]
    assert len(lags) == len(list(lags)) == GROUPS * PARTITIONS
    assert {value for _, value in lags} == {7}
    assert turns > GROUPS // collector.AT_ONCE
    assert len(gc.get_objects()) - tracked < 5 * GROUPS  # what the garbage collector must look at


class Counted:
    """Counts how often it was collected and encoded."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.now = 100.0
        self.collected = self.encoded = 0
        self.scrapes = Scrapes(self.collect, lambda: self.now)

    async def collect(self) -> tuple[int, int]:
        self.collected += 1
        await asyncio.sleep(0)
        return self.collected, self.samples

    def encode(self, collected: int) -> bytes:
        self.encoded += 1
        return b"%d" % collected

    async def text(self, form: str = "text") -> bytes:
        return await self.scrapes.text(form, self.encode)


async def test_a_large_answer_is_made_once_a_second_in_each_form() -> None:
    counted = Counted(LARGE)
    assert await asyncio.gather(*(counted.text() for _ in range(20))) == [b"1"] * 20
    assert [await counted.text("other") for _ in range(3)] == [b"1"] * 3
    assert (counted.collected, counted.encoded) == (1, 2)
    counted.now += FRESH_S - 0.01
    assert await counted.text() == b"1"
    counted.now += 0.01
    assert await counted.text() == b"2"


async def test_a_small_answer_is_always_new() -> None:
    counted = Counted(LARGE - 1)
    assert [await counted.text() for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_scrape_that_fails_or_is_given_up_stops_no_other() -> None:
    counted = Counted(LARGE)
    given_up = asyncio.ensure_future(counted.text())
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(ZeroDivisionError):
        await counted.scrapes.text("bad", lambda _: b"%d" % (1 // 0))
    assert await counted.text() == b"2"


def status(url: str, authorization: str = "") -> int:
    request = urllib.request.Request(url, headers={"authorization": authorization} if authorization else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code if error.headers["www-authenticate"].startswith("Basic ") else 0


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_metrics_ask_for_a_login_and_health_does_not(broker_factory: BrokerFactory) -> None:
    settings = {"metrics.auth.username": "prometheus", "metrics.auth.password": "pässword", "metrics.auth.token": "t0k"}
    broker = broker_factory({"metrics.listener": "HTTP://127.0.0.1:0", **settings})
    url = f"{broker.metrics_url}/metrics"
    right = [basic("prometheus:pässword"), "Bearer t0k", "bearer t0k"]
    wrong = ["", basic("prometheus:wrong"), basic("other:pässword"), basic("prometheus:"), "Bearer wrong", "Bearer "]
    hostile = ["Basic ü", "Basic *", "Basic", "Digest x", "Bearer \x80ü", basic("\0")]
    assert [status(url, one.encode().decode("latin-1")) for one in right] == [200] * 3
    assert [status(url, one) for one in (*wrong, *hostile)] == [401] * 12
    assert health(broker)[0] == 200
    assert "pässword" not in broker.output
    assert "Traceback" not in broker.output


@pytest.mark.parametrize("settings", [{"metrics_auth_username": "u"}, {"metrics_auth_password": "p"}])
def test_half_a_login_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="metrics.auth.username and metrics.auth.password: set both or none"):
        BrokerConfig.load(None, {key.replace("_", "."): text for key, text in settings.items()})
