"""`pykafka demo`: the main job on real records. A load is killed on the way, and a stream is stopped."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker.embedded import EmbeddedBroker
from broker.errors import PykafkaError
from pykafka_demo import lake, steps
from pykafka_demo.flights import flights
from pykafka_demo.proof import Proof, compare, topic_ranges
from spark_connector.cli.session import standard_error_to

console = Console(highlight=False)
MARKER = ".pykafka-demo"
_DONE = TextColumn("{task.completed:,.0f} of {task.total:,.0f}")


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Directory of the demo's data. It is emptied first.", metavar="DIR")
    ] = Path("data/demo"),
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Keep the broker running at the end, until Ctrl-C.")
    ] = False,
) -> None:
    """Run the main job on real flight records: produce, read, load, stream, with a kill -9 in the middle.

    \b
    Examples:
      pykafka demo
      pykafka demo --dir /tmp/demo --keep-running
    """
    began = time.monotonic()
    directory = _fresh(directory)
    _title("0", "A broker, with a ZooKeeper of its own")
    broker = EmbeddedBroker(directory, ui=keep_running).start()
    bootstrap = broker.bootstrap
    console.print(f"broker on [bold]{bootstrap}[/], ZooKeeper on {broker.zookeeper}, data in {directory / 'broker'}")
    try:
        count = _produce(bootstrap)
        with standard_error_to(directory / "spark.log"):
            spark = steps.spark_session()
        try:
            _read(spark, bootstrap)
            proofs = [_load(directory, bootstrap), _stream(spark, directory, bootstrap)]
        finally:
            spark.stop()
        _query(directory)
        console.print(f"\n[bold]{count:,} flights, {time.monotonic() - began:.0f} seconds.[/]")
        _how_to_go_on(directory, bootstrap, broker.ui.url if broker.ui else "")
        if keep_running:
            console.print("the broker runs until Ctrl-C")
            signal.pause()
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        broker.stop()
    if not all(proof.holds for proof in proofs):
        raise PykafkaError("a proof does not hold; see above")


def _produce(bootstrap: str) -> int:
    _title("1", "Produce every flight that left New York in 2013, keyed by tail number, zstd")
    with _bar("produced") as progress:
        return steps.produce_flights(bootstrap, progress)


def _read(spark: SparkSession, bootstrap: str) -> None:
    _title("2", 'Batch read: spark.read.format("pykafka")')
    with console.status("Spark starts and reads the topic"):
        rows = steps.delays_by_airline(spark, bootstrap)
    table = Table("airline", title="Delays by airline, minutes")
    for name in ("flights", "departure", "arrival", "late > 15 min"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = (f"{row['flights']:,}", f"{row['departure']:.1f}", f"{row['arrival']:.1f}", f"{row['late']:.0%}")
        table.add_row(row["airline"], *numbers)
    console.print(table)


def _load(directory: Path, bootstrap: str) -> Proof:
    _title("3", "Exactly-once load into an Iceberg table with the columns of the JSON, killed and run again")
    lake.set_up(directory)
    arguments = steps.load_arguments(bootstrap)
    console.print(f"[dim]$ pykafka {shlex.join(arguments)}[/]", soft_wrap=True)
    with console.status("the first run starts, and is killed while it writes"):
        left = steps.kill_a_load(arguments, directory, directory / "load-killed.log")
    console.print(f"killed with SIGKILL; {len(left)} data file(s) lie there that no snapshot of the table names")
    with console.status("the second run"):
        printed = steps.run_load(arguments, directory)
    console.print(printed)
    positions = lake.read_positions(directory)
    return _prove("the table, read by pyiceberg", compare(topic_ranges(bootstrap, steps.TOPIC), positions))


def _stream(spark: SparkSession, directory: Path, bootstrap: str) -> Proof:
    _title("4", "Streaming query with a checkpoint, stopped after two micro-batches and started again")
    to, checkpoint = directory / "stream", directory / "stream-checkpoint"
    with _bar("streamed") as progress:
        before = steps.stream_in_two_runs(spark, bootstrap, to, checkpoint, progress)
    console.print(f"{before:,} rows in the first run, the rest after the restart from {checkpoint}")
    positions = spark.read.parquet(str(to)).select("partition", "offset").toArrow()
    return _prove("the stream's output", compare(topic_ranges(bootstrap, steps.TOPIC), positions))


def _prove(what: str, proof: Proof) -> Proof:
    verdict = "[bold green]holds[/]" if proof.holds else "[bold red]does not hold[/]"
    console.print(
        f"proof {verdict} for {what}: {proof.rows_in:,} rows in, {proof.rows_out:,} rows out, "
        f"{proof.duplicates} duplicate (topic, partition, offset), {proof.missing} missing"
    )
    return proof


def _query(directory: Path) -> None:
    _title("5", "Query the table with a program that knows nothing of pykafka: pyiceberg and pandas")
    console.print(f"[dim]{lake.QUERY}[/]", soft_wrap=True)
    with console.status("the query runs"):
        console.print(steps.run_query(directory))


def _how_to_go_on(directory: Path, bootstrap: str, console_url: str) -> None:
    """`console_url`: of the console in the browser, if the broker stays."""
    overrides = f"--override log.dirs={directory / 'broker'} --override listeners=PLAINTEXT://{bootstrap}"
    console.print("\nGo on from here:")
    if console_url:
        console.print(f"  [bold]{console_url}[/]   topics, records and groups in the browser", soft_wrap=True)
    else:
        console.print(f"  [bold]pykafka broker start {overrides}[/]   the same broker and data again", soft_wrap=True)
    for command, what in (
        (f"pykafka topics describe --topic flights --bootstrap-server {bootstrap}", ""),
        (f"pykafka ui --bootstrap-server {bootstrap}", "the same in the browser"),
        (f"pykafka consume --topic flights --from-beginning --max-messages 3 --bootstrap-server {bootstrap}", ""),
        (f"pykafka log dump {directory / 'broker' / 'flights-0'}", "what a partition looks like on disk"),
        ("notebooks/01_quickstart.ipynb", "the same story, cell by cell"),
    ):
        console.print(f"  [bold]{command}[/]   {what}", soft_wrap=True)
    console.print(f"Output: {directory / 'warehouse'} (table), {directory / 'stream'} (stream)")
    console.print("The table again:")
    query = f"PYICEBERG_HOME={directory} {sys.executable} {directory / lake.QUERY_FILE}"
    console.print(f"  [bold]{query}[/]", soft_wrap=True)


def _fresh(directory: Path) -> Path:
    """Empty the directory of an earlier demo. Refuse any other directory that is not empty."""
    directory = directory.absolute()
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARKER).exists():
            raise PykafkaError(f"{directory} is not empty and not of an earlier demo; set --dir to another one")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARKER).touch()
    return directory


def _title(number: str, text: str) -> None:
    console.rule(f"[bold]{number}[/]  {text}", align="left")


@contextmanager
def _bar(what: str) -> Iterator[steps.Progress]:
    """Of all flights; it ends at as many as were really done."""
    columns = (TextColumn("{task.description}"), BarColumn(), _DONE, TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=flights().num_rows)
        yield lambda done: bar.update(task, completed=done)
