"""`pykafka log`: read the files of partitions, and the data directories of brokers.

`dump` (kafka-dump-log.sh) prints one line per batch; `check` prints every inconsistency and ends with status 1 if
there is one, and with 3 if there is a file that it could not read. Both only read, so a broker may run on the same
directory. `dirs` (kafka-log-dirs.sh) asks brokers. With `--json`, `dump` and `check` print one object per line. Raises
ConfigError for a directory without segments.
`dirs --adopt` asks nobody: it confirms a directory for the next start of the broker that has it. The commands of
`archive` are in archive_command.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from broker.client.admin import Admin
from broker.client.admin_types import LogDir
from broker.errors import ConfigError, PykafkaError
from broker.log.inspection import Problem, check_partition, partition_copies, partition_directories, segment_files
from broker.meta_properties import adopt as adopt_directory
from broker.tools.archive_command import app as archive_app
from broker.tools.client_options import JsonOutput, admin_command, complete_topics, flag, option
from broker.tools.log_dump import SIDE_FILES, print_segment, segment_documents, side_file_rows, side_files
from broker.tools.output import (
    checking,
    counted,
    document,
    end_check,
    print_json,
    print_json_lines,
    print_table,
    print_view,
    progress_bar,
)
from broker.tools.restore_command import restore
from broker.verdict import Verdict

app = typer.Typer(
    help="Dump and check the files of partitions; show the data directories of brokers.\n\n\b\nExamples:\n"
    "  pykafka log dump data/broker/flights-0\n"
    "  pykafka log check data/broker\n"
    "  pykafka log dirs",
    no_args_is_help=True,
)

app.command()(restore)

app.add_typer(archive_app, name="archive")

Directories = Annotated[
    list[Path],
    typer.Argument(help="Directories of partitions, or data directories with all partitions in them.", metavar="DIR"),
]
Json = Annotated[bool, flag("Print one JSON object per line.", "--json")]

TRANSACTION_FILES = frozenset({".txnindex", ".snapshot"})


@app.command()
def dump(
    paths: Annotated[
        list[Path], typer.Argument(help="Directories of partitions, data directories, or single files.", metavar="PATH")
    ],
    records: Annotated[
        bool, flag("Print the records of every batch; those of internal topics decoded.", "--records")
    ] = False,
    transactions: Annotated[
        bool, flag("Print aborted-transaction indexes and producer snapshots too.", "--transactions")
    ] = False,
    indexes: Annotated[bool, flag("Print all other files of a segment too.", "--indexes")] = False,
    as_json: Json = False,
) -> None:
    """Print every batch: offsets, timestamps, size, codec, producer, transaction marker, and whether its CRC is right.

    \b
    Examples:
      pykafka log dump data/broker/flights-0
      pykafka log dump data/broker/flights-0 --records
      pykafka log dump data/broker/__consumer_offsets-3 --records --json
    """
    only = None if indexes else TRANSACTION_FILES if transactions else frozenset[str]()
    console = Console()
    for file in (file for path in paths for file in _files(path, only)):
        if file.suffix in SIDE_FILES:
            rows = side_file_rows(file)
            if as_json:
                print_json_lines({"file": str(file), **row} for row in rows)
            else:
                console.print(Text(f"{file} ({counted(len(rows), 'entry', 'entries')})", style="bold"), soft_wrap=True)
                print_table(list(rows[0]) if rows else [], [list(row.values()) for row in rows])
        elif as_json:
            print_json_lines(segment_documents(file, records))
        else:
            print_segment(console, file, records)


@app.command()
def check(
    directories: Directories,
    compacted: Annotated[bool, flag("Accept gaps between offsets.", "--compacted")] = False,
    as_json: Json = False,
) -> None:
    """Verify every batch and index; the exit status is 1 if anything is wrong, and 3 if a file could not be read.

    With all directories of log.dirs it also finds partitions that are in two of them.

    \b
    Examples:
      pykafka log check data/broker
      pykafka log check data/broker/flights-0 --json
    """
    with checking(as_json):
        partitions = [partition for directory in directories for partition in partition_directories(directory)]
    problems = partition_copies(partitions)
    with progress_bar("checking", len(partitions)) as advance:
        for number, partition in enumerate(partitions):
            advance(number, partition.name)
            problems += check_partition(partition, compacted=compacted)
    if as_json:
        print_json_lines(
            {"file": str(path), "position": position, "unread" if verdict is Verdict.UNKNOWN else "problem": text}
            for path, position, text, verdict in problems
        )
    else:
        _print_problems(Console(soft_wrap=True), problems, len(partitions))
    end_check(Verdict.of_all(problem.verdict for problem in problems))


@admin_command(app)
def dirs(
    admin: Admin,
    broker: Annotated[list[int] | None, option("Id of a broker; may be repeated. Default: all.", "ID")] = None,
    topic: Annotated[
        list[str] | None, option("A topic; may be repeated.", "NAME", "--topic", "-t", autocompletion=complete_topics)
    ] = None,
    adopt: Annotated[
        list[Path] | None,
        option(
            "Confirm a directory of log.dirs on this machine as it is, for the broker's next start: a new one, or "
            "one whose disk is lost. Partitions whose only log is gone begin anew, empty, or where their "
            "archive ends. May be repeated.",
            "DIR",
        ),
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Show the data directories of brokers: size of each partition, total and free space.

    \b
    Examples:
      pykafka log dirs
      pykafka log dirs --adopt /mnt/new-disk
      pykafka log dirs --broker 1 --topic flights --json
    """
    if adopt:
        _adopt(adopt)
        return
    found = admin.describe_log_dirs(broker or (), topic or ())
    if as_json:
        print_json([_directory_document(one) for one in found])
    else:
        for one in found:
            _print_directory(one)
    failed = [str(one.error) for one in found if one.error is not None]
    if failed:
        raise PykafkaError("; ".join(failed))


