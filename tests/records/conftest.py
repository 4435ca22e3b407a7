"""The codec's two implementations, each in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.codec_choice import BUILT, using


@pytest.fixture(scope="module", params=["native", "plain"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a module's tests once with the kernel and once without."""
    if request.param == "native" and not BUILT:
        pytest.skip("the kernel was not built: no C compiler, or switched off")
    with using(request.param):
        yield request.param
