"""Hypothesis for these tests: a loaded machine is no failure. And the codec's two implementations, each in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.codec_choice import BUILT, using

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="module", params=["native", "numpy"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module's tests once with the kernel and once without."""
    if request.param == "native" and not BUILT:
        pytest.skip("the kernel was not built: no C compiler, or switched off")
    with using(request.param):
        yield request.param
