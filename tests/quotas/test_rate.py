"""Rates and token buckets, against Kafka's arithmetic written down a second time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quotas.rate import Rate, TokenBucket

TICKS = 1024
EVENTS = st.lists(st.tuples(st.integers(0, 15_000), st.integers(-50, 1000)), min_size=1, max_size=60)


class KafkaRate:
    """`SampledStat` and `Rate` with a ring of samples: [begin, last event, value]. In ticks of 1/1024 s, so that floats
    are exact."""

    def __init__(self, samples: int, window: int) -> None:
        self.count, self.window = samples, window
        self.samples: list[list[int]] = []
        self.current = 0

    def record(self, value: int, now: int) -> None:
        if not self.samples:
            self.samples.append([now, now, 0])
        if now - self.samples[self.current][0] >= self.window:
            self.current = (self.current + 1) % (self.count + 1)
            if self.current >= len(self.samples):
                self.samples.append([now, now, 0])
            else:
                self.samples[self.current] = [now, now, 0]
        sample = self.samples[self.current]
        sample[1], sample[2] = now, sample[2] + value

    def measure(self, now: int) -> tuple[float, int]:
        """(rate per second, window in ticks)."""
        for sample in self.samples:
            if now - sample[1] >= self.count * self.window:
                sample[:] = [now, now, 0]
        elapsed = now - min((sample[0] for sample in self.samples), default=now)
        full = elapsed // self.window
        if full < self.count - 1:
            elapsed += (self.count - 1 - full) * self.window
        elapsed = max(elapsed, 1)
        return sum(sample[2] for sample in self.samples) / elapsed * TICKS, elapsed


@given(EVENTS, st.integers(2, 12), st.sampled_from([TICKS, 2 * TICKS]), st.integers(1, 1000))
def test_a_rate_is_kafkas(events: list[tuple[int, int]], samples: int, window: int, limit: int) -> None:
    ours, kafkas, now = Rate(samples, window / TICKS), KafkaRate(samples, window), 0
    for wait, value in events:
        now += wait
        ours.record(value, now / TICKS)
        kafkas.record(value, now)
        rate, elapsed = kafkas.measure(now)
        assert ours.per_second(now / TICKS) == pytest.approx(rate, rel=1e-3, abs=1e-3)
        throttle = (rate - limit) / limit * elapsed if rate > limit else 0
        assert ours.throttle_s(limit, now / TICKS) * TICKS == pytest.approx(throttle, rel=1e-3, abs=1)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=100))
def test_who_waits_for_each_throttle_stays_at_the_limit(sizes: list[int]) -> None:
    """With requests of up to a sample's worth. A larger one is forgotten before it is paid for, in Kafka as well."""
    rate, now, limit = Rate(11, 1.0), 0.0, 1000
    for size in sizes:
        rate.record(size, now)
        now += rate.throttle_s(limit, now)
    assert sum(sizes) <= limit * (now + 11.0) * 1.001 + 1, "what may be saved up is the window"


def test_a_burst_within_the_window_is_not_throttled() -> None:
    rate = Rate(11, 1.0)
    rate.record(1000, 5.0)
    assert rate.throttle_s(100, 5.0) == 0
    rate.record(100, 5.0)
    assert rate.throttle_s(100, 5.0) == pytest.approx(1.0)
    assert rate.throttle_s(100, 16.0) == 0, "it is forgotten"


def test_what_is_taken_back_does_not_count() -> None:
    rate = Rate(11, 1.0)
    rate.record(1000, 0.0)
    rate.record(500, 0.5)
    rate.record(-500, 0.5)
    assert rate.total(0.5) == 1000


def test_a_bucket_is_full_at_first_and_never_holds_more() -> None:
    bucket = TokenBucket(10.0)
    assert bucket.tokens(2, 100.0) == 20
    bucket.take(5, 2, 100.0)
    assert bucket.tokens(2, 101.0) == 17
    assert bucket.tokens(2, 1000.0) == 20


def test_a_bucket_is_overdrawn_and_fills_up_again() -> None:
    bucket = TokenBucket(10.0)
    bucket.take(30, 2, 0.0)
    assert (bucket.tokens(2, 0.0), bucket.throttle_s(2, 0.0)) == (-10, 5)
    assert bucket.throttle_s(2, 4.0) == 1
    assert bucket.throttle_s(2, 5.0) == 0