def _adopt(directories: list[Path]) -> None:
    for directory in directories:
        if directory == Path():  # an empty text is one, as of a variable that is not set
            raise ConfigError("--adopt needs the path of a directory as it is in log.dirs")
        try:
            adopt_directory(directory)
        except OSError as error:
            raise ConfigError(f"--adopt {directory}: {error.strerror}") from error
        typer.echo(
            f"{directory} is confirmed for the next start of its broker. Partitions whose only log is gone begin anew "
            "then, empty, or where their archive ends."
        )


def _files(path: Path, only: frozenset[str] | None) -> Iterator[Path]:
    """The file itself, or each partition's segments and their side files of the suffixes `only` (None: all)."""
    if path.is_file():
        if path.suffix != ".log" and path.suffix not in SIDE_FILES:
            raise ConfigError(f"{path}: expected a directory or a file *.log, {', '.join('*' + s for s in SIDE_FILES)}")
        yield path
        return
    for partition in partition_directories(path):
        yield from segment_files(partition)
        yield from side_files(partition, only=only)


def _print_problems(console: Console, problems: list[Problem], partitions: int) -> None:
    for path, position, text, verdict in problems:
        where = f"{path}" if position is None else f"{path}, byte {position}"
        console.print(Text.assemble((where, "bold"), ": ", (text, "red" if verdict is Verdict.MISMATCH else "yellow")))
    unread = sum(problem.verdict is Verdict.UNKNOWN for problem in problems)
    if problems:
        wrong = f"{counted(len(problems) - unread, 'problem')} in {counted(partitions, 'partition')}"
        more = f"; unknown what is in {counted(unread, 'file')}" if unread else ""
        console.print(wrong + more, style="red")
    else:
        console.print(f"{counted(partitions, 'partition')}, no problem found", style="green")


def _directory_document(one: LogDir) -> dict[str, Any]:
    return {
        "broker": one.broker_id,
        "logDir": one.path,
        "error": None if one.error is None else str(one.error),
        "totalBytes": one.total_bytes,
        "usableBytes": one.usable_bytes,
        "partitions": [tp._asdict() | document(size) for tp, size in one.partitions.items()],
    }


def _print_directory(one: LogDir) -> None:
    used = sum(size.size for size in one.partitions.values())
    space = f", {one.usable_bytes:,} of {one.total_bytes:,} bytes free" if one.total_bytes >= 0 else ""
    typer.echo(
        f"broker {one.broker_id}: {one.path}: {counted(len(one.partitions), 'partition')}, {used:,} bytes{space}"
    )
    print_view(_directory_document(one)["partitions"], "topic, partition, bytes=size")
