"""`pykafka broker`: run a broker in the foreground.

SIGINT or SIGTERM stops it cleanly. One line on standard output tells where it listens; everything else
goes to the log on standard error, as `logging.format` says, or where `--logging FILE` (Python's logging configuration)
says.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.server import BrokerServer
from broker.tools.logging_setup import configure_logging, held_back
from broker.tools.process import allow_many_files, keep_freed_memory

__all__ = ["app", "start"]

app = typer.Typer(help="Run a broker.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Run a broker."""


@app.command()
def start(
    properties: Annotated[Path | None, typer.Argument(help="Settings, such as conf/server.properties.")] = None,
    override: Annotated[
        list[str] | None, typer.Option(help="key=value over the file; may be given often.", metavar="KEY=VALUE")
    ] = None,
    logging_config: Annotated[
        Path | None, typer.Option("--logging", help="Logging configuration file, such as conf/logging.ini.")
    ] = None,
    stop_on_eof: Annotated[
        bool, typer.Option("--stop-on-eof", help="Stop when standard input closes: for a broker that is a child.")
    ] = False,
) -> None:
    """Start a broker in the foreground; stop it with Ctrl-C or SIGTERM."""
    with held_back():
        config = BrokerConfig.load(properties, _parse_overrides(override or ()))
        configure_logging(logging_config, config.logging_format)
    allow_many_files()
    keep_freed_memory()
    asyncio.run(_run(config, stop_on_eof))


def _parse_overrides(texts: Iterable[str]) -> dict[str, str]:
    overrides = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--override {text}: expected key=value")
        overrides[key.strip()] = value.strip()
    return overrides


class _StopAtEnd(asyncio.Protocol):
    """Reads standard input to its end, whatever it says."""

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
    # What start-up made lives as long as the broker: let the collector never walk it again.
    gc.collect()
    gc.freeze()
    where = ", ".join(map(str, bound)) if len(bound) > 1 or bound[0].name != "PLAINTEXT" else bound[0].address
    own = f" (its own ZooKeeper on {server.embedded_zookeeper})" if server.embedded_zookeeper else ""
    metrics = f", metrics on {server.metrics_url}" if server.metrics_url else ""
    print(f"pykafka broker {server.config.broker_id} listening on {where}{own}{metrics}", flush=True)
    await waiting
    await server.stop()
