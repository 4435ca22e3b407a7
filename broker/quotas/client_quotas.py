"""The quotas of users and client ids on this broker: what they use, and how long they are throttled. Pure.

The router asks for every request, the handlers of Fetch and of topics for theirs. A client without a quota leaves no
trace here. Throttle times are whole milliseconds, as on the wire; `now` is a monotonic time in seconds. Idea: Kafka's
`ClientQuotaManager`, `ClientRequestQuotaManager` and `ControllerMutationQuotaManager`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from broker.errors import BrokerError, ErrorCode
from broker.quotas.quota_entity import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaLimits,
    Quotas,
)
from broker.quotas.rate import Rate, TokenBucket
from broker.quotas.recently_used import RecentlyUsed

__all__ = ["UNLIMITED_MUTATIONS", "ClientQuotas", "ControllerMutations", "QuotaType"]

LONGEST_MS: Final = 2**31 - 1
"""What the field of the protocol can hold."""


class QuotaType(StrEnum):
    """What throttles a client, in Kafka's names."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    REQUEST = "Request"
    CONTROLLER_MUTATION = "ControllerMutation"


class _RateQuota:
    """The rates of all clients that have a limit for one key."""

    def __init__(self, key: str, samples: int, window_s: float, longest_s: float = LONGEST_MS / 1000) -> None:
        self._key = key
        self._longest_s = longest_s
        self._whole_samples_s = max(samples - 1, 1) * window_s
        self.limits = QuotaLimits({}, key)
        self.rates: RecentlyUsed[tuple[str, str], Rate] = RecentlyUsed(lambda: Rate(samples, window_s))

    def update(self, quotas: Quotas) -> None:
        self.limits = QuotaLimits(quotas, self._key)
        if not self.limits:
            self.rates.clear()

    def record(self, user: str, client_id: str, value: float, now: float) -> int:
        """Count `value` and return the throttle time in ms."""
        found = self.limits.find(user, client_id)
        if found is None:
            return 0
        rate = self.rates.get(found[0], now)
        rate.record(value, now)
        return _to_ms(min(rate.throttle_s(found[1], now), self._longest_s))

    def add(self, user: str, client_id: str, value: float, now: float) -> None:
        """Count `value` and throttle nobody, or take back what was recorded."""
        found = self.limits.find(user, client_id)
        if found is not None:
            self.rates.get(found[0], now).record(value, now)

    def used(self, user: str, client_id: str, now: float) -> float:
        found = self.limits.find(user, client_id)
        return 0.0 if found is None else self.rates.get(found[0], now).total(now)

    def most_in_window(self, user: str, client_id: str) -> float | None:
        """The largest value that does not throttle a client that has used nothing before; None: any."""
        found = self.limits.find(user, client_id)
        return None if found is None else found[1] * self._whole_samples_s


class ControllerMutations(Protocol):
    """The partitions that one request creates or deletes."""

    def record(self, partitions: int) -> None:
        """Count them. Raises BrokerError `throttling_quota_exceeded` if the quota forbids them."""

    def throttle_ms(self, now: float) -> int:
        """How long the client is throttled for the request."""


class _Unlimited:
    def record(self, partitions: int) -> None:
        pass

    def throttle_ms(self, now: float) -> int:
        return 0


