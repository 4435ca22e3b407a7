"""`pykafka broker start`: run a broker in the foreground.

SIGINT or SIGTERM stops it cleanly. One line on standard output tells where it listens. The log goes to standard error
in the form `logging.format`, or where a logging configuration of Python (`--logging FILE`) sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import resource
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

import broker
from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.server import BrokerServer
from broker.tools.logging_setup import configure_logging, held_back

__all__ = ["allow_many_files", "app", "keep_freed_memory", "start"]

app = typer.Typer(
    help="Run a broker; print its configuration.\n\n\b\nExamples:\n"
    "  pykafka broker start\n  pykafka broker config > server.properties\n  pykafka broker start server.properties",
    no_args_is_help=True,
)

CONF = Path(broker.__file__).parent / "conf"
_CONF_FILES = ("server.properties", "logging.ini", "zookeeper.properties", "producer.properties", "consumer.properties")

# glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 16 << 20
"""The heap keeps so much freed memory; a single block of this size goes back to the kernel at once."""


@app.command()
def start(
    properties: Annotated[
        Path | None,
        typer.Argument(help="Settings. Default: those that `pykafka broker config` prints.", metavar="FILE"),
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option(help="Setting that wins over the file; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    logging_config: Annotated[
        Path | None, typer.Option("--logging", help="Logging configuration, such as conf/logging.ini.", metavar="FILE")
    ] = None,
    stop_on_eof: Annotated[
        bool, typer.Option("--stop-on-eof", help="Stop when standard input is closed, as a parent process does.")
    ] = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM. Without zookeeper.connect it starts its own ZooKeeper.

    \b
    Examples:
      pykafka broker start
      pykafka broker start server.properties
      pykafka broker start --override log.dirs=/var/lib/pykafka --override listeners=PLAINTEXT://0.0.0.0:9092
    """
    with held_back():
        config = BrokerConfig.load(properties or CONF / "server.properties", _parse_overrides(override or ()))
        configure_logging(logging_config, config.logging_format)
    allow_many_files()
    keep_freed_memory()
    asyncio.run(_run(config, stop_on_eof))


@app.command()
def config(
    name: Annotated[
        str, typer.Argument(help=f"One of {', '.join(_CONF_FILES)}.", metavar="NAME")
    ] = "server.properties",
) -> None:
    """Print a configuration file with all settings, their defaults and what they mean.

    \b
    Examples:
      pykafka broker config > server.properties
      pykafka broker config logging.ini > logging.ini
    """
    if name not in _CONF_FILES:
        raise ConfigError(f"{name}: expected one of {', '.join(_CONF_FILES)}")
    typer.echo((CONF / name).read_text(encoding="utf-8"), nl=False)


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard one, as the JVM does: connections and segments need them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has limits of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_freed_memory() -> bool:
    """Let the C library keep the memory of one request for the next. Returns False where there is no glibc.

    Otherwise the memory of a Produce request of a megabyte goes back to the kernel and is taken again page by page:
    more than half of the CPU time of producing large batches (docs/performance.md).
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
    metrics = f", metrics on {server.metrics_url}" if server.metrics_url else ""
    print(f"pykafka broker {server.config.broker_id} listening on {where}{own}{metrics}", flush=True)
    await waiting
    await server.stop()
