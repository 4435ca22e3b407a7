"""A peer on a real socket that answers as a test's script says: for what no healthy broker does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Script = Callable[[socket.socket], None]


class TcpPeer:
    """Listens on loopback and runs the next of `scripts` for each connection; the last one serves all further."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._is_over = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.accepted = 0

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            self._is_over = True
            for sock in self._open:
                sock.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_over:  # the test ended while its last connection was accepted
                    sock.close()
                    return
                self._open.append(sock)
            script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
            self.accepted += 1
            try:
                script(sock)
            except OSError:
                sock.close()


def read_frame(sock: socket.socket) -> bytes:
    """One request without its length; EOFError when the client has gone."""
    return _read(sock, int.from_bytes(_read(sock, 4), "big"))


def send_frame(sock: socket.socket, payload: bytes) -> None:
    """One response, the length put before it."""
    sock.sendall(len(payload).to_bytes(4, "big") + payload)


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionResetError("the client has gone")
        data += piece
    return data
