"""What random histories of a group have in common: time passes, and appends are slow or fail."""

from __future__ import annotations

from typing import Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from broker.errors import ErrorCode
from tests.support.consumer_groups import ConsumerGroupDriver
from tests.support.mixed_groups import MixedGroupDriver

Driver = TypeVar("Driver", ConsumerGroupDriver, MixedGroupDriver)


class GroupHistory(RuleBasedStateMachine, Generic[Driver]):
    driver: Driver

    @rule(ms=st.sampled_from([500, 3_000, 9_000]))
    def wait(self, ms: int) -> None:
        self.driver.wait(ms)

    @rule()
    def hold(self) -> None:
        self.driver.hold = True

    @rule(error=st.sampled_from([ErrorCode.none, ErrorCode.none, ErrorCode.coordinator_not_available]))
    def release(self, error: ErrorCode) -> None:
        self.driver.hold = False
        self.driver.release(error)
