"""The listener of /metrics and /healthz ends without a word, whenever it is told to."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from broker.web.http_listener import HttpListener


async def answer(listener: HttpListener) -> bytes:
    """The status line for a page that there is not; nothing if nobody listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(listener.url.rsplit(":", 1)[1]))
    except ConnectionRefusedError:
        return b""
    writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    status = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return status


async def close_after(turns: int) -> None:
    """Close a listener that many turns of the event loop after its server was made."""
    listener, nothing = HttpListener("HTTP://127.0.0.1:0"), SimpleNamespace()
    sources: Any = nothing
    serving = asyncio.ensure_future(listener.serve(sources, sources))
    while listener._server is None:
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    listener.close()
    await asyncio.wait_for(serving, 30)
    assert await answer(listener) == b""


async def test_a_listener_that_serves_is_closed_at_once_and_ends_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener, nothing = HttpListener("HTTP://127.0.0.1:0"), SimpleNamespace()
    sources: Any = nothing
    serving = asyncio.ensure_future(listener.serve(sources, sources))
    assert b" 404 " in await answer(listener)
    listener.close()
    assert await answer(listener) == b""
    await asyncio.wait_for(serving, 30)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_listener_is_closed_at_any_moment_of_its_start(caplog: pytest.LogCaptureFixture) -> None:
    await asyncio.gather(*(close_after(turns) for turns in range(12)))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_listener_that_never_served_is_closed() -> None:
    listener = HttpListener("HTTP://127.0.0.1:0")
    listener.close()
    assert await answer(listener) == b""


async def test_a_listener_whose_task_is_cancelled_may_be_closed_later() -> None:
    listener, nothing = HttpListener("HTTP://127.0.0.1:0"), SimpleNamespace()
    sources: Any = nothing
    serving = asyncio.ensure_future(listener.serve(sources, sources))
    assert b" 404 " in await answer(listener)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert await answer(listener) == b""
    listener.close()