class _Limited:
    """A request's use of its client's bucket. `strict`: refuse mutations while it is overdrawn (KIP-599)."""

    def __init__(self, bucket: TokenBucket, limit: float, now: float, *, strict: bool) -> None:
        self._bucket = bucket
        self._limit = limit
        self._now = now
        self._strict = strict
        self._throttle_s = 0.0

    def record(self, partitions: int) -> None:
        overdrawn_s = self._bucket.throttle_s(self._limit, self._now)
        if self._strict and overdrawn_s:
            self._throttle_s = overdrawn_s
            raise BrokerError(ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded.")
        self._bucket.take(partitions, self._limit, self._now)
        if not self._strict:
            self._throttle_s = self._bucket.throttle_s(self._limit, self._now)

    def throttle_ms(self, now: float) -> int:
        return _to_ms(max(0.0, self._throttle_s - (now - self._now)))


UNLIMITED_MUTATIONS: Final[ControllerMutations] = _Unlimited()


class ClientQuotas:
    """All quotas of users and client ids. Belongs to the event loop."""

    def __init__(
        self, samples: int = 11, window_s: float = 1.0, controller_samples: int = 11, controller_window_s: float = 1.0
    ) -> None:
        self._produce = _RateQuota(PRODUCER_BYTE_RATE, samples, window_s)
        self._fetch = _RateQuota(CONSUMER_BYTE_RATE, samples, window_s)
        self._request = _RateQuota(REQUEST_PERCENTAGE, samples, window_s, longest_s=window_s)
        burst_s = controller_samples * controller_window_s
        self._mutation_limits = QuotaLimits({}, CONTROLLER_MUTATION_RATE)
        self._buckets: RecentlyUsed[tuple[str, str], TokenBucket] = RecentlyUsed(lambda: TokenBucket(burst_s))
        self.enabled = False
        """Whether any client may have a quota."""

    def update(self, quotas: Quotas) -> None:
        """Replace the limits. Rates go on."""
        for one in (self._produce, self._fetch, self._request):
            one.update(quotas)
        self._mutation_limits = QuotaLimits(quotas, CONTROLLER_MUTATION_RATE)
        if not self._mutation_limits:
            self._buckets.clear()
        limits = (self._produce.limits, self._fetch.limits, self._request.limits, self._mutation_limits)
        self.enabled = any(limits)

    def produced(self, user: str, client_id: str, size: int, now: float) -> int:
        """Count a Produce request of `size` bytes; returns the throttle time in ms."""
        return self._produce.record(user, client_id, size, now)

    def most_to_fetch(self, user: str, client_id: str) -> float | None:
        """The bytes of the largest response that is not throttled for sure; None: any."""
        return self._fetch.most_in_window(user, client_id)

    def fetched(self, user: str, client_id: str, size: int, now: float) -> tuple[int, bool]:
        """Count a Fetch response of `size` bytes: (throttle time in ms, whether it may be sent all the same).

        A client that has fetched nothing lately may get its first batch, however large: else it would never get it.
        """
        is_first = self._fetch.used(user, client_id, now) <= 0
        return self._fetch.record(user, client_id, size, now), is_first

    def unfetched(self, user: str, client_id: str, size: int, now: float) -> None:
        """Take back a response that was not sent."""
        self._fetch.add(user, client_id, -size, now)

    def limits_time(self, user: str, client_id: str) -> bool:
        return bool(self._request.limits) and self._request.limits.find(user, client_id) is not None

    def handled(self, user: str, client_id: str, seconds: float, now: float) -> int:
        """Count the broker's work for a request; returns the throttle time in ms, at most one sample's length."""
        return self._request.record(user, client_id, seconds * 100, now)

    def sent(self, user: str, client_id: str, seconds: float, now: float) -> None:
        """Count the work of sending a response, for which only the next request is throttled."""
        self._request.add(user, client_id, seconds * 100, now)

    def mutations(self, user: str, client_id: str, now: float, *, strict: bool) -> ControllerMutations:
        """For a request that creates or deletes partitions."""
        found = self._mutation_limits.find(user, client_id)
        if found is None:
            return UNLIMITED_MUTATIONS
        return _Limited(self._buckets.get(found[0], now), found[1], now, strict=strict)

    def expire(self, now: float) -> None:
        """Forget the clients that have long done nothing."""
        for table in (self._produce.rates, self._fetch.rates, self._request.rates, self._buckets):
            table.expire(now)

    def tracked(self) -> dict[QuotaType, int]:
        """The number of clients whose use is counted."""
        return {
            QuotaType.PRODUCE: len(self._produce.rates),
            QuotaType.FETCH: len(self._fetch.rates),
            QuotaType.REQUEST: len(self._request.rates),
            QuotaType.CONTROLLER_MUTATION: len(self._buckets),
        }


def _to_ms(seconds: float) -> int:
    """Rounded as `Math.round` does."""
    return min(int(seconds * 1000 + 0.5), LONGEST_MS)
