"""The one list of failures that heal by waiting: a failure of each kind, and many that are of none."""

from __future__ import annotations

import errno
import os
import re
import urllib.error
from pathlib import Path

import deltalake
import pytest
import sqlalchemy
from deltalake.exceptions import CommitFailedError, DeltaError

from broker.client.cluster_metadata import UnknownTopic
from broker.errors import (
    AuthenticationFailed,
    BrokerError,
    ConfigError,
    ConnectionFailed,
    CorruptBatch,
    ErrorCode,
    RequestTimedOut,
)
from spark_connector.errors import ConnectorError, data_loss
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_format import RegistrySettings
from spark_connector.loads.record import LoadError, LoadInterrupted
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreError, OffsetStoreUnavailable
from spark_connector.outages import OUTAGES, heals_by_waiting, outage_of, summary
from tests.support.postgres import Postgres
from tests.support.requirements import Unavailable, give_up

OURS, CLUSTER, REGISTRY, SYSTEM, CONNECTION, HDFS, SPARK, CONNECT, DATABASE, STORE, DELTA = (
    one.what for one in OUTAGES
)

DOWN = "Kernel error -> Generic S3 error\n \x1b[31m↳\x1b[0m Error performing GET http://h:1/b, after 10 retries - {}\n"
"""What deltalake says of an object store."""

HEALING = [
    (OURS, "ConnectionFailed: no broker answers at 127.0.0.1:1"),
    (OURS, "RequestTimedOut: no answer within 60 s"),
    (OURS, "OffsetStoreUnavailable: no ZooKeeper answers at 127.0.0.1:1 within 10 s"),
    (OURS, "LoadInterrupted: nothing answers at nn:8020, the NameNode"),
    (CLUSTER, "BrokerError: LEADER_NOT_AVAILABLE (5): the leader of t-0"),
    (CLUSTER, "BrokerError: NOT_ENOUGH_REPLICAS (19): producing to bad-0"),
    (CLUSTER, "BrokerError: COORDINATOR_LOAD_IN_PROGRESS (14)"),
    (REGISTRY, "ConnectorError: [SCHEMA_REGISTRY_UNAVAILABLE] Schema registry http://r does not answer /schemas/ids/1"),
    (SYSTEM, OSError(errno.ENOSPC, "No space left on device")),
    (SYSTEM, OSError(errno.EDQUOT, "Disk quota exceeded")),
    (SYSTEM, OSError(errno.ESTALE, "Stale file handle")),
    (SYSTEM, OSError(errno.EMFILE, "Too many open files")),
    (SYSTEM, "OSError: [Errno 28] No space left on device"),
    (SYSTEM, "IOException: No space left on device"),
    (SYSTEM, "FileNotFoundException: /out/x (Too many open files)"),
    (SYSTEM, "FileSystemException: /out/x: Input/output error"),
    (SYSTEM, DeltaError("Generic LocalFileSystem error: No space left on device (os error 28)")),
    (SYSTEM, DeltaError("Generic HadoopFileSystem error: IO error occurred: Connection refused (os error 111)")),
    (SYSTEM, sqlalchemy.exc.OperationalError("INSERT", {}, Exception("No space left on device"))),
    (SYSTEM, urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))),
    (SYSTEM, "ConnectException: Call From here to nn:8020 failed on connection exception: Connection refused"),
    (CONNECTION, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")),
    (CONNECTION, TimeoutError("timed out")),
    (CONNECTION, BrokenPipeError(errno.EPIPE, "Broken pipe")),
    (CONNECTION, "SocketTimeoutException: Read timed out"),
    (CONNECTION, "NoRouteToHostException: no way"),
    (CONNECTION, "UnknownHostException: nn: Temporary failure in name resolution"),
    (HDFS, OSError("HDFS: Name node is in safe mode")),
    (HDFS, "SafeModeException: Cannot create directory /x. Name node is in safe mode."),
    (HDFS, "StandbyException: Operation category WRITE is not supported in state standby"),
    (HDFS, "DSQuotaExceededException: The DiskSpace quota of /x is exceeded"),
    (HDFS, "RemoteException: File /x could only be written to 0 of the 1 minReplication nodes"),
    (HDFS, OSError("HDFS: Timed out connecting to DataNode 10.0.0.1:9866")),
    (HDFS, OSError("HDFS: All DataNodes failed: [10.0.0.1:9866]")),
    (HDFS, "OSError: HDFS: blocks not found for /out/x"),
    (SPARK, "SparkException: Python worker exited unexpectedly (crashed)"),
    (SPARK, "SparkException: Job aborted due to stage failure: Lost task 0.3: ExecutorLostFailure (executor 1 exited)"),
    (SPARK, "SparkException: Job 3 cancelled as part of cancellation of all jobs"),
    (SPARK, "[SPARK_JOB_CANCELLED] Job 3 cancelled by the user SQLSTATE: XXKDA"),
    (CONNECT, "<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE"),
    (DATABASE, "OperationalError: (psycopg.errors.AdminShutdown) terminating connection due to administrator command"),
    (DATABASE, "AdminShutdown: terminating connection due to administrator command"),
    (DATABASE, "OperationalError: (psycopg.OperationalError) the connection is lost"),
    (
        DATABASE,
        "OperationalError: (psycopg.OperationalError) failed: FATAL:  the database system is starting up",
    ),
    (DATABASE, "OperationalError: (sqlite3.OperationalError) database is locked"),
    (DATABASE, "OperationalError: (psycopg.OperationalError) SSL SYSCALL error: EOF detected"),
    (DATABASE, "OperationalError: (psycopg.OperationalError) could not receive data from server: Software caused"),
    (DATABASE, "OperationalError: (psycopg.OperationalError) FATAL:  query_wait_timeout"),
    (DATABASE, "OperationalError: (pymysql.err.OperationalError) (1053, 'Server shutdown in progress')"),
    (DATABASE, "OperationalError: (pymysql.err.OperationalError) (2006, 'MySQL server has gone away')"),
    (STORE, OSError(DOWN.format("error sending request"))),
    (STORE, OSError(DOWN.format("Server returned non-2xx status code\n \x1b[31m↳\x1b[0m 503 Service Unavailable"))),
    (CONNECTION, ConnectionError("EndpointConnectionError: Could not connect to the endpoint URL")),
    (DELTA, CommitFailedError("Transaction failed: version 3 already exists")),
]

