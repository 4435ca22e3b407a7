"""What holds for many APIs, whichever file serves them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.api.serving import serves
from broker.api.table import API_TABLE
from broker.protocol.api_keys import ApiKey
from broker.zookeeper.registry import Registry
from tests.support.raw_requests import Requests
from tests.support.replicating import Brokers
from tests.support.waiting import eventually

MORE_PARTITIONS = {
    "topics": [{"name": "t", "count": 3, "assignments": None}],
    "timeout": 30_000,
    "validate_only": False,
}
A_SETTING = {"name": "min.insync.replicas", "config_operation": 0, "value": "7"}
SETTINGS = {
    "resources": [{"resource_type": 2, "resource_name": "t", "configs": [A_SETTING]}],
    "validate_only": False,
}


def test_an_api_that_two_functions_serve_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"CreateAcls is served twice: by broker\.api\.acls\.create_acls already"):
        serves(ApiKey.CREATE_ACLS, 0, 3)(lambda context, request, client: {})


def test_each_function_that_could_serve_an_api_is_declared_to() -> None:
    served = {one.handler for one in API_TABLE}
    forgotten = [
        f"{module.__name__}.{name}: which API is it? Put @serves(…) above it"
        for module in tuple(sys.modules.values())
        if module.__name__.startswith("broker.api.")
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_") and function not in served
        if [*inspect.signature(function).parameters] == ["context", "request", "client"]
    ]
    assert forgotten == []


def partitions(ask: Requests) -> int:
    return len(ask.metadata("t").topics[0].partitions)


def min_insync_replicas(ask: Requests) -> int:
    asked = {"resource_type": 2, "resource_name": "t", "configuration_keys": ["min.insync.replicas"]}
    answer = ask.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [asked], "include_synonyms": False})
    return int(answer.results[0].configs[0].value)


@pytest.mark.parametrize(
    ("api", "body", "written_by", "shown", "expected"),
    [
        (ApiKey.CREATE_PARTITIONS, MORE_PARTITIONS, "add_partitions", partitions, 3),
        (ApiKey.INCREMENTAL_ALTER_CONFIGS, SETTINGS, "alter_topic_config", min_insync_replicas, 7),
    ],
)
async def test_a_change_is_applied_though_its_client_has_gone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: ApiKey,
    body: dict[str, Any],
    written_by: str,
    shown: Any,
    expected: int,
) -> None:
    """Else it would be in ZooKeeper, and no broker would know."""
    begun, go_on = threading.Event(), threading.Event()
    write = getattr(Registry, written_by)

    def write_slowly(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert go_on.wait(20)
        return write(*arguments, **named)

    monkeypatch.setattr(Registry, written_by, write_slowly)
    brokers = Brokers(tmp_path, "", {"standalone": "true"})
    await brokers.start(1)
    server = brokers.running[1]

    def gone_clients() -> int:
        return server._metrics.listeners["PLAINTEXT"].closed["client"]

    def leave() -> None:
        with Requests(brokers.bootstrap) as ask:
            ask.create("t", 1)
        before = gone_clients()
        with contextlib.closing(Requests(brokers.bootstrap)) as gone:
            gone.send(api, body)
            assert begun.wait(20)
        eventually(lambda: gone_clients() > before)
        go_on.set()
        with Requests(brokers.bootstrap) as ask:
            eventually(lambda: shown(ask) == expected)

    try:
        await asyncio.to_thread(leave)
    finally:
        go_on.set()
        await brokers.stop(1)
