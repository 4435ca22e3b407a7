"""What the service `pykafka load --watch` tells about its loads: lines about outages, and metrics with `--metrics`.

The lag is asked from the brokers at every scrape, in a thread of its own, so it also grows while loads fail.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.destinations import open_destination
from spark_connector.loads.load_loop import Outage
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import LoadRequest
from spark_connector.options.range_limit import Position
from spark_connector.options.read_options import SourceOptions
from spark_connector.progress.prometheus import LoadMetrics
from spark_connector.read.offset_reader import OffsetReader

_PATIENCE_MS = 3_000  # the longest that a scrape waits for brokers


@contextlib.contextmanager
def observe_loads(request: LoadRequest, address: str | None, say: Callable[[str], None]) -> Iterator[LoadObserver]:
    """The observer of the service's loads; with metrics when `address` is given."""
    lag = LoadLag(request.source)
    if address is None:
        yield LoadObserver(request, lag, say)
        return
    with LoadMetrics(request.target.group, address, lag.behind) as metrics:
        say(f"Metrics on {metrics.url}")
        yield LoadObserver(request, lag, say, metrics)


class LoadObserver:
    """Prints a line when an outage begins, when its cause changes, and when it is over. For the thread that loads.

    With `metrics` it also counts loads, and reads the group's offsets when they may have changed.
    """

    def __init__(
        self, request: LoadRequest, lag: LoadLag, say: Callable[[str], None], metrics: LoadMetrics | None = None
    ) -> None:
        self._request = request
        self._lag = lag
        self._say = say
        self._metrics = metrics
        self._known = False
        self._printed = ""
        self._since = 0.0
        if metrics is not None:
            self._read_offsets()

    def ended(self, result: LoadResult) -> None:
        """Called after a load, or when there was nothing to load."""
        if self._metrics is None:
            return
        self._metrics.up_to_date()
        if result.load_id is not None:
            self._metrics.loaded(result.rows)
        if result.load_id is not None or result.recovered or not self._known:
            self._read_offsets()

    def outage(self, outage: Outage) -> None:
        """Called for each failed load, and at the end of an outage."""
        if outage.delay is None:
            self._say(f"Loading again, after {outage.failures} failures in {time.monotonic() - self._since:,.0f} s.")
            self._printed = ""
            return
        if self._metrics is not None:
            self._metrics.failed()
        if not self._printed:
            self._since = time.monotonic()
        kind = f"{type(outage.error).__name__}: {_reason(outage)}"
        if kind != self._printed:
            self._say(f"Cannot load, trying again: {kind}")
            self._printed = kind

    def _read_offsets(self) -> None:
        with contextlib.suppress(PykafkaError), open_destination(self._request.target) as destination:
            self._lag.set_loaded(destination.log.offsets())
            self._known = True


class LoadLag:
    """How far the loads of one group are behind their topics. Thread-safe."""

    def __init__(self, source: SourceOptions) -> None:
        """`source`: the options that the loads read with."""
        self._source = replace(
            source, num_retries=1, client=replace(source.client, default_api_timeout_ms=_PATIENCE_MS)
        )
        self._loaded: Mapping[TopicPartition, int] | None = None

    def set_loaded(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The offsets of the group from now on."""
        self._loaded = offsets

    def behind(self) -> dict[str, int]:
        """Offsets by topic that are in the log and not loaded yet. Empty when they cannot be found out.

        Offsets that the log has lost are not counted, because no load can read them.
        """
        loaded = self._loaded
        if loaded is None:
            return {}
        reader = OffsetReader(self._source)
        try:
            assigned = reader.assigned()
            earliest = reader.earliest(assigned.partitions)
            latest = reader.resolve(Position.LATEST, assigned, which="end")
        except PykafkaError:
            return {}
        finally:
            reader.close()
        total: Counter[str] = Counter()
        for tp, end in latest.items():
            total[tp.topic] += max(end - max(loaded.get(tp, 0), earliest[tp]), 0)
        return dict(total)


def _reason(outage: Outage) -> str:
    """The error without the id of the load, which is different for every attempt."""
    text = str(outage.error).partition("\n")[0]
    prefix, separator, rest = text.partition(" failed: ")
    return rest if separator and prefix.startswith("load ") else text
