"""What a log needs to begin behind archived records: the leader epochs and the producers, from the archive.

A leader that has lost its disk begins where the archive ends (archive_manager.py). A follower begins where its leader's
local log does (replica/follower.py), or a little later: where an archived segment ends. So idempotent producers go on
when it leads one day, and transactions that are open there end as they should (A5). Blocks on the store; for any
thread.
"""

from __future__ import annotations

from broker.archive.aux_file import AuxFile, decode_aux
from broker.archive.manifest import ArchivedSegment, Manifest
from broker.archive.manifest_store import ManifestStore
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.log.archived_log import ArchivedState
from broker.storage.url_secrets import text_without_secrets


def state_at_end(store: ManifestStore, manifest: Manifest) -> ArchivedState:
    """The state where the archive ends. Raises OSError, BrokenAux."""
    if not manifest.segments:
        return ArchivedState(manifest.end, manifest.start, (), b"")
    last = manifest.segments[-1]
    aux = _aux(store, last)
    # Where a truncation has cut the last segment nobody knows the producers, and somebody has to lead all the same.
    producers = aux.producer_snapshot if aux.end == last.end else b""
    return ArchivedState(last.end, manifest.start, _epochs_before(manifest, last.end), producers)


def state_from(store: ManifestStore, offset: int) -> ArchivedState:
    """The state at the first end of an archived segment at or after `offset`, by the manifest as it is now.

    It passes over segments that a truncation has cut: where they end nobody knows the producers. Raises BrokerError
    `kafka_storage_error` where there is none, or the store does not tell it.
    """
    cut = ""
    try:
        manifest = store.load()
        for segment in manifest.segments:
            if segment.end >= offset:
                aux = _aux(store, segment)
                if aux.end != segment.end:
                    cut = f"; segment {segment.name} was cut there, and nothing whole is archived after it yet"
                    continue
                epochs = _epochs_before(manifest, segment.end)
                return ArchivedState(segment.end, manifest.start, epochs, aux.producer_snapshot)
        if offset == manifest.end and not cut:  # all archived records were deleted
            return ArchivedState(offset, manifest.start, (), b"")
    except (OSError, PykafkaError) as error:
        text = f"the archive does not say what is before offset {offset}: {text_without_secrets(str(error))}"
        raise BrokerError(ErrorCode.kafka_storage_error, text) from error
    text = f"the archive ends at offset {manifest.end}, and a follower has to begin at {offset} or later{cut}"
    raise BrokerError(ErrorCode.kafka_storage_error, text)


def _aux(store: ManifestStore, segment: ArchivedSegment) -> AuxFile:
    return decode_aux(store.storage.read(store.place.aux(segment.name), segment.aux_size))


def _epochs_before(manifest: Manifest, offset: int) -> tuple[tuple[int, int], ...]:
    return tuple((one.epoch, one.start) for one in manifest.epochs if one.start < offset)
