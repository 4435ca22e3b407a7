"""Every request is counted by API, and a slow one is told in the log; a long poll is not slow for waiting."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from broker.errors import ErrorCode
from broker.metrics import ApiMetrics, Metrics
from broker.net.request_log import RequestLog
from broker.net.router import Client, Route, Router
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_request, read_head
from tests.support.listening import answer_with, read_frame, request, serving

CLIENT = Client("10.0.0.1", 4711)


def frame(api: ApiKey = ApiKey.METADATA, version: int = 4) -> bytearray:
    return bytearray(encode_request(api, version, 1, "me", {})[4:])


def route(handler: Any, log: RequestLog) -> Router:
    return Router([Route(api, 0, 17, handler) for api in ApiKey], log)


def counted(
    handler: Any, api: ApiKey = ApiKey.METADATA, slow_ms: int = -1, received: float | None = None
) -> ApiMetrics:
    metrics = Metrics()
    response = route(handler, RequestLog(metrics, slow_ms)).dispatch(read_head(frame(api)), CLIENT, received)
    if asyncio.iscoroutine(response):
        asyncio.run(response)
    return metrics.apis[api]


def test_requests_are_counted_with_sizes_and_times() -> None:
    api = counted(lambda r, c: answer_with("x"))
    assert dict(api.requests) == {4: 1}
    assert (api.request_bytes, api.total.count) == (len(frame()), 1)
    assert api.response_bytes > 20
    assert api.remote == 0
    assert 0 < api.local < 5


def test_errors_are_counted_wherever_they_stand_in_a_response() -> None:
    code = ErrorCode.unknown_topic_or_partition
    topics: list[Any] = [
        {"name": "t", "partitions": [{"error_code": code}, {"error_code": ErrorCode.none}]},
        {"name": "u", "partitions": [{"error_code": code}, {"error_code": ErrorCode.leader_not_available}]},
    ]
    metrics = Metrics()
    asked = bytearray(encode_request(ApiKey.LIST_OFFSETS, 4, 1, "me", {})[4:])
    route(lambda r, c: {"topics": topics}, RequestLog(metrics)).dispatch(read_head(asked), CLIENT)
    assert dict(metrics.apis[ApiKey.LIST_OFFSETS].errors) == {int(code): 2, int(ErrorCode.leader_not_available): 1}


def test_what_a_handler_waits_for_is_remote_time() -> None:
    async def wait() -> dict[str, Any]:
        await asyncio.sleep(1.0)
        return answer_with("x")

    api = counted(lambda r, c: wait())
    assert api.remote >= 1.0
    assert api.local < api.remote


def test_time_in_the_queue_is_told_apart() -> None:
    metrics = Metrics()

    async def main() -> None:
        async def wait() -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return answer_with("x")

        async with serving(lambda r, c: wait(), metrics) as (host, port, _):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request(1) + request(2))
            await read_frame(reader)
            await read_frame(reader)
            writer.close()

    asyncio.run(main())
    assert 0.02 <= metrics.apis[ApiKey.METADATA].queue < metrics.apis[ApiKey.METADATA].total.sum


def test_a_slow_request_gets_a_line_with_all_that_is_known(caplog: pytest.LogCaptureFixture) -> None:
    counted(lambda r, c: answer_with("x"), slow_ms=0)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    said = {name: vars(record)[name] for name in ("event", "api", "version", "client_id", "peer", "request_bytes")}
    assert said == {
        "event": "slow_request",
        "api": "METADATA",
        "version": 4,
        "client_id": "me",
        "peer": "10.0.0.1:4711",
        "request_bytes": len(frame()),
    }
    assert "slow request: METADATA version 4 of 10.0.0.1:4711, client id me" in record.getMessage()


@pytest.mark.parametrize(
    ("api", "lines"), [(ApiKey.FETCH, 0), (ApiKey.JOIN_GROUP, 0), (ApiKey.SYNC_GROUP, 0), (ApiKey.METADATA, 1)]
)
def test_who_waits_by_design_is_not_slow_for_it(caplog: pytest.LogCaptureFixture, api: ApiKey, lines: int) -> None:
    async def wait() -> list[bytes]:
        await asyncio.sleep(1.6)
        return [b"answer"]

    counted(lambda r, c: wait(), api, slow_ms=1500)
    assert len(caplog.records) == lines


def test_without_a_threshold_nothing_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    counted(lambda r, c: answer_with("x"), slow_ms=-1, received=0.0)
    assert caplog.records == []
