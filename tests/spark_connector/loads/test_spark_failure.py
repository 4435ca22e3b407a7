"""One line out of Spark's page: texts as Spark 4.3 gives them, shortened."""

from __future__ import annotations

import re

import pytest

from spark_connector.loads.spark_failure import summary
from spark_connector.outages import heals_by_waiting

OF_THE_WRITER = """An error occurred while calling o145.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:1)
Caused by: org.apache.hadoop.fs.FSError: {cause}
\tat org.apache.hadoop.fs.RawLocalFileSystem$LocalFSFileOutputStream.write(RawLocalFileSystem.java:549)
Caused by: {cause}
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 41 more
"""
OF_A_TASK = """An error occurred while calling o145.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/site-packages/spark_connector/read/batch_reader.py", line 60, in read
spark_connector.errors.DataLoss: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
\t... 1 more
"""


@pytest.mark.parametrize(
    ("cause", "said", "heals"),
    [
        ("java.io.IOException: No space left on device", "IOException: No space left on device", True),
        ("java.net.ConnectException: Connection refused", "ConnectException: Connection refused", True),
        ("java.nio.file.AccessDeniedException: /out/x", "AccessDeniedException: /out/x", False),
        (
            "org.apache.hadoop.security.AccessControlException: Permission denied: user=nobody, access=WRITE",
            "AccessControlException: Permission denied: user=nobody, access=WRITE",
            False,
        ),
        (
            "java.io.FileNotFoundException: /out/x (Permission denied)",
            "FileNotFoundException: /out/x (Permission denied)",
            False,
        ),
    ],
)
def test_what_sparks_writer_could_not_do_is_its_last_cause(cause: str, said: str, heals: bool) -> None:
    found = summary(OF_THE_WRITER.replace("{cause}", cause))
    assert found == said
    assert heals_by_waiting(found) is heals


GONE = "spark_connector.errors.DataLoss: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone"


@pytest.mark.parametrize(
    "text",
    [
        OF_A_TASK,
        OF_A_TASK.replace("Traceback (most recent call last):", "").replace("  File ", "  An exception was thrown "),
        f"An exception was thrown from the Python worker:\n{GONE}",
    ],
    ids=["with its traceback", "without", "as Spark 4.3 says it"],
)
def test_what_our_task_said_is_told_in_its_words(text: str) -> None:
    found = summary(text)
    assert found == "DataLoss: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone"
    assert not heals_by_waiting(found)


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        ("broker.errors.ConnectionFailed: no broker answers at 127.0.0.1:1", True),
        ("broker.errors.BrokerError: LEADER_NOT_AVAILABLE (5): the leader of t-0", True),
        ("spark_connector.errors.DataLoss: [KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] gone", False),
        ("broker.client.cluster_metadata.UnknownTopic: unknown_topic_or_partition: no topic 't'", False),
        ("broker.errors.ConfigError: Option 'assign'", False),
    ],
)
def test_what_our_reader_ran_into_when_spark_planned_it_says_whether_it_heals(error: str, heals: bool) -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read in Python: Traceback (most recent call "
        f'last):\n  File "x.py", line 3, in partitions\n{error}\n SQLSTATE: 38000\n\nJVM stacktrace:\n'
    )
    assert heals_by_waiting(summary(text)) is heals
    short = f"[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read in Python: {error}\n SQLSTATE: 38000"
    assert heals_by_waiting(summary(short)) is heals
    assert summary(short) == re.sub(r"^[a-z_.]+\.", "", error)


def test_a_python_of_sparks_without_pykafka_is_told_with_the_way_out() -> None:
    text = (
        "An error occurred while calling o39.load.\n: org.apache.spark.SparkClassNotFoundException: "
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: pykafka. Make sure the provider name is correct\n"
        "\tat org.apache.spark.sql.classic.DataFrameReader.load(DataFrameReader.scala:93)\n"
        "Caused by: java.lang.ClassNotFoundException: pykafka.DefaultSource\n"
    )
    assert "set PYSPARK_PYTHON to the one that has it" in summary(text)
    assert not heals_by_waiting(summary(text))


def test_a_cause_that_says_nothing_is_passed_over() -> None:
    text = OF_THE_WRITER.replace(
        "{cause}", "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    )
    assert summary(text + "Caused by: java.io.EOFException\n") == (
        "SparkException: Python worker exited unexpectedly (crashed)"
    )


def test_a_text_without_causes_is_its_first_line() -> None:
    assert summary("\n[CODEC_NOT_AVAILABLE] no such codec\nand more") == "[CODEC_NOT_AVAILABLE] no such codec"


def test_an_error_of_java_without_causes_is_told_by_itself() -> None:
    text = "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job 3 cancelled\n\tat x.y(Z)"
    assert summary(text) == "SparkException: Job 3 cancelled"