LASTING = [
    OSError(DOWN.format("Server returned non-2xx status code\n \x1b[31m↳\x1b[0m 403 Forbidden")),
    "OverflowError: date value out of range",
    "ValueError: year 10000 is out of range",
    "ArrowInvalid: Casting from timestamp[us] to timestamp[ns] would result in out of bounds timestamp",
    "OSError: Couldn't deserialize thrift: TProtocolException: Invalid data",
    "ModuleNotFoundError: No module named 'kio'",
    "ImportError: libxyz.so: cannot open shared object file",
    "MemoryError: ",
    "OutOfMemoryError: Java heap space",
    "RuntimeError: anything",
    "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0",
    "AccessControlException: Permission denied: user=nobody, access=WRITE",
    "AccessDeniedException: /out/x",
    "FileNotFoundException: /out/x (Permission denied)",
    "FileNotFoundException: /out/x (No such file or directory)",
    "UnknownHostException: nn: Name or service not known",
    "ConfigError: Option 'assign': no space left on device",
    "ConnectorError: [SCHEMA_REGISTRY_UNAVAILABLE] Schema registry http://r does not answer /x: HTTP 401 no",
    "ConnectorError: [PYKAFKA_TIMESTAMP_OUT_OF_RANGE] The record at offset 3",
    "DataLoss: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone",
    "CorruptBatch: CORRUPT_MESSAGE (2): t-0 at or after offset 3",
    "UnknownTopic: UNKNOWN_TOPIC_OR_PARTITION (3): no topic 't'",
    "BrokerError: TOPIC_AUTHORIZATION_FAILED (29): t",
    "BrokerError: RECORD_LIST_TOO_LARGE (18): t",
    "AuthenticationFailed: SASL_AUTHENTICATION_FAILED (58): wrong password",
    "LoadError: load g-000001-0011aabb: Spark read 3 rows, but its output holds 2",
    "[UNRESOLVED_COLUMN] no such column",
    "[SOME] error of a job",
    "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
    "SparkException: [TASK_WRITE_FAILED] Task failed while writing rows",
    "SparkUpgradeException: [INCONSISTENT_BEHAVIOR_CROSS_VERSION.WRITE_ANCIENT_DATETIME] You may",
    "CodecNotAvailable: zstd",
    "OperationalError: (psycopg.OperationalError) connection failed: FATAL:  password authentication failed for user",
    'OperationalError: (psycopg.OperationalError) connection failed: FATAL:  database "nope" does not exist',
    "OperationalError: (sqlite3.OperationalError) no such table: rows",
    "OperationalError: (sqlite3.OperationalError) attempt to write a readonly database",
    "OperationalError: (psycopg.errors.ProgramLimitExceeded) row is too big",
    "DataError: (psycopg.errors.NumericValueOutOfRange) integer out of range",
    "ProgrammingError: (psycopg.errors.InsufficientPrivilege) permission denied for table rows",
    "InternalError: (psycopg.errors.ReadOnlySqlTransaction) cannot execute INSERT in a read-only transaction",
    "DeltaError: Invalid JSON in log record",
    "SchemaMismatchError: Schema error: no such field",
    PermissionError(errno.EACCES, "Permission denied"),
    PermissionError("HDFS: AccessControlException: user=nobody"),
    NotADirectoryError(errno.ENOTDIR, "Not a directory"),
    FileNotFoundError(errno.ENOENT, "No such file or directory"),
    OSError(errno.EROFS, "Read-only file system"),
    OSError(errno.ENAMETOOLONG, "File name too long"),
    OverflowError("date value out of range"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
]


@pytest.mark.parametrize(("what", "failure"), HEALING, ids=lambda one: str(one)[:60])
def test_a_failure_of_each_kind_heals(what: str, failure: BaseException | str) -> None:
    found = outage_of(failure)
    assert found is not None
    assert found.what == what
    assert heals_by_waiting(failure)


def test_every_kind_of_the_list_has_a_failure_here() -> None:
    assert {what for what, _ in HEALING} == {one.what for one in OUTAGES}


@pytest.mark.parametrize("failure", LASTING, ids=lambda one: str(one)[:60])
def test_any_other_failure_does_not_heal(failure: BaseException | str) -> None:
    assert outage_of(failure) is None
    assert not heals_by_waiting(failure)


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (ConnectionFailed("x"), True),
        (RequestTimedOut("x"), True),
        (OffsetStoreUnavailable("x"), True),
        (LoadInterrupted("x"), True),
        (ConnectorError("SCHEMA_REGISTRY_UNAVAILABLE", "HTTP 503"), True),
        (ConnectorError("SCHEMA_REGISTRY_UNAVAILABLE", "HTTP 429"), True),
        (ConnectorError("SCHEMA_REGISTRY_UNAVAILABLE", "HTTP 403"), False),
        (ConnectorError("SCHEMA_REGISTRY_UNAVAILABLE", "URLError CERTIFICATE_VERIFY_FAILED"), False),
        *((BrokerError(code, "x"), code.retriable) for code in ErrorCode if code is not ErrorCode.none),
        (UnknownTopic("x"), False),
        (ConfigError("x"), False),
        (AuthenticationFailed("x"), False),
        (LoadError("x"), False),
        (OffsetConflict("x"), False),
        (OffsetStoreError("x"), False),
        (data_loss("PARTITION_OFFSET_CHANGED", "x"), False),
    ],
    ids=lambda one: str(one)[:40],
)
def test_our_own_errors_say_it_here_and_in_a_task(error: Exception, heals: bool) -> None:
    assert heals_by_waiting(error) is heals
    of_a_task = f"Traceback (most recent call last):\n  File x\nsome.module.{type(error).__name__}: {error}\n"
    assert heals_by_waiting(summary(of_a_task)) is heals


