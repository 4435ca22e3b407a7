"""The quotas of users and client ids on this broker: what they use, and how long they are throttled. Pure.

The router asks for every request, the handlers of Fetch and of topics for theirs. A client without a quota leaves no
trace here. Throttle times are whole milliseconds, as on the wire; `now` is a monotonic time in seconds.

Bytes and mutations are taken from a bucket of tokens, as KIP-599 does for mutations. Kafka measures bytes by a window,
in which a client uses ten seconds at once and then gets a fifth. Request time is measured as in Kafka. Idea: Kafka's
`ClientQuotaManager`, `ClientRequestQuotaManager` and `ControllerMutationQuotaManager`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeVar

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

T = TypeVar("T")

LONGEST_MS: Final = 2**31 - 1
"""What the field of the protocol can hold."""
LONGEST_ID: Final = 256
"""Of a client id that is kept as it is: clients make up ids of 32 KB."""


class QuotaType(StrEnum):
    """What throttles a client, in Kafka's names."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    REQUEST = "Request"
    CONTROLLER_MUTATION = "ControllerMutation"


class _Clients(Generic[T]):
    """What is kept of each client that has a limit for one key."""

    def __init__(self, key: str, make: Callable[[], T]) -> None:
        self._key = key
        self._limits = QuotaLimits({}, key)
        self._kept: RecentlyUsed[tuple[str, str], T] = RecentlyUsed(make)

    def __bool__(self) -> bool:
        """Whether any client may have a limit."""
        return bool(self._limits)

    def __len__(self) -> int:
        return len(self._kept)

    def update(self, quotas: Quotas) -> None:
        self._limits = QuotaLimits(quotas, self._key)
        if not self._limits:
            self._kept.clear()

    def limit(self, user: str, client_id: str) -> float | None:
        found = self._limits.find(user, client_id)
        return None if found is None else found[1]

    def find(self, user: str, client_id: str, now: float) -> tuple[T, float] | None:
        """(what is kept of the client, its limit); None if it has no limit."""
        found = self._limits.find(user, client_id)
        if found is None:
            return None
        (user, client_id), limit = found
        if len(client_id) > LONGEST_ID:
            client_id = hashlib.sha256(client_id.encode()).hexdigest()
        return self._kept.get((user, client_id), now), limit

    def expire(self, now: float) -> None:
        self._kept.expire(now)


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
        self,
        samples: int = 11,
        window_s: float = 1.0,
        controller_samples: int = 11,
        controller_window_s: float = 1.0,
        burst_s: float = 0.1,
    ) -> None:
        """`samples` of `window_s` seconds are the window of request time. A client may save up `burst_s` seconds of a
        quota of bytes, and `controller_samples` x `controller_window_s` of one of mutations."""
        self._burst_s = burst_s
        self._longest_s = window_s
        self._produce = _Clients(PRODUCER_BYTE_RATE, lambda: TokenBucket(burst_s))
        self._fetch = _Clients(CONSUMER_BYTE_RATE, lambda: TokenBucket(burst_s))
        self._request = _Clients(REQUEST_PERCENTAGE, lambda: Rate(samples, window_s))
        saved_s = controller_samples * controller_window_s
        self._mutation = _Clients(CONTROLLER_MUTATION_RATE, lambda: TokenBucket(saved_s))
        self._by_type: dict[QuotaType, _Clients[Any]] = {
            QuotaType.PRODUCE: self._produce,
            QuotaType.FETCH: self._fetch,
            QuotaType.REQUEST: self._request,
            QuotaType.CONTROLLER_MUTATION: self._mutation,
        }
        self.enabled = False
        """Whether any client may have a quota."""

    def update(self, quotas: Quotas) -> None:
        """Replace the limits. What clients have used goes on counting."""
        for clients in self._by_type.values():
            clients.update(quotas)
        self.enabled = any(self._by_type.values())

    def produced(self, user: str, client_id: str, size: int, now: float) -> int:
        """Count a Produce request of `size` bytes; returns the throttle time in ms."""
        return self._count_bytes(self._produce, user, client_id, size, now)

    @staticmethod
    def _count_bytes(clients: _Clients[TokenBucket], user: str, client_id: str, size: int, now: float) -> int:
        found = clients.find(user, client_id, now)
        if found is None:
            return 0
        bucket, limit = found
        bucket.take(size, limit, now)
        return _to_ms(bucket.throttle_s(limit, now))

    def most_to_fetch(self, user: str, client_id: str) -> float | None:
        """The bytes that one response may have, for a client to come close to its quota; None: any."""
        limit = self._fetch.limit(user, client_id)
        return None if limit is None else max(limit * self._burst_s, 1.0)

    def unpaid_ms(self, user: str, client_id: str, now: float) -> int:
        """The throttle time of a client whose earlier Fetch responses are not paid for: those of other connections, or
        of the one that it closed instead of waiting. It gets no records, and nothing is counted."""
        found = self._fetch.find(user, client_id, now)
        return 0 if found is None else _to_ms(found[0].throttle_s(found[1], now))

    def fetched(self, user: str, client_id: str, size: int, now: float) -> int:
        """Count a Fetch response of `size` bytes; returns the throttle time in ms."""
        return self._count_bytes(self._fetch, user, client_id, size, now)

    def limits_time(self, user: str, client_id: str) -> bool:
        return bool(self._request) and self._request.limit(user, client_id) is not None

    def handled(self, user: str, client_id: str, seconds: float, now: float) -> int:
        """Count the broker's work for a request; returns the throttle time in ms, at most one sample's length."""
        found = self._request.find(user, client_id, now)
        if found is None:
            return 0
        rate, limit = found
        rate.record(seconds * 100, now)
        return _to_ms(min(rate.throttle_s(limit, now), self._longest_s))

    def sent(self, user: str, client_id: str, seconds: float, now: float) -> None:
        """Count the work of sending a response, for which only the next request is throttled."""
        found = self._request.find(user, client_id, now)
        if found is not None:
            found[0].record(seconds * 100, now)

    def mutations(self, user: str, client_id: str, now: float, *, strict: bool) -> ControllerMutations:
        """For a request that creates or deletes partitions."""
        found = self._mutation.find(user, client_id, now)
        return UNLIMITED_MUTATIONS if found is None else _Limited(*found, now, strict=strict)

    def expire(self, now: float) -> None:
        """Forget the clients that have long done nothing."""
        for clients in self._by_type.values():
            clients.expire(now)

    def tracked(self) -> dict[QuotaType, int]:
        """The number of clients whose use is counted."""
        return {kind: len(clients) for kind, clients in self._by_type.items()}


def _to_ms(seconds: float) -> int:
    """Rounded as `Math.round` does."""
    return min(int(seconds * 1000 + 0.5), LONGEST_MS)
