"""Our broker cut down to what others serve: a listener for each profile, behind a proxy that answers for the rest.

    with CutDownBroker(data_dir, PROFILES) as broker:
        Cluster(broker.bootstrap(EVENT_HUBS))

A proxy answers ApiVersions with the profile's ranges, hangs up on a request outside of them, as Kafka does, and answers
with an error what the profile refuses. All else passes through. The broker advertises the proxies' addresses, so that
clients never leave them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Head, Request, encode_response, read_head
from tests.support.broker_process import BrokerProcess
from tests.support.broker_profiles import Profile

_LENGTH: Final = struct.Struct(">i")
_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "50",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}


class CutDownBroker:
    """One broker; `bootstrap(profile)` is where it serves no more than that, `full` where it serves all."""

    def __init__(self, data_dir: Path, profiles: Sequence[Profile]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cut-down", daemon=True)
        self._thread.start()
        self._proxies = {
            profile.name: _Proxy(f"CUT{number}", profile, self._loop) for number, profile in enumerate(profiles)
        }
        names = ["PLAINTEXT", *(proxy.listener for proxy in self._proxies.values())]
        settings = {
            **_SETTINGS,
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "advertised.listeners": ",".join(
                ["PLAINTEXT://127.0.0.1:0"]
                + [f"{proxy.listener}://127.0.0.1:{proxy.port}" for proxy in self._proxies.values()]
            ),
            "inter.broker.listener.name": "PLAINTEXT",
        }
        self._broker = BrokerProcess(data_dir, settings, standalone=True)

    @property
    def full(self) -> str:
        return self._broker.listeners["PLAINTEXT"]

    def bootstrap(self, profile: Profile) -> str:
        return f"127.0.0.1:{self._proxies[profile.name].port}"

    def asked(self, profile: Profile) -> set[tuple[ApiKey, int]]:
        """The APIs and versions that clients have asked for since the last call."""
        proxy = self._proxies[profile.name]
        asked, proxy.asked = proxy.asked, set()
        return asked

    def __enter__(self) -> Self:
        self._broker.start()
        for proxy in self._proxies.values():
            proxy.begin(int(self._broker.listeners[proxy.listener].rpartition(":")[2]))
        return self

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            for proxy in self._proxies.values():
                proxy.close()
            ours = asyncio.current_task()
            tasks = [task for task in asyncio.all_tasks() if task is not ours]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._broker.stop()
        assert "Traceback" not in self._broker.output, self._broker.output[-4000:]


class _Proxy:
    def __init__(self, listener: str, profile: Profile, loop: asyncio.AbstractEventLoop) -> None:
        self.listener = listener
        self.profile = profile
        self.asked: set[tuple[ApiKey, int]] = set()
        self._loop = loop
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._target = 0
        self._server: asyncio.Server | None = None

    def begin(self, target: int) -> None:
        self._target = target

        async def serve() -> None:
            self._server = await asyncio.start_server(self._serve, sock=self._socket)

        asyncio.run_coroutine_threadsafe(serve(), self._loop).result(60)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        answers, broker = await asyncio.open_connection("127.0.0.1", self._target)
        back = asyncio.create_task(_pass_on(answers, client))
        try:
            while True:
                length = await reader.readexactly(_LENGTH.size)
                frame = await reader.readexactly(_LENGTH.unpack(length)[0])
                head = read_head(frame)
                if not self._serves(head):
                    break
                answer = self._own_answer(head)
                if answer is None:
                    broker.write(length + frame)
                    await broker.drain()
                else:
                    client.write(answer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            back.cancel()
            broker.close()
            client.close()

    def _serves(self, head: Head) -> bool:
        lowest, highest = self.profile.apis.get(ApiKey(head.key), (0, -1))
        if lowest <= head.version <= highest:
            self.asked.add((ApiKey(head.key), head.version))
            return True
        return head.key == ApiKey.API_VERSIONS and not self.profile.hangs_up_on_api_versions

    def _own_answer(self, head: Head) -> bytes | None:
        """What the service says; None: as our broker does. Nothing else is in flight then: our clients send such
        requests one by one."""
        profile = self.profile
        if head.key == ApiKey.API_VERSIONS:
            fits = head.version <= profile.apis[ApiKey.API_VERSIONS][1]
            rows = [
                {"api_key": int(api), "min_version": low, "max_version": high}
                for api, (low, high) in sorted(profile.apis.items())
            ]
            request = Request(
                ApiKey.API_VERSIONS, head.version if fits else 0, head.correlation_id, None, None, len(head.frame)
            )
            error = ErrorCode.none if fits else ErrorCode.unsupported_version
            return encode_response(request, {"error_code": error, "api_keys": rows})
        if head.key in profile.refused:
            return _refused(head.decode(), profile.refused[ApiKey(head.key)])
        if head.key == ApiKey.LIST_OFFSETS and profile.no_times is not None:
            request = head.decode()
            if any(row.timestamp >= 0 for topic in request.body.topics for row in topic.partitions):
                return _refused(request, profile.no_times)
        if head.key == ApiKey.INIT_PRODUCER_ID and profile.no_transactional_ids:
            request = head.decode()
            if request.body.transactional_id:
                return encode_response(request, {"error_code": ErrorCode.unsupported_version, "producer_id": -1})
        return None


def _refused(request: Request, code: ErrorCode) -> bytes:
    body, fields = request.body, {"error_code": code}
    match request.api:
        case ApiKey.LIST_OFFSETS:
            topics = [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": row.partition_index, "timestamp": -1, "offset": -1, **fields}
                        for row in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
            return encode_response(request, {"topics": topics})
        case ApiKey.OFFSET_FOR_LEADER_EPOCH:
            unknown = {"end_offset": -1, **fields}
            epochs = [
                {
                    "topic": topic.topic,
                    "partitions": [{"partition": row.partition, **unknown} for row in topic.partitions],
                }
                for topic in body.topics
            ]
            return encode_response(request, {"topics": epochs})
        case ApiKey.DESCRIBE_TRANSACTIONS:
            rows = [{"transactional_id": name, **fields} for name in body.transactional_ids]
            return encode_response(request, {"transaction_states": rows})
        case ApiKey.DESCRIBE_LOG_DIRS | ApiKey.LIST_TRANSACTIONS:
            return encode_response(request, fields)
    raise AssertionError(f"say how {request.api.title} is refused")


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
    writer.close()
