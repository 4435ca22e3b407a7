"""Which failures heal by waiting: the one list. A service of loads tries again after these and ends after all others.

A failure is judged by the name of its class and by its text, because a task of Spark leaves nothing else of it:
`OSError: [Errno 28] No space left on device` from Python, or `IOException: No space left on device` from Java. Our own
errors say it by their flag `retriable`; in a task they are told by name. What stays until a person changes something is
not in the list: a missing right, a wrong password, a record that does not fit, a package that is not installed.

`summary` finds that one line in Spark's long texts. The cause may be in one of our own tasks, which are Python, or in
Spark's writer: then it is the last of the JVM's causes.

Pure. tests/spark_connector/test_outages.py has a failure of each kind.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from broker.errors import ErrorCode, PykafkaError, error_name

_ERRNOS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.ENOBUFS, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOLCK),
    *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ESHUTDOWN),
    *(errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET),
)
"""Errors of the operating system: something is full or used up, busy, or cannot be reached now."""

_CARRIERS = (
    r"^\w*(?:OSError|IOException|FSError|FileNotFoundException|FileSystemException|SocketException|ConnectException"
    r"|DeltaError|CommitFailedError|OperationalError|URLError)\b.*"
)
"""The classes whose text quotes the operating system. Java's FileNotFoundException is any failure to open a file."""

_CONDITIONS = (
    "AdminShutdown|CrashShutdown|CannotConnectNow|IdleSessionTimeout|QueryCanceled|OperatorIntervention"
    "|ConnectionException|ConnectionDoesNotExist|ConnectionFailure|StatementCompletionUnknown|SerializationFailure"
    "|DeadlockDetected|LockNotAvailable|InsufficientResources|DiskFull|OutOfMemory|TooManyConnections|IoError"
)
"""Conditions of PostgreSQL (its appendix of error codes), after which psycopg names its errors."""


_OURS = re.compile(r"(?:^|: )(?:broker|spark_connector)(?:\.\w+)*\.(\w+: .+)$", re.MULTILINE)
"""An error that we raise on purpose: Spark shows it without a traceback (entry_point.py), behind words of its own."""
_PYTHON_ERROR = re.compile(
    r"^(?:\w+\.)*((?:\w*(?:Error|Exception|DataLoss|CorruptBatch|Failed|TimedOut|Unavailable|Interrupted|UnknownTopic)"
    r"|(?<=\.errors\.)\w+): .+)$",  # psycopg's errors are named after PostgreSQL's conditions: AdminShutdown
    re.MULTILINE,
)
_JVM_CAUSE = re.compile(r"^(?:Caused by)?: (?:\w+\.)*([\w$]+: .+)$", re.MULTILINE)
"""A cause, or the exception itself, which py4j's text has behind a colon."""
_BRANCH = re.compile(r"\s*(?:\x1b\[\d+m)*↳(?:\x1b\[\d+m)*\s*")
_ON_HOST = re.compile(r"\(TID \d+\) \((\S+) executor ")
_UNFIT_PYTHON = (
    (re.compile(r"Cannot run program \"([^\"]+)\""), "cannot run '{}', which PYSPARK_PYTHON names"),
    (
        re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+\d)"),
        "it is Python {}, and the driver's is {}",
    ),
    (re.compile(r"No module named '?(pyspark|py4j|pyarrow|numpy|spark_connector|broker)\b"), "it has no module '{}'"),
)
"""What Spark says of an executor's Python before it runs code of ours (shipped.py)."""


_DENIED = re.compile(
    r"^(?:PermissionError|ImportError|ModuleNotFoundError|NotImplementedError|ArrowNotImplementedError|\w*Credential\w*)\b"
    r"|\[Errno 1\]|\[Errno 13\]|\(os error 13\)|[Pp]ermission ?denied|[Aa]ccess ?[Dd]enied|AccessControlException"
    r"|Unauthorized|Forbidden|[Ss]tatus(?: code)?:? 40[13]\b|Unauthenticated|InsufficientPrivilege|not authorized"
    r"|password authentication failed|NoCredentials|InvalidAccessKeyId|SignatureDoesNotMatch"
)
"""Rights, logins, and what is not installed: somebody must change something, and the data were not seen."""

_CUT = re.compile(r"EOFException: Unexpected end of input stream")
"""Hadoop says so of a file that ends within compressed data. Of a connection that ended, EOFException says more."""


@dataclass(frozen=True)
class Outage:
    """A kind of failure that heals by waiting. `pattern` is searched in `<name of the class>: <text>`."""

    what: str
    pattern: re.Pattern[str]


def _outage(what: str, *patterns: str) -> Outage:
    return Outage(what, re.compile("|".join(patterns)))


def _system_error() -> str:
    """Python says `[Errno 28] No space…`, Rust `No space… (os error 28)`, Java only the text."""
    numbers = "|".join(map(str, _ERRNOS))
    texts = "|".join(re.escape(os.strerror(number)) for number in _ERRNOS)
    return rf"{_CARRIERS}(?:\[Errno (?:{numbers})\]|\(os error (?:{numbers})\)|{texts})"


