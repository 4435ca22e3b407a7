"""The connector's error conditions against those of Spark's own source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import spark_connector

# Spark's conditions (kafka-error-conditions.json), and why some can never be met here.
NEVER = {
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_END_OFFSET_AND_PREFETCHED": "availableNow plans from the ends it froze",
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_PREFETCHED": "the same",
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW": "the same; a task, or the next run, reports it",
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW": "the same",
    "PARTITIONS_DELETED_AND_GROUP_ID_CONFIG_PRESENT": "no group is formed, so no member can take partitions away",
    "START_OFFSET_RESET": "nothing is sought and reset; a start out of range is PARTITION_OFFSET_CHANGED",
}
MET = {
    "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
    "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
    "KAFKA_NULL_TOPIC_IN_DATA",
    "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
    "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
    "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
    "COULD_NOT_READ_OFFSET_RANGE",
    "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
    "PARTITIONS_DELETED",
    "PARTITION_OFFSET_CHANGED",
}


def test_every_condition_of_spark_is_raised_or_cannot_arise() -> None:
    """`{…}` in a name of ours stands for a word: KAFKA_{START|END}_OFFSET_…"""
    raised = [re.compile(pattern) for pattern in _strings_in_capitals()]
    assert {name for name in MET if not any(one.fullmatch(name) for one in raised)} == set()
    exact = {one.pattern for one in raised}
    assert NEVER.keys() & exact == set()


def _strings_in_capitals() -> set[str]:
    found = set()
    for file in Path(spark_connector.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "[A-Z]+" for part in node.values)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            if re.fullmatch(r"[A-Z]+_[A-Z_+\[\]-]+", text):
                found.add(text)
    return found
