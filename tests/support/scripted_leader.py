"""A leader broker on a real socket that answers a follower's requests from a log, or as a test's script says."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

from broker.errors import ErrorCode
from broker.log.log import Log
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_request, encode_response, to_ms
from broker.replica.replica import UNKNOWN_EPOCH

_EARLIEST_LOCAL = -4
Fields = dict[str, Any]
Script = Callable[[Any], Fields | bytes | None]
"""Takes the body of a Fetch: the fields of the answer, or raw bytes after which the connection ends; None leaves it to
the log."""


@dataclasses.dataclass
class LedLog:
    """A partition of the scripted leader. `error` answers its fetches."""

    log: Log
    epoch: int = 0
    high_watermark: int | None = None
    error: ErrorCode = ErrorCode.none
    topic: str = "t"

    def answer(self, asked: Any) -> Fields:
        """What a leader answers for one partition of a Fetch (KIP-320, KIP-595)."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        found: Fields = {"partition_index": asked.partition, "high_watermark": end, "log_start_offset": start}
        found["high_watermark"] = end if self.high_watermark is None else self.high_watermark
        found["snapshot_id"] = {"end_offset": self.log.archived_end, "epoch": -1}
        error = self.error
        if error is ErrorCode.none and asked.current_leader_epoch != self.epoch:
            older = asked.current_leader_epoch < self.epoch
            error = ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        if error is ErrorCode.none and asked.last_fetched_epoch >= 0:
            known = self.log.end_offset_for_epoch(asked.last_fetched_epoch, self.epoch)
            if known == UNKNOWN_EPOCH:
                error = ErrorCode.offset_out_of_range
            elif known[0] < asked.last_fetched_epoch or known[1] < asked.fetch_offset:
                return found | {"diverging_epoch": {"epoch": known[0], "end_offset": known[1]}}
        if error is ErrorCode.none and not start <= asked.fetch_offset <= end:
            error = ErrorCode.offset_out_of_range
        if error is ErrorCode.none and asked.fetch_offset < self.log.local_start_offset:
            error = ErrorCode.offset_moved_to_tiered_storage
        if error is not ErrorCode.none:
            return found | {"error_code": error, "high_watermark": -1, "log_start_offset": -1}
        piece = self.log.read(asked.fetch_offset, asked.partition_max_bytes)
        return found | {"records": piece.read() if piece is not None else b""}


class ScriptedLeader:
    """Serves `logs` by topic id and partition. `scripts` answer the next fetches."""

    def __init__(self, logs: Mapping[tuple[uuid.UUID, int], LedLog], *scripts: Script, sessions: bool = False) -> None:
        self.logs = dict(logs)
        self.scripts = deque(scripts)
        self.fetches: list[Any] = []
        """The bodies of all Fetch requests."""
        self.connections = 0
        self.port = 0
        self._sessions = sessions
        self._session: dict[tuple[uuid.UUID, int], Any] = {}
        self._changed = asyncio.Event()
        self._asked = asyncio.Condition()
        self._server: asyncio.Server
        self._serving: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def changed(self) -> None:
        """Wake the fetches that wait."""
        self._changed.set()

    async def fetched(self, count: int) -> None:
        """Wait until there have been `count` fetches."""
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.fetches) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                answer = await self._answer(decode_request(frame))
                if isinstance(answer, tuple):
                    writer.write(answer[0])
                    return
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, request: Request) -> bytes | tuple[bytes]:
        body = request.body
        if request.api is ApiKey.OFFSET_FOR_LEADER_EPOCH:
            return encode_response(request, self._per_partition(body, "topic", self._epoch_end))
        if request.api is ApiKey.LIST_OFFSETS:
            return encode_response(request, self._per_partition(body, "name", self._start))
        self.fetches.append(body)
        async with self._asked:
            self._asked.notify_all()
        found = self.scripts.popleft()(body) if self.scripts else None
        if isinstance(found, bytes):
            return (found,)
        return encode_response(request, await self._fetch(body) if found is None else found)

    async def _fetch(self, body: Any) -> Fields:
        asked = {(topic.topic_id, one.partition): one for topic in body.topics for one in topic.partitions}
        session_id = 0
        if self._sessions:
            session_id = 77
            if body.session_epoch == 0:
                self._session = {}
            self._session |= asked
            for topic in body.forgotten_topics_data:
                for index in topic.partitions:
                    self._session.pop((topic.topic_id, index), None)
            asked = self._session
        found = self._read(asked)
        if not any(self._is_news(one) for _, one in found):
            self._changed.clear()
            try:
                async with asyncio.timeout(to_ms(body.max_wait) / 1000):
                    await self._changed.wait()
            except TimeoutError:
                pass
            found = self._read(asked)
        if session_id and body.session_epoch:
            found = [(id_, one) for id_, one in found if self._is_news(one)]
        return {"session_id": session_id, "responses": [{"topic_id": id_, "partitions": [one]} for id_, one in found]}

    def _read(self, asked: Mapping[tuple[uuid.UUID, int], Any]) -> list[tuple[uuid.UUID, Fields]]:
        return [(key[0], self.logs[key].answer(one)) for key, one in asked.items()]

    def _is_news(self, one: Fields) -> bool:
        return bool(one.get("records") or one.get("error_code") or one.get("diverging_epoch"))

    def _per_partition(self, body: Any, name: str, of: Callable[[LedLog, Any], Fields]) -> Fields:
        """The answer for requests that name topics."""
        led = {(log.topic, index): log for (_, index), log in self.logs.items()}
        topics = []
        for topic in body.topics:
            answers = [of(_led(led, topic, name, one), one) for one in topic.partitions]
            topics.append({name: getattr(topic, name), "partitions": answers})
        return {"topics": topics}

    def _epoch_end(self, led: LedLog, asked: Any) -> Fields:
        epoch, end = led.log.end_offset_for_epoch(asked.leader_epoch, led.epoch)
        return {"partition": asked.partition, "leader_epoch": epoch, "end_offset": end}

    def _start(self, led: LedLog, asked: Any) -> Fields:
        is_local = asked.timestamp == _EARLIEST_LOCAL
        offset = led.log.local_start_offset if is_local else led.log.log_start_offset
        return {"partition_index": asked.partition_index, "offset": offset, "timestamp": -1}


def _led(logs: Mapping[tuple[str, int], LedLog], topic: Any, name: str, one: Any) -> LedLog:
    index = one.partition if name == "topic" else one.partition_index
    return logs[getattr(topic, name), index]
