"""A proxy server that others wrote (pproxy), for SOCKS5 and HTTP CONNECT on one port, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tests.support.free_ports import free_ports
from tests.support.waiting import eventually

USER, PASSWORD = "etl", "s3cr:t"


class ProxyServer:
    """Lets in who knows `PASSWORD`. `log` tells where connections went, by the names that clients sent."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self._log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")  # noqa: SIM115
        listen = f"socks5+http://127.0.0.1:{self.port}#{USER}:{PASSWORD}"
        command = [sys.executable, "-W", "ignore", "-m", "pproxy", "-v", "--auth", "0", "-l", listen]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def url(self, scheme: str, password: str = PASSWORD) -> str:
        return f"{scheme}://{USER}:{quote(password, safe='')}@127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def __enter__(self) -> Self:
        eventually(lambda: "Serving on" in self.log)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        self._log.close()
