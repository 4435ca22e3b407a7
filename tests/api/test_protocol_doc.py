"""docs/reference/protocol.md names every API of the protocol and says what is served."""

from __future__ import annotations

from kio.schema.index import api_key_map
from kio.static.constants import EntityType

from broker.api.table import API_TABLE
from broker.protocol.entities import entity_class
from broker.protocol.messages import known_versions
from tests.support.protocol_table import NOT_SERVED, REMARKS

PLACE = "tests/support/protocol_table.py; then run `make reference`"
SERVED = {int(api) for api, *_ in API_TABLE}


def test_every_api_is_served_or_has_a_reason_and_none_has_both() -> None:
    for key, name in api_key_map.items():
        assert key in SERVED or name in NOT_SERVED, f"{name} is not served: say why in NOT_SERVED ({PLACE})"
        assert key not in SERVED or name not in NOT_SERVED, f"{name} is served: take it out of NOT_SERVED ({PLACE})"
    assert NOT_SERVED.keys() | REMARKS.keys() <= set(api_key_map.values())


def test_what_is_served_is_of_the_protocol() -> None:
    for api, low, high, *_ in API_TABLE:
        assert 0 <= low <= high <= known_versions(api)[1], api
        for version in range(low, high + 1):
            for kind in (EntityType.request, EntityType.response):
                assert entity_class(api, version, kind).__version__ == version
        assert api.name.lower() == api_key_map[api]
