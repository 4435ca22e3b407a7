"""Which columns may become directories, and what a path says about them."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from spark_connector.loads.layout import check_topics, parse_partition_by, values_in_path


def test_a_list_and_a_text_are_the_same() -> None:
    assert parse_partition_by("date, topic") == parse_partition_by(["date", "topic"]) == ("date", "topic")
    assert parse_partition_by(None) == parse_partition_by([]) == ()


@pytest.mark.parametrize("given", ["", "day", "date,,topic", ["value"], "date,date"])
def test_anything_else_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="partition_by"):
        parse_partition_by(given)


NAMES_OF_NUMBERS = "2024 007 -5 1.5 .5 5. 1e5 2d 3F NaN Infinity 0x1p3 2024-01-31 -2024-01-31".split()
NAMES_OF_TEXT = "flights t7 7t 2024-q1 1_000 1.2.3 v1.5 nan1 2024-01-31-late e5 - .. -_- 0x1f true null".split()


@pytest.mark.parametrize("topic", [*NAMES_OF_NUMBERS, "__HIVE_DEFAULT_PARTITION__"])
def test_a_topic_that_spark_would_not_read_back_as_text_is_no_directory(topic: str) -> None:
    with pytest.raises(ConfigError, match=f"topic '{topic}' cannot be a directory of files"):
        check_topics(["date", "topic"], ["flights", topic])
    check_topics(["date"], [topic])


def test_a_topic_whose_directory_spark_passes_over_is_refused() -> None:
    with pytest.raises(ConfigError, match="names that end in ._COPYING_"):
        check_topics(["topic"], ["a._COPYING_"])


def test_any_other_topic_is_a_directory() -> None:
    check_topics(["topic"], NAMES_OF_TEXT)


def test_a_path_tells_its_columns() -> None:
    assert values_in_path("date=2026-11-21/topic=a%3Db/part-0") == {"date": "2026-11-21", "topic": "a=b"}
    assert values_in_path("hour=__HIVE_DEFAULT_PARTITION__/part=0") == {"hour": None}
    assert values_in_path("part-0") == {}
