"""Runs a broker in the foreground, for `pykafka broker start`.

SIGINT or SIGTERM stops it cleanly. One line on standard output tells where it listens. The log goes to standard error
in the form `logging.format`, or where a logging configuration of Python (`--logging FILE`) sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import broker
from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.server import BrokerServer
from broker.tools.logging_setup import configure_logging, held_back

CONF = Path(broker.__file__).parent / "conf"

# glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 16 << 20
"""The heap keeps so much freed memory; a single block of this size goes back to the kernel at once."""


@dataclass(frozen=True)
class BrokerOptions:
    properties: Path | None = None
    overrides: tuple[str, ...] = ()
    logging_config: Path | None = None
    standalone: bool = False
    stop_on_eof: bool = False

    @classmethod
    def parse(cls, words: Sequence[str]) -> BrokerOptions | None:
        """The options of a plain command line. None for one that typer must read: with --help, or with an error."""
        files: list[Path] = []
        flags: set[str] = set()
        values: dict[str, list[str]] = {"--override": [], "--logging": []}
        left = iter(words)
        for word in left:
            name, equals, value = word.partition("=")
            if name in values:
                value = value if equals else next(left, "")
                if not value or value.startswith("-"):
                    return None
                values[name].append(value)
            elif word in ("--standalone", "--stop-on-eof"):
                flags.add(word)
            elif word.startswith("-") or not word or files:
                return None
            else:
                files.append(Path(word))
        if len(values["--logging"]) > 1:
            return None
        return cls(
            next(iter(files), None),
            tuple(values["--override"]),
            next(map(Path, values["--logging"]), None),
            standalone="--standalone" in flags,
            stop_on_eof="--stop-on-eof" in flags,
        )


def run_broker(options: BrokerOptions) -> None:
    """Run a broker until Ctrl-C or SIGTERM, or until the end of standard input where that was asked for."""
    with held_back():
        overrides = _parse_overrides(options.overrides) | ({"standalone": "true"} if options.standalone else {})
        config = BrokerConfig.load(options.properties or CONF / "server.properties", overrides)
        configure_logging(options.logging_config, config.logging_format)
    allow_many_files()
    keep_freed_memory()
    asyncio.run(_run(config, options.stop_on_eof))
    _end_process()


def _end_process() -> None:
    """Exit at once. All is closed, and Python would spend up to 35 ms on taking itself apart."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one, as the JVM does: connections and segments need them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has limits of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_freed_memory() -> bool:
    """Let the C library keep the memory of one request for the next. Returns False where there is no glibc.

    Otherwise the memory of a Produce request of a megabyte goes back to the kernel and is taken again page by page:
    more than half of the CPU time of producing large batches (docs/performance-history.md).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


def _parse_overrides(texts: Iterable[str]) -> dict[str, str]:
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--override {text}: expected key=value")
        overrides[key.strip()] = value.strip()
    return overrides


class _StopAtEnd(asyncio.Protocol):
    """Waits for the end of standard input and ignores its content."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped

    def connection_lost(self, exc: Exception | None) -> None:
        self._stopped.set()


async def _run(config: BrokerConfig, stop_on_eof: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    if stop_on_eof:
        await loop.connect_read_pipe(lambda: _StopAtEnd(stopped), sys.stdin)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    server = BrokerServer(config)
    starting = asyncio.ensure_future(server.start())
    waiting = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    bound = starting.result()
    # The objects of start-up live as long as the broker, so the garbage collector need not visit them again.
    gc.collect()
    gc.freeze()
    where = ", ".join(map(str, bound)) if len(bound) > 1 or bound[0].name != "PLAINTEXT" else bound[0].address
    own = f" (its own ZooKeeper on {server.embedded_zookeeper})" if server.embedded_zookeeper else ""
    own = " (standalone)" if server.config.standalone else own
    metrics = f", metrics on {server.metrics_url}" if server.metrics_url else ""
    print(f"pykafka broker {server.config.broker_id} listening on {where}{own}{metrics}", flush=True)
    await waiting
    await server.stop()
