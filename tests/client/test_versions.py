"""Which version of an API is spoken with a broker that serves a given range."""

from __future__ import annotations

import pytest

from broker.client.versions import HIGHEST_USED, choose_version, usable_versions
from broker.errors import UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import known_versions


def test_the_highest_version_both_sides_know_is_chosen() -> None:
    assert choose_version(ApiKey.METADATA, (0, 9)) == 9
    assert choose_version(ApiKey.METADATA, (0, 99)) == HIGHEST_USED[ApiKey.METADATA]


def test_a_request_may_ask_for_less() -> None:
    assert choose_version(ApiKey.FETCH, (4, 16), at_most=12) == 12


def test_a_broker_without_the_api_is_named_as_the_reason() -> None:
    with pytest.raises(UnsupportedVersion, match="does not serve INIT_PRODUCER_ID"):
        choose_version(ApiKey.INIT_PRODUCER_ID, None)


@pytest.mark.parametrize("served", [(0, 2), (17, 18)])
def test_ranges_that_do_not_meet_are_both_named(served: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedVersion, match=rf"serves FETCH versions {served[0]} to {served[1]}.* needs 4 to 16"):
        choose_version(ApiKey.FETCH, served)


@pytest.mark.parametrize("api", HIGHEST_USED)
def test_every_cap_is_a_version_there_is(api: ApiKey) -> None:
    lowest, highest = known_versions(api)
    assert lowest <= HIGHEST_USED[api] <= highest
    assert usable_versions(api) == (lowest, HIGHEST_USED[api])
