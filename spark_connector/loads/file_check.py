"""Looks at the files that a commit will name, by the path that readers use, before anything is committed.

A task may have written to a disk of its own host: a local path is another place on every host. Or a file was removed
or cut since. A table that names such a file can be read by nobody. So the driver opens each file, and compares its
size and its end with what the task has told.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from spark_connector.loads.record import LoadError, LoadFile
from spark_connector.loads.shared_path import SHARED, is_local
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFile, WrittenFiles

_AT_ONCE = 8  # files; each costs a request or two of an object store


class FileNotAsWritten(LoadError):
    """A file that a commit would name is not there for its readers, or is not what a task has written."""


def check_written(
    attempt: str, output: TaskOutput, files: WrittenFiles, *beside: tuple[TaskOutput, WrittenFiles]
) -> None:
    """Raise FileNotAsWritten unless `output` has all these files, as the tasks have told of them, and so have the
    outputs `beside` it theirs.

    `attempt`: what would be committed, in words.
    """
    wrong = [(output, _wrong(output, files)) for output, files in ((output, files), *beside)]
    left = "".join(_left(output.url_of(""), {file.host for file, _ in found}) for output, found in wrong)
    for output, found in wrong:
        for file, why in found:
            raise _not_as_written(attempt, output.url_of(file.name), file.host, why, left)


def _wrong(output: TaskOutput, files: WrittenFiles) -> list[tuple[WrittenFile, str]]:
    """Those of the files that are not as they were written, and why."""

    def look(file: WrittenFile) -> str | None:
        return _why_wrong(output, file)

    if len(files) < 2:
        found: Iterable[str | None] = map(look, files)
    else:
        with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
            found = list(pool.map(look, files))
    return [(file, why) for file, why in zip(files, found, strict=True) if why is not None]


def check_sizes(
    attempt: str,
    url_of: Callable[[str], str],
    sizes: Mapping[str, int],
    files: Collection[WrittenFile] | Collection[LoadFile],
    host: str = "",
) -> None:
    """The same by a listing of their directory, name → bytes: for the last look, when all were opened before.

    `host` is where the files were written, if they do not tell.
    """
    for file in files:
        size = sizes.get(file.name)
        if size != file.size:
            why = "is not there" if size is None else f"has {size:,} bytes, not the {file.size:,} that were written"
            raise _not_as_written(attempt, url_of(file.name), getattr(file, "host", host), why)


def _why_wrong(output: TaskOutput, file: WrittenFile) -> str | None:
    wanted = file.footer
    try:
        source = output.open_input(file.name)
        try:
            source.seek(0, io.SEEK_END)  # gives nothing on hdfs://
            size = source.tell()
            if size != file.size:
                return f"has {size:,} bytes, not the {file.size:,} that were written"
            source.seek(size - len(wanted))
            end = source.read(len(wanted))
        finally:
            source.close()
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"cannot be read: {error}"
    return None if bytes(end) == wanted else "has the right size, but another footer"


def _left(directory: str, hosts: set[str]) -> str:
    """Which files the driver cannot remove, because it does not see them."""
    others = sorted(hosts - {socket.gethostname(), ""})
    if not others or not is_local(directory):
        return ""
    named = f"host {others[0]}" if len(others) == 1 else f"hosts {', '.join(others[:-1])} and {others[-1]}"
    return f". The files of this try are left in {directory.rstrip('/')} on {named}: remove that directory there"


def _not_as_written(attempt: str, url: str, host: str, why: str, left: str = "") -> FileNotAsWritten:
    here = socket.gethostname()
    if not host:
        who, reason = "", f"The executors may not share this path with the driver on host {here}. {SHARED}"
    elif host == here:
        who, reason = f", which a task on this host, {host}, has written,", "Something else has removed or changed it"
    else:
        who = f", which a task on host {host} has written,"
        reason = f"The executors do not share this path with the driver on host {here}. {SHARED}"
    return FileNotAsWritten(f"{attempt}: {url}{who} {why}. {reason}. Nothing was committed{left}")
