"""A disk that does not give the bytes of one partition: nothing else may suffer."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ErrorCode
from tests.support.raw_requests import Requests, ask_for
from tests.support.replicating import Brokers

WANTED = [ask_for("bad"), ask_for("good")]


async def test_others_are_read_though_one_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer is cut off in the middle. The next one must not begin with the same bytes again."""
    sendfile = os.sendfile

    def broken(out: int, file: int, position: int, length: int) -> int:
        if "/bad-0/" in os.readlink(f"/proc/self/fd/{file}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sendfile(out, file, position, length)

    monkeypatch.setattr(os, "sendfile", broken)
    brokers = Brokers(tmp_path, "", {"standalone": "true"})
    await brokers.start(1)

    def read() -> Any:
        with Requests(brokers.bootstrap) as ask:
            for topic in ("bad", "good"):
                ask.create(topic)
                ask.put(topic, bytes(50_000))
                ask.put(topic, b"the end")
            with pytest.raises(ConnectionError):
                ask.fetch(WANTED, version=12)
        with Requests(brokers.bootstrap) as ask:
            assert ask.values("bad", 1) == [b"the end"]
            return ask.fetch(WANTED, version=12)

    try:
        bad, good = await asyncio.to_thread(read)
    finally:
        await brokers.stop(1)
    assert bad.error_code is ErrorCode.kafka_storage_error
    assert good.error_code is ErrorCode.none
    assert len(good.records) > 50_000
