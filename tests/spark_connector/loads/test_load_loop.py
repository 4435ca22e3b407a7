"""The service's clockwork: when it loads, what it waits out, what ends it. No Spark, no broker, no waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed, PykafkaError
from spark_connector.errors import data_loss
from spark_connector.loads.load_loop import LoadLoop, Outage, Phase, parse_interval
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRange, LoadRecord, LoadResult
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreUnavailable


def result_of(load_id: str | None, ranges: tuple[LoadRange, ...] = (), recovered: tuple[str, ...] = ()) -> LoadResult:
    return LoadResult("g", "file:///to", "parquet", load_id, None, 0, ranges, recovered)


NOTHING = result_of(None)


def loaded(name: str, size: int = 10) -> LoadResult:
    return result_of(name, (LoadRange("t", 0, 0, size, None, size),))


class FakeStop(threading.Event):
    """Time passes only here; set after `limit` waits, so that no test runs for ever."""

    def __init__(self, limit: int = 50) -> None:
        super().__init__()
        self.now = 0.0
        self.waits: list[float] = []
        self._limit = limit

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        if len(self.waits) >= self._limit:
            self.set()
        return self.is_set()


class Script:
    """Loads that end as told, one after the other; then nothing is new."""

    def __init__(
        self, stop: FakeStop, outcomes: Sequence[LoadResult | PykafkaError | Callable[[], LoadResult]]
    ) -> None:
        self._stop = stop
        self._outcomes: Iterator[LoadResult | PykafkaError | Callable[[], LoadResult]] = iter(outcomes)
        self.runs = 0
        self.took = 0.0

    def __call__(self, on_phase: Phase) -> LoadResult:
        self.runs += 1
        self._stop.now += self.took
        outcome = next(self._outcomes, NOTHING)
        if isinstance(outcome, PykafkaError):
            raise outcome
        if isinstance(outcome, LoadResult):
            if outcome.load_id is not None:
                on_phase("write", None)
            return outcome
        return outcome()


@pytest.fixture
def stop() -> FakeStop:
    return FakeStop()


def test_loads_follow_at_the_interval_from_start_to_start(stop: FakeStop) -> None:
    script = Script(stop, [loaded("a"), NOTHING, loaded("b")])
    script.took = 4.0
    watch = LoadLoop(script, interval=10.0, max_loads=2, stop=stop, clock=lambda: stop.now)
    assert [result.load_id for result in watch] == ["a", "b"]
    assert stop.waits == [6.0, 6.0]


def test_a_load_longer_than_the_interval_is_followed_at_once(stop: FakeStop) -> None:
    script = Script(stop, [loaded("a"), loaded("b")])
    script.took = 40.0
    assert len(list(LoadLoop(script, interval=10.0, max_loads=2, stop=stop, clock=lambda: stop.now))) == 2
    assert stop.waits == [0.0]


def test_a_load_that_took_its_limit_is_followed_at_once(stop: FakeStop) -> None:
    script = Script(stop, [loaded("a", 100), loaded("b", 100), loaded("c", 99), loaded("d")])
    watch = LoadLoop(script, interval=10.0, max_records=100, max_loads=4, stop=stop, clock=lambda: stop.now)
    assert len(list(watch)) == 4
    assert stop.waits == [10.0]


@pytest.mark.parametrize(
    "error",
    [ConnectionFailed("gone"), OffsetStoreUnavailable("no ZooKeeper"), LoadInterrupted("no NameNode")],
    ids=lambda error: type(error).__name__,
)
def test_an_outage_is_waited_out_longer_each_time_and_told(stop: FakeStop, error: PykafkaError) -> None:
    outages: list[Outage] = []
    script = Script(stop, [*[error] * 7, loaded("a"), error, loaded("b")])
    watch = LoadLoop(script, max_loads=2, stop=stop, on_outage=outages.append, clock=lambda: stop.now)
    assert [result.load_id for result in watch] == ["a", "b"]
    assert [outage.delay for outage in outages] == [1, 2, 4, 8, 16, 30, 30, None, 1, None]
    assert [outage.failures for outage in outages] == [1, 2, 3, 4, 5, 6, 7, 7, 1, 1]
    assert {outage.error for outage in outages} == {error}


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("wrong"),
        data_loss("COULD_NOT_READ_OFFSET_RANGE", "gone"),
        OffsetConflict("another"),
        LoadError("makes no sense"),
        AuthenticationFailed("who are you"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_heal_ends_the_service(stop: FakeStop, error: PykafkaError) -> None:
    script = Script(stop, [loaded("a"), error])
    with pytest.raises(type(error)):
        list(LoadLoop(script, stop=stop, clock=lambda: stop.now))
    assert script.runs == 2


def test_an_outage_for_ever_ends_when_told_to_stop() -> None:
    stop = FakeStop(limit=2000)
    script = Script(stop, [ConnectionFailed("gone")] * 3000)
    assert list(LoadLoop(script, stop=stop, clock=lambda: stop.now)) == []
    assert script.runs == 2000


def test_a_load_that_has_not_begun_to_write_is_not_begun(stop: FakeStop) -> None:
    written: list[str] = []

    def run(on_phase: Phase) -> LoadResult:
        on_phase("plan", None)
        stop.set()
        on_phase("write", None)
        written.append("data")
        return loaded("a")

    assert list(LoadLoop(run, stop=stop)) == []
    assert written == []


def test_a_load_that_commits_is_finished_and_one_that_is_broken_off_is_no_error(stop: FakeStop) -> None:
    def commit(on_phase: Phase) -> LoadResult:
        on_phase("write", None)
        on_phase("commit", None)
        stop.set()
        return loaded("a")

    assert [result.load_id for result in LoadLoop(commit, stop=stop)] == ["a"]

    def break_off(on_phase: Phase) -> LoadResult:
        on_phase("write", None)
        broken.set()
        raise LoadError("cancelled")

    broken = FakeStop()
    assert list(LoadLoop(break_off, stop=broken)) == []


def test_a_load_that_was_cut_short_is_told_when_it_is_finished_and_not_counted(stop: FakeStop) -> None:
    outage = OffsetStoreUnavailable("the answer to the commit was lost")
    script = Script(stop, [outage, result_of(None, recovered=("a",)), loaded("b")])
    results = list(LoadLoop(script, max_loads=1, stop=stop, clock=lambda: stop.now))
    assert [(result.load_id, result.recovered) for result in results] == [(None, ("a",)), ("b", ())]


def test_phases_are_passed_on(stop: FakeStop) -> None:
    phases: list[str] = []

    def note(phase: str, record: LoadRecord | None) -> None:
        phases.append(phase)

    list(LoadLoop(Script(stop, [NOTHING, loaded("a")]), max_loads=1, stop=stop, on_phase=note))
    assert phases == ["wait", "write"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600), ("500ms", 0.5), ("2.5", 2.5), (" 1d ", 86400)]
)
def test_an_interval_is_read(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "ten", "nan", "inf", "1e400s", "5 parsecs"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="interval"):
        parse_interval(text)


def test_wrong_numbers_are_refused(stop: FakeStop) -> None:
    with pytest.raises(ConfigError, match="interval must be more than 0"):
        LoadLoop(Script(stop, []), interval=0, stop=stop)
    with pytest.raises(ConfigError, match="max_loads must be at least 1"):
        LoadLoop(Script(stop, []), max_loads=0, stop=stop)
