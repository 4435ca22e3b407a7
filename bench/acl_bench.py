"""What 10,000 ACLs cost a produce and a fetch: the broker's CPU, next to that of a broker without an authorizer.

Small requests one after the other, so that the right weighs as much as it can. Both brokers take turns.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from bench.measure import Row
from broker.protocol.api_keys import ApiKey
from broker.security.acl_types import AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, fetch_body

ACLS, ROUNDS, REQUESTS = 10_000, 9, 10_000
AUTHORIZER = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    # Until there are ACLs for it, everybody may do everything with a resource.
    "allow.everyone.if.no.acl.found": "true",
}
TOPIC = "orders"


def run(scale: float = 1.0) -> list[Row]:
    """µs of CPU a request; the ceiling is the broker without an authorizer."""
    with contextlib.ExitStack() as stack:
        ours, plain = (stack.enter_context(_Side(settings)) for settings in (AUTHORIZER, {}))
        rows = []
        for name, ask in (("produce", _produce), ("fetch", _fetch)):
            count = max(int(REQUESTS * scale), 100)
            for side in (ours, plain):
                side.cpu_us(ask, count)
            pairs = [(ours.cpu_us(ask, count), plain.cpu_us(ask, count)) for _ in range(ROUNDS)]
            ratio = statistics.median(a / b for a, b in pairs)
            figure, ceiling = (statistics.median(column) for column in zip(*pairs, strict=True))
            note = f"median of {ROUNDS} ratios {ratio:.3f}"
            rows.append(Row(f"{name} with {ACLS:,} ACLs", figure, "µs CPU", ceiling, note))
        return rows


class _Side:
    """One broker, with a topic and a client that may write and read it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._stack = contextlib.ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._has_acls = bool(settings)
        self._broker = BrokerProcess(directory, settings, standalone=True)

    def __enter__(self) -> _Side:
        self._stack.enter_context(self._broker)
        self._ask = self._stack.enter_context(Requests(self._broker.bootstrap))
        self._ask.create(TOPIC, retention_bytes=str(64 << 20))
        self._ask.put(TOPIC, b"x" * 100)
        if self._has_acls:
            for first in range(0, ACLS, 500):
                self._ask.ask(ApiKey.CREATE_ACLS, {"creations": list(map(_acl, range(first, first + 500)))})
        self._process = psutil.Process(self._broker.pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cpu_us(self, ask: Callable[[Requests], None], count: int) -> float:
        before = self._process.cpu_times()
        for _ in range(count):
            ask(self._ask)
        after = self._process.cpu_times()
        return (after.user + after.system - before.user - before.system) / count * 1e6


def _acl(number: int) -> dict[str, object]:
    """A third of them on the topic, for others; the rest on prefixes and other topics. Two are the client's own."""
    own = number < 2
    name = TOPIC if own or number % 3 == 0 else f"team-{number}"
    return {
        "resource_type": AclResourceType.TOPIC,
        "resource_name": name,
        "resource_pattern_type": PatternType.PREFIXED if number % 3 == 1 and not own else PatternType.LITERAL,
        "principal": "User:ANONYMOUS" if own else f"User:somebody-{number}",
        "host": "*",
        "operation": (AclOperation.WRITE, AclOperation.READ)[number % 2],
        "permission_type": AclPermission.ALLOW,
    }


def _produce(ask: Requests) -> None:
    ask.put(TOPIC, b"x" * 100)


def _fetch(ask: Requests) -> None:
    ask.ask(ApiKey.FETCH, fetch_body([ask_for(TOPIC)], max_bytes=1000), 12)
