"""Which columns may become directories, and what a path says about them."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from spark_connector.loads.layout import parse_partition_by, values_in_path


def test_a_list_and_a_text_are_the_same() -> None:
    assert parse_partition_by("date, topic") == parse_partition_by(["date", "topic"]) == ("date", "topic")
    assert parse_partition_by(None) == parse_partition_by([]) == ()


@pytest.mark.parametrize("given", ["", "day", "date,,topic", ["value"], "date,date"])
def test_anything_else_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="partition_by"):
        parse_partition_by(given)


def test_a_path_tells_its_columns() -> None:
    assert values_in_path("date=2026-11-21/topic=a%3Db/part-0") == {"date": "2026-11-21", "topic": "a=b"}
    assert values_in_path("hour=__HIVE_DEFAULT_PARTITION__/part=0") == {"hour": None}
    assert values_in_path("part-0") == {}
