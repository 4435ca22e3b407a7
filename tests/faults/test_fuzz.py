"""Well-formed requests with hostile values, of every API in every version served, against one running broker.

Each is answered in a form its client can read, or ends its connection with the reason in the log; the broker goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, encode_request
from tests.support.broker_process import BrokerProcess
from tests.support.hostile_requests import GROUP, TOPIC, HostileRequests
from tests.support.randomness import seeded
from tests.support.raw_requests import SERVED, Requests, batch

MAY_WAIT = {ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP}
"""Of these an answer may take as long as the request says; nobody waits for it here."""
PATIENCE_S, IMPATIENCE_S = 30.0, 0.1
MARK = -77


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    overrides = {
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "socket.request.max.bytes": "1000000",
    }
    with BrokerProcess(tmp_path_factory.mktemp("fuzz"), overrides, zookeeper=f"{zookeeper}/fuzz") as process:
        with Requests(process.bootstrap) as ask:
            ask.create(TOPIC, 3)
            ask.produce({(TOPIC, 0): batch(b"one", b"two")})
            ask.ask(ApiKey.FIND_COORDINATOR, {"key": GROUP, "coordinator_keys": [GROUP]})
        yield process
        with Requests(process.bootstrap) as ask:
            ask.metadata(TOPIC)
        assert process.running
        assert "Traceback" not in process.output, process.output[-6000:]


@pytest.mark.parametrize("api", SERVED, ids=lambda api: api.name)
def test_hostile_values_are_answered_or_end_the_connection(target: BrokerProcess, api: ApiKey) -> None:
    examples = 15 if api in MAY_WAIT else 40

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32), st.integers(*SERVED[api]))
    def check(seed: int, version: int) -> None:
        hostile = HostileRequests(seeded(seed))
        with Requests(target.bootstrap, IMPATIENCE_S if api in MAY_WAIT else PATIENCE_S) as ask:
            ask.socket.sendall(hostile.sound(api, version, correlation_id=5) + marker())
            try:
                read_answers(ask, api, version)
            except ConnectionError:
                return  # the log says why: no traceback, which `target` looks for
            except TimeoutError:
                assert api in MAY_WAIT, f"{api.name} version {version} is never answered"

    check()
    assert target.running, target.output[-3000:]


@pytest.mark.parametrize("requests", [1_500, pytest.param(30_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_apis_in_any_order_are_answered_or_end_the_connection(target: BrokerProcess, requests: int) -> None:
    """What one request changed (settings, groups, transactions, topics) the next ones meet."""
    dice = seeded(requests)
    hostile = HostileRequests(dice)
    apis = list(SERVED)
    ask = Requests(target.bootstrap, PATIENCE_S)
    for _ in range(requests):
        api = dice.choice(apis)
        version = dice.randint(*SERVED[api])
        ask.socket.settimeout(IMPATIENCE_S if api in MAY_WAIT else PATIENCE_S)
        try:
            ask.socket.sendall(hostile.sound(api, version, correlation_id=5) + marker())
            read_answers(ask, api, version)
            continue
        except ConnectionError:
            pass
        except TimeoutError:
            if api not in MAY_WAIT:
                pytest.fail(f"{api.name} version {version} is never answered")
        ask.close()
        ask = Requests(target.bootstrap, PATIENCE_S)
    ask.close()


def marker() -> bytes:
    return encode_request(ApiKey.API_VERSIONS, 0, MARK, "fuzz", {})


def read_answers(ask: Requests, api: ApiKey, version: int) -> None:
    """Up to the marker's: there is at most one before it, and it decodes."""
    while True:
        (length,) = struct.unpack(">i", ask.read(4))
        frame = ask.read(length)
        (correlation_id,) = struct.unpack_from(">i", frame)
        if correlation_id == MARK:
            return
        assert decode_response(api, version, frame)[0] == 5


def test_the_log_tells_why_each_connection_was_closed(target: BrokerProcess, tmp_path: Path) -> None:
    with Requests(target.bootstrap) as ask:
        ask.socket.sendall(struct.pack(">ihhi", 8, 3, 99, 1))
        assert ask.is_hung_up()
        host, port = ask.socket.getsockname()
    assert f"closing the connection of {host}:{port}: METADATA version 99 is outside" in target.output