def test_a_damaged_batch_stays_damaged() -> None:
    """Although Kafka calls CORRUPT_MESSAGE retriable: a consumer may ask another replica, a load has asked already."""
    assert not heals_by_waiting(f"CorruptBatch: {CorruptBatch('t-0 at or after offset 3')}")


def test_a_real_database_that_is_away_heals_and_a_wrong_name_does_not() -> None:
    try:
        server = Postgres()
        url = sqlalchemy.engine.make_url(server.start())
    except Unavailable as error:
        give_up(str(error))

    def failure(of: sqlalchemy.URL, query: str = "SELECT 1") -> Exception:
        engine = sqlalchemy.create_engine(of, poolclass=sqlalchemy.NullPool)
        # Left open, it would be closed, with an error to log, when Python collects garbage within another test.
        with pytest.raises(sqlalchemy.exc.DBAPIError) as caught, engine.connect() as connection:
            connection.execute(sqlalchemy.text(query))
        return caught.value

    assert not heals_by_waiting(failure(url.set(database="nope")))
    assert not heals_by_waiting(failure(url.set(username="nobody")))
    assert not heals_by_waiting(failure(url, "SELECT * FROM nope"))
    assert not heals_by_waiting(failure(url, "SELECT 1/0"))
    assert heals_by_waiting(failure(url, "SELECT pg_terminate_backend(pg_backend_pid())"))
    server.stop()
    assert heals_by_waiting(failure(url))