OUTAGES = (
    _outage(
        "no broker, no ZooKeeper or no NameNode answers",
        r"^(?:ConnectionFailed|RequestTimedOut|OffsetStoreUnavailable|LoadInterrupted): ",
    ),
    _outage(
        "the cluster answers with an error that Kafka calls retriable",
        rf"^BrokerError: (?:{'|'.join(re.escape(error_name(code)) for code in ErrorCode if code.retriable)})",
    ),
    _outage(
        "the schema registry does not answer",
        r"^ConnectorError: \[SCHEMA_REGISTRY_UNAVAILABLE\](?!.*(?:HTTP 4(?!29)\d\d|CERTIFICATE_VERIFY_FAILED))",
    ),
    _outage(
        "a disk is full, a file system or a network is away or busy, as the operating system says",
        _system_error(),
    ),
    _outage(
        "a connection cannot be made, or breaks",
        r"^(?:ConnectionError|Connection\w+Error|BrokenPipeError|TimeoutError|IncompleteRead|RemoteDisconnected)\b",
        r"^(?:ConnectException|SocketException|SocketTimeoutException|ConnectTimeoutException|NoRouteToHostException"
        r"|ClosedChannelException|EOFException)\b",
        r"^(?:gaierror|UnknownHostException|OSError|URLError): .*Temporary failure in name resolution",
    ),
    _outage(
        "HDFS is in safe mode, fails over, or lacks space or DataNodes",
        r"^(?:SafeMode|Standby|Retriable|NotReplicatedYet|BlockMissing|\w*QuotaExceeded)Exception\b",
        r"^(?:OSError|\w*(?:Remote|IO)Exception): .*(?:safe mode"
        r"|(?:SafeMode|Standby|Retriable|\w*QuotaExceeded)Exception"
        r"|could only be (?:written|replicated) to|[Nn]ot enough (?:DataNodes|datanodes)|[Tt]imed out"
        r"|[Aa]ll (?:DataNodes|nodes) failed|Data[Nn]ode connection closed|[Bb]locks not found"
        r"|Failed to (?:connect to|send packet to|read ack from) DataNode|RPC listener disconnected)",
    ),
    _outage(
        "Spark has lost a worker or an executor, or the job was cancelled",
        r"Python worker (?:exited unexpectedly|failed to connect back)",
        r"ExecutorLostFailure|Executor heartbeat timed out",
        r"\[SPARK_JOB_CANCELLED\]|\bJob (?:group )?\S+ cancelled|\[OPERATION_CANCELED\]",
    ),
    _outage("the server of Spark Connect does not answer", r"StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)\b"),
    _outage(
        "a database does not answer, is starting or stopping, is busy or full",
        rf"^(?:\w+: \((?:\w+\.)*)?(?:{_CONDITIONS})\b",
        r"^(?:OperationalError|InterfaceError|InternalError|DatabaseError): .*(?:server closed the connection"
        r"|connection (?:has been |was |is )?(?:closed|lost)|connection to server .* failed: No such file"
        r"|SSL SYSCALL error|could not (?:receive|send) data|[Ss]erver shutdown in progress"
        r"|server_login_retry|query_wait_timeout|no more connections allowed"
        r"|[Tt]imeout expired|timed out|consuming input failed|[Ll]ost connection"
        r"|has gone away|[Cc]an't connect to|[Tt]oo many (?:clients|connections)|remaining connection slots"
        r"|the database system is|(?:database(?: table)?|schema) is locked|disk I/O error|database or disk is full"
        r"|[Ll]ock wait timeout|[Dd]eadlock|Temporary failure in name resolution)",
    ),
    _outage(
        "an object store does not answer, or answers that it cannot now",
        r"^(?:OSError|\w*DeltaError|CommitFailedError): .*Generic \w+ error: .*"
        r"(?:status code: (?:5\d\d|429)|error sending request|operation timed out)",
    ),
    _outage(
        "another program has committed to the Delta table at the same moment",
        r"^CommitFailedError\b(?!.*(?:table features|append-only))",  # which stay until a person changes the table
    ),
)


def heals_by_waiting(failure: BaseException | str) -> bool:
    """Whether the same operation may succeed later without a change of the set-up or of the data.

    `failure`: an exception, or `<name of the class>: <text>` of one.
    """
    return failure.retriable if isinstance(failure, PykafkaError) else outage_of(failure) is not None


def is_out_of_reach(failure: BaseException | str) -> bool:
    """Whether the failure says nothing about the data: they were not seen, because of rights, an outage or a package.

    `failure`: as for `heals_by_waiting`.
    """
    said = failure if isinstance(failure, str) else _described(failure)
    return (heals_by_waiting(failure) and not _CUT.search(said)) or _DENIED.search(said) is not None


def outage_of(failure: BaseException | str) -> Outage | None:
    """The kind of the list, of a failure that is none of our own errors; None for one that does not heal."""
    said = failure if isinstance(failure, str) else _described(failure)
    return next((outage for outage in OUTAGES if outage.pattern.search(said)), None)


def _described(error: BaseException) -> str:
    cause = getattr(error, "orig", None)  # SQLAlchemy's errors quote the driver's, and then the statement
    text = f"({type(cause).__name__}) {cause}" if cause is not None else str(error)
    return f"{type(error).__name__}: {one_line(text)}".partition("\n")[0]


def one_line(text: str) -> str:
    """The text, with the causes that deltalake draws as a tree, in colours, behind colons."""
    return _BRANCH.sub(": ", text).strip() if "↳" in text else text


def summary(text: str) -> str:
    """One line: the last error of ours, or of Python, or else the last cause, or else the first line."""
    for pattern, what in _UNFIT_PYTHON:
        if found := pattern.search(text):
            host = _ON_HOST.search(text)
            return (
                f"ConfigError: the Python of Spark's {f'executor on host {host[1]}' if host else 'workers'} is unfit: "
                f"{what.format(*found.groups())}. Set PYSPARK_PYTHON, before Spark starts, to a name that driver and "
                "executors have; `pykafka pack` makes an archive of what executors need, `pykafka doctor` looks at the "
                "driver"
            )
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    python, causes = _PYTHON_ERROR.findall(text), _JVM_CAUSE.findall(text)
    if causes and "Traceback (most recent call last)" not in text:
        return str(causes[-1])
    return str(python[-1]) if python else text.strip().partition("\n")[0]
