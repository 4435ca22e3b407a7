"""How a stream with `history` advances: first the files of the table at one version, then the topics from its offsets.

In the first batches the offset has a part `history` beside the starts of the topics (read/stream_offset.py):

    {"history": {"at": 3,                the files before this one are read when the batch is done
                 "files": 12,            of so many, in order of name
                 "names": "9f86d081…",   a hash of their names and sizes
                 "since": 0,             the first file of this batch; not in the offset where the query starts
                 "version": "41"},       of the table
     "topics": …}                        where the topics are read once all files are

The files are planned once, when the query starts. A restarted query opens the same version again, so a batch that a
crash has left unfinished reads the same files. As in MicroBatches, the END offset says all that a batch needs, because
Spark asks for the start of the first batch again after a crash, when the table may have a newer version. So the first
batch is logged even if the table has no file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.history_and_tail.fitted_read import FittedRead, gone_since_plan
from spark_connector.history_and_tail.plan import files_at, plan_history
from spark_connector.loads.table_snapshot import TableFile, TableSnapshot, no_longer_there
from spark_connector.read.micro_batches import BatchPlan, MicroBatches
from spark_connector.read.stream_offset import Document, StreamOffset

_HISTORY = "history"


@dataclass(frozen=True)
class HistoryOffset:
    """How far a stream is in the table's files; see the module."""

    version: str
    names: str
    files: int
    at: int = 0
    since: int | None = None

    @classmethod
    def of(cls, document: Document) -> HistoryOffset | None:
        """None for the offset of a batch of the topics. Raises ConnectorError when this source did not write it."""
        if _HISTORY not in document:
            return None
        try:
            return cls(**document[_HISTORY])
        except TypeError as error:
            raise ConnectorError(
                "PYKAFKA_CHECKPOINT_UNREADABLE",
                f"The checkpoint holds an offset of a table that another version has written: {document!r}. Use the "
                "version that wrote it, or a new checkpoint.",
            ) from error

    @property
    def is_done(self) -> bool:
        """Whether the next batch is one of the topics."""
        return self.since is not None and self.at == self.files

    def put_into(self, document: Document) -> Document:
        given = {name: value for name, value in sorted(asdict(self).items()) if value is not None}
        return dict(sorted({**document, _HISTORY: given}.items()))


class HistoryBatches(MicroBatches):
    """The driver's side of one running query with `history`. For one thread; call `close()` when the query ends."""

    def __init__(self, fitted: FittedRead) -> None:
        super().__init__(fitted.topics)
        self._fitted = fitted
        self._snapshot: TableSnapshot | None = None
        self._begin: Document | None = None
        self._wrong: Exception | None = None

    def initial(self) -> Document:
        """Where a new query starts. What is wrong is raised when Spark asks for the first batch: after a crash it goes
        on with the batch that it has logged, for which nothing need be right any more."""
        if self._begin is None:
            try:
                plan = plan_history(self._fitted)
                begin = StreamOffset(plan.starts, plan.topic_ids, epochs=plan.epochs, selects=self._selects)
                self._snapshot = plan.snapshot
                found = HistoryOffset(plan.snapshot.version, _hash(plan.snapshot.files), len(plan.snapshot.files))
                self._begin = found.put_into(begin.to_json())
            except Exception as error:
                self._begin, self._wrong = HistoryOffset("", "", 0).put_into(StreamOffset({}).to_json()), error
        return self._begin

    def next_end(self, start: Document, **limits: Any) -> Document:
        if self._wrong is not None and start == self._begin:
            raise self._wrong
        found = HistoryOffset.of(start)
        if found is None or found.is_done:
            begin = _without(start)
            try:
                end = super().next_end(begin, **limits)
            except DataLoss as error:
                raise gone_since_plan(self._fitted, error, batch=False) from error
            return start if end == begin else end
        left = self._files(found)[found.at :]
        count = count_files(left, limits.get("cap"), limits.get("byte_cap"))
        return HistoryOffset(found.version, found.names, found.files, found.at + count, found.at).put_into(start)

    def plan(self, start: Document, end: Document) -> BatchPlan:
        return super().plan(start, end) if start == end else super().plan(_without(start), end)

    def files(self, start: Document, end: Document) -> tuple[TableSnapshot, Sequence[TableFile]] | None:
        """The files that the batch reads; None for a batch of the topics."""
        found = HistoryOffset.of(end)
        if found is None or start == end or found.since is None:
            return None
        files = self._files(found)
        assert self._snapshot is not None
        return self._snapshot, files[found.since : found.at]

    @property
    def _selects(self) -> dict[str, str]:
        return dict(self._fitted.topics.selection.text)

    def _files(self, wanted: HistoryOffset) -> Sequence[TableFile]:
        """The files of that version, from the table unless this process has planned them. Raises ConnectorError."""
        if self._snapshot is None or self._snapshot.version != wanted.version:
            self._snapshot = files_at(self._fitted, wanted.version)
        if _hash(self._snapshot.files) != wanted.names:
            shown, version = self._snapshot.shown, wanted.version
            self._snapshot = None
            raise no_longer_there(shown, version, "it has other files than when the query began")
        return self._snapshot.files


def count_files(files: Sequence[TableFile], cap: int | None, byte_cap: int | None) -> int:
    """How many of the files a batch reads within the limits of rows and bytes: at least one, if there is one."""
    rows = size = 0
    for count, file in enumerate(files):
        rows, size = rows + (file.rows or 0), size + file.size
        if count and ((cap is not None and rows > cap) or (byte_cap is not None and size > byte_cap)):
            return count
    return len(files)


def _without(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != _HISTORY}


def _hash(files: Sequence[TableFile]) -> str:
    listed = "\n".join(f"{file.name} {file.size}" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()[:16]
