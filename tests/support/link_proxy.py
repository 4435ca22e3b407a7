"""A network between processes that a test can cut, delay and break: TCP proxies that know who talks to whom.

Each node is reached through a port of the proxy, which a broker names in `advertised.listeners`. That port is the same
for all who connect, so the proxy asks the operating system which process holds the other end of a connection.

    with LinkProxy(pids) as links:
        port = links.listen(2, 9092)
        links.cut(1, 2)

What a fault does to open connections is what TCP does on such a network. A byte that a cut holds up arrives when the
cut is healed, because TCP sends it again, unless one end has given up by then. A connection that is opened during a cut
gets no answer; unlike on a real network, `connect` itself returns.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Self, TypeVar

from tests.support.socket_holder import holder

T = TypeVar("T")

Node = int | str
"""A broker's id, or a name such as "zookeeper"."""

OTHERS: Final = "others"
"""All processes that are no node: the clients."""

_PIECE_BYTES = 1 << 16
_PIECES_UNDER_WAY = 64


class LinkProxy:
    """`pids` gives the process of each node that may open a connection; it is called for every new connection."""

    def __init__(self, pids: Callable[[], Mapping[Node, int]]) -> None:
        self._pids = pids
        self._ways: dict[tuple[Node, Node], _Way] = {}
        self._connections: set[_Connection] = set()
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link-proxy", daemon=True)
        self._thread.start()

    def listen(self, node: Node, target: int, *, opener: Node | None = None) -> int:
        """A port that leads to `node`, which listens on the port `target`.

        `opener`: the only node that uses this port, so that nobody needs to be looked for.
        """
        listener = socket.create_server(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(opener, node, target, reader, writer))
            self._tasks[task] = writer
            task.add_done_callback(self._ended)

        async def serve() -> None:
            self._servers.append(await asyncio.start_server(accept, sock=listener))

        asyncio.run_coroutine_threadsafe(serve(), self._loop).result(60)
        return port

    def cut(self, one: Node, other: Node, *, one_way: bool = False) -> None:
        """Let nothing pass between two nodes, or with `one_way` nothing from `one` to `other`. Nobody is told."""
        concerned = [self._way(one, other)] if one_way else self._ways_between(one, other)

        def cut() -> None:
            for way in concerned:
                way.passable.clear()

        self._on_loop(cut)

    def delay(self, one: Node, other: Node, seconds: float) -> None:
        """Let everything between two nodes arrive so much later, in each direction."""
        for way in self._ways_between(one, other):
            way.delay_s = seconds

    def half_open(self, opener: Node, acceptor: Node) -> int:
        """Break the open connections, and tell only the end that accepted them. Returns how many.

        Their openers get no answer any more, also after `heal`. New connections work.
        """

        def break_them() -> int:
            concerned = [one for one in self._connections if (one.opener, one.acceptor) == (opener, acceptor)]
            for connection in concerned:
                _reset(connection.far)
                connection.task.cancel()
            return len(concerned)

        return self._on_loop(break_them)

    def heal(self) -> None:
        """End all cuts and delays."""

        def heal() -> None:
            for way in self._ways.values():
                way.delay_s = 0.0
                way.passable.set()

        self._on_loop(heal)

    def close(self) -> None:
        """Break all connections and stop listening."""
        if self._loop.is_closed():
            return

        async def end() -> None:
            for server in self._servers:
                server.close()
            ours = asyncio.current_task()
            while tasks := {task for task in asyncio.all_tasks() if task is not ours}:  # connections may still arrive
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for writer in (*self._tasks.values(), *(one.far for one in self._connections)):
                _reset(writer)
            await asyncio.sleep(0)  # the transports close their sockets

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- on the loop's thread

    def _on_loop(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def _way(self, source: Node, destination: Node) -> _Way:
        return self._ways.setdefault((source, destination), _Way())

    def _ways_between(self, one: Node, other: Node) -> list[_Way]:
        return [self._way(one, other), self._way(other, one)]

    async def _serve(
        self,
        opener: Node | None,
        acceptor: Node,
        target: int,
        reader: asyncio.StreamReader,
        near: asyncio.StreamWriter,
    ) -> None:
        """Pass one connection on. When it is made half-open, this task is cancelled and `near` stays open."""
        try:
            if opener is None:
                opener = await asyncio.to_thread(self._holder, near)
            there, back = self._way(opener, acceptor), self._way(acceptor, opener)
            await there.passable.wait()
            far_reader, far = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            _reset(near)  # nobody listens there
            return
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(opener, acceptor, far, task)
        self._connections.add(connection)
        await asyncio.gather(_pass_on(reader, far, there), _pass_on(far_reader, near, back))
        far.close()
        self._connections.discard(connection)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():  # else its opener shall notice nothing before `close`
            self._tasks.pop(task).close()

    def _holder(self, near: asyncio.StreamWriter) -> Node:
        """The node that opened a connection."""
        port, ours = near.get_extra_info("peername")[1], near.get_extra_info("sockname")[1]
        node = holder(port, ours, self._pids())
        return OTHERS if node is None else node


class _Way:
    """What happens to bytes from one node to another."""

    def __init__(self) -> None:
        self.passable = asyncio.Event()
        self.passable.set()
        self.delay_s = 0.0


class _Connection(NamedTuple):
    opener: Node
    acceptor: Node
    far: asyncio.StreamWriter
    """Towards the acceptor."""
    task: asyncio.Task[None]


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: _Way) -> None:
    """Pass bytes on until the end, which is passed on, too; also a broken connection."""
    under_way: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_PIECES_UNDER_WAY)
    loop = asyncio.get_running_loop()

    async def take() -> None:
        piece: bytes | None = b"more"
        while piece:
            try:
                piece = await reader.read(_PIECE_BYTES)
            except OSError:
                piece = None  # a reset
            await under_way.put((loop.time() + way.delay_s, piece))

    async def give() -> None:
        while True:
            due, piece = await under_way.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await way.passable.wait()
            if piece is None:
                _reset(writer)
                return
            try:
                if not piece:
                    writer.write_eof()
                    return
                writer.write(piece)
                await writer.drain()
            except OSError:
                pass  # the other direction passes the reset on

    await asyncio.gather(take(), give())


def _reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection as a process that is killed does."""
    connection = writer.get_extra_info("socket")
    if connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