def test_a_real_delta_table_that_is_damaged_does_not_heal(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text("no JSON\n")
    with pytest.raises(Exception, match=r".") as caught:
        deltalake.DeltaTable(str(tmp_path))
    assert not heals_by_waiting(caught.value)


def test_a_real_registry_that_is_away_heals() -> None:
    with pytest.raises(ConnectorError) as caught:
        SchemaRegistry(RegistrySettings(urls=("http://127.0.0.1:1",), timeout_ms=500)).schema(1)
    assert heals_by_waiting(caught.value)


def test_texts_are_those_of_the_operating_system() -> None:
    """Java says no number."""
    assert os.strerror(errno.ENOSPC) == "No space left on device"


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
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read in Python: Traceback (most recent "
        f'last):\n  File "x.py", line 3, in partitions\n{error}\n SQLSTATE: 38000\n\nJVM stacktrace:\n'
    )
    assert heals_by_waiting(summary(text)) is heals
    short = f"[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read in Python: {error}\n SQLSTATE: 38000"
    assert heals_by_waiting(summary(short)) is heals
    assert summary(short) == re.sub(r"^[a-z_.]+\.", "", error)


def test_a_python_of_sparks_without_pykafka_is_told_with_the_way_out() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance in Python: Traceback (most recent "
        "call last):\n"
        '  File "pyspark/cloudpickle/cloudpickle.py", line 649, in subimport\n    __import__(name)\n'
        "ModuleNotFoundError: No module named 'spark_connector'\n SQLSTATE: 38000\n"
    )
    said = (
        "ConfigError: the Python of Spark's workers is unfit: it has no module 'spark_connector'. Set PYSPARK_PYTHON, "
    )
    assert summary(text).startswith(said)
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


OF_AN_EXECUTOR = (
    "An error occurred while calling o41.collect. : org.apache.spark.SparkException: Job aborted due to stage failure: "
    "Task 0 in stage 0.0 failed, most recent failure: Lost task 0.3 in stage 0.0 (TID 6) (10.0.0.7 executor 1): "
)
SPARKS_WORDS = {
    'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory': (
        "cannot run './environment/bin/python', which PYSPARK_PYTHON names"
    ),
    "PythonException: Traceback (most recent call last):\nPySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in "
    "worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.": (
        "it is Python 3.12, and the driver's is 3.11"
    ),
    "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while finding module "
    "specification for 'pyspark.daemon' (ModuleNotFoundError: No module named 'pyspark')": "it has no module 'pyspark'",
    "PythonException: Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'pyarrow'": (
        "it has no module 'pyarrow'"
    ),
}


@pytest.mark.parametrize("cause", SPARKS_WORDS)
def test_what_spark_says_of_an_executors_python_names_its_host(cause: str) -> None:
    said = SPARKS_WORDS[cause]
    found = summary(OF_AN_EXECUTOR + cause)
    assert found.startswith(
        f"ConfigError: the Python of Spark's executor on host 10.0.0.7 is unfit: {said}. Set PYSPARK_"
    )
    assert "\n" not in found
    assert not heals_by_waiting(found)
    assert summary(cause).startswith(f"ConfigError: the Python of Spark's workers is unfit: {said}.")
