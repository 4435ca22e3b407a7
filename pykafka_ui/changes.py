"""What may be changed with `--allow-changes`: topics, their settings and records, offsets of groups.

Each change has a form. What is sent is first checked, by the brokers where they can, then shown as a sentence that says
what it will do, with a preview where there is one, and done only when that is confirmed. What cannot be done is said
above the form, which keeps what was typed. Without the option these routes do not exist.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from broker.client.admin import Admin
from broker.client.admin_types import HIGH_WATERMARK, NewTopic
from broker.client.offset_reset import ResetTarget, new_offsets, refuse_members
from broker.client.partition_offsets import EARLIEST, LATEST, offsets_at
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError
from broker.protocol.described_config import ResourceType
from broker.protocol.topic_names import check_topic_name
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import parse_pairs, parse_time
from broker.tools.output import counted
from pykafka_ui.console import DELIVERED_S, Console
from pykafka_ui.records.records_query import in_range, number
from pykafka_ui.render import Renderer, moment_text, segment
from pykafka_ui.reset_preview import HEAD, Move, summary
from pykafka_ui.v3.record_json import RecordToSend

_RESETS = {
    ResetTarget.TO_EARLIEST: ("the start of the log", "to the start of the log"),
    ResetTarget.TO_LATEST: ("the end of the log", "to the end of the log"),
    ResetTarget.TO_OFFSET: ("an offset", "to offset {}"),
    ResetTarget.TO_DATETIME: ("a time", "to the first record at {} or later"),
    ResetTarget.SHIFT_BY: ("so many records further, or back if negative", "by {} records"),
}
"""The words of the choice, and those of the sentence."""
_REMEMBERED = 1_000
_MOST_FORM = 4 << 20
"""Bytes. A record has 1 MB, of which a form may make three."""
_MOST = 2**15 - 1
"""Partitions and replicas of a new topic: more than any cluster takes."""


@dataclasses.dataclass(frozen=True)
class Change:
    """A change that is ready. `sentence` says what `perform` will do; `address` is the page to see it on."""

    sentence: str
    perform: Callable[[], object]
    address: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    words: int = 99
    """The columns after so many are numbers."""


async def _form(request: Request) -> FormData:
    """Raises HTTPException for one that is larger than what a broker would take."""
    if int(request.headers.get("content-length", _MOST_FORM + 1)) > _MOST_FORM:
        raise HTTPException(413, f"a form has at most {_MOST_FORM >> 20} MiB, and says its size")
    return await request.form(max_files=0, max_fields=100)


Form = Annotated[FormData, Depends(_form)]


class Changes:
    def __init__(self, console: Console, render: Renderer) -> None:
        self._console = console
        self._render = render.page
        self._lock = threading.Lock()
        self._done: dict[str, None] = {}
        """The confirmations that came, the oldest first."""

    def router(self) -> APIRouter:
        routes = APIRouter(include_in_schema=False)
        for path, template, ready in (
            ("/new-topic", "new_topic.html", self.new_topic),
            ("/topics/{name}/change-settings", "change_settings.html", self.settings),
            ("/topics/{name}/produce", "produce.html", self.produce),
            ("/topics/{name}/delete-records", "delete_records.html", self.delete_records),
            ("/reset-group/{name:path}", "reset_group.html", self.reset),
            ("/topics/{name}/delete", "", self.delete_topic),
            ("/delete-group/{name:path}", "", self.delete_group),
        ):
            self._add(routes, path, template, ready)
        return routes

    def _add(self, routes: APIRouter, path: str, template: str, ready: Callable[..., Change]) -> None:
        """The routes of a form: one shows it, one takes what it sends, or shows it with that and what is wrong. Without
        a `template` there is nothing to fill in, and one asks at once whether it is meant."""

        def show(request: Request) -> Response:
            if not template:
                return self._confirm(request, ready(form={}, **request.path_params), {}, can_edit=False)
            return self._show(request, template, {})

        def taken(request: Request, form: Form) -> Response:
            if template and form.get("edit"):
                return self._show(request, template, form)
            try:
                return self._ask_or_do(request, form, ready(form=form, **request.path_params), can_edit=bool(template))
            except PykafkaError as error:
                if not template:
                    raise
                return self._show(request, template, form, error)

        routes.add_api_route(path, show)
        routes.add_api_route(path, taken, methods=["POST"])

    def _show(
        self, request: Request, template: str, typed: Mapping[str, Any], problem: PykafkaError | None = None
    ) -> Response:
        return self._render(
            request,
            template,
            problem=problem,
            typed=defaultdict(str, typed),
            name=request.path_params.get("name", ""),
            targets={one: words for one, (words, _) in _RESETS.items()},
            every=0,
        )

    # --- topics

    def new_topic(self, form: Form) -> Change:
        name = _text(form, "name")
        if not name:
            raise ConfigError("a topic needs a name")
        check_topic_name(name)
        settings = _settings(_text(form, "settings"))
        new = NewTopic(name, _number(form, "partitions", -1, _MOST), _number(form, "replication", -1, _MOST), settings)
        if not _is_confirmed(form):
            self._console.ask(lambda admin: admin.create_topics([new], validate_only=True))
        partitions = "the default number of partitions" if new.partitions < 0 else counted(new.partitions, "partition")
        replicas = "the default number of replicas" if new.replication < 0 else counted(new.replication, "replica")
        sentence = f"Create the topic {name} with {partitions} and {replicas} of each."
        return Change(
            sentence,
            lambda: self._console.create_topic(new),
            f"/topics/{segment(name)}",
            ("setting", "value"),
            list(settings.items()),
        )

    def settings(self, name: str, form: Form) -> Change:
        settings = _settings(_text(form, "settings"))
        deleted = _text(form, "deleted").split()
        if not settings and not deleted:
            raise ConfigError("name a setting to change, or one to set back to the default")
        if not _is_confirmed(form):
            self._console.ask(
                lambda admin: admin.alter_configs(
                    ResourceType.TOPIC, name, settings, delete=deleted, validate_only=True
                )
            )
        now = {one.name: one.value for one in self._console.topic_settings(name)}
        rows: list[tuple[object, ...]] = [(key, now.get(key, ""), value) for key, value in settings.items()]
        rows += [(key, now.get(key, ""), "the default") for key in deleted]
        return Change(
            f"Change settings of the topic {name}.",
            lambda: self._console.change(
                lambda admin: admin.alter_configs(ResourceType.TOPIC, name, settings, delete=deleted)
            ),
            f"/topics/{segment(name)}/settings",
            ("setting", "from", "to"),
            rows,
        )

    def delete_topic(self, name: str, form: Mapping[str, Any]) -> Change:
        if not _is_confirmed(form):
            self._console.ask(lambda admin: admin.cluster.topic(name))  # it must exist
        topic = self._console.sampler.watch().topics.get(name)
        known = None if topic is None else topic.records
        records = " and its records" if known is None else f" with at most {counted(known, 'record')}"
        return Change(
            f"Delete the topic {name}{records}. Nothing brings them back.",
            lambda: self._console.change(lambda admin: admin.delete_topics([name])),
            "/topics",
        )

    # --- records

    def produce(self, name: str, form: Form) -> Change:
        key, value = _text(form, "key"), _text(form, "value", strip=False)
        headers = [(header, text.encode()) for header, text in _settings(_text(form, "headers")).items()]
        is_tombstone, partition = bool(form.get("tombstone")), _number(form, "partition", -1)
        content = None if is_tombstone else value.encode()
        existing = self._console.ask(lambda admin: admin.cluster.topic(name)).partitions
        if partition >= 0 and partition not in existing:
            raise ConfigError(f"partition={partition}: {name} has {len(existing)} partitions, the first of which is 0")

        def send() -> None:
            where = None if partition < 0 else partition
            record = RecordToSend(key.encode() or None, content, where, headers)
            self._console.send(name, record).result(DELIVERED_S)

        what = "a tombstone" if content is None else f"a record of {len(content)} bytes"
        where = "" if partition < 0 else f", partition {partition}"
        return Change(
            f"Write {what} with {f'the key {key}' if key else 'no key'} to the topic {name}{where}.",
            send,
            f"/topics/{segment(name)}/records?limit=5",
        )

    def delete_records(self, name: str, form: Form) -> Change:
        wanted = _text(form, "partitions")
        before = _number(form, "before", HIGH_WATERMARK)

        def ranges(admin: Admin) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            indexes = (
                [number("partitions", one) for one in wanted.split(",")] if wanted else admin.cluster.partitions(name)
            )
            tps = [TopicPartition(name, index) for index in indexes]
            return offsets_at(admin.cluster, tps, EARLIEST), offsets_at(admin.cluster, tps, LATEST)

        starts, ends = self._console.ask(ranges)
        for tp, end in sorted(ends.items()):
            if before > end:
                raise ConfigError(f"before={before}: {tp} ends at offset {end}")
        text = "all records" if before == HIGH_WATERMARK else f"all records before offset {before}"
        return Change(
            f"Delete {text} of {len(starts)} partitions of the topic {name}. Nothing brings them back.",
            lambda: self._console.change(lambda admin: admin.delete_records(dict.fromkeys(starts, before))),
            f"/topics/{segment(name)}",
            ("partition", "starts at", "ends at"),
            [(tp.partition, start, ends[tp]) for tp, start in sorted(starts.items())],
        )

    # --- groups

    def reset(self, name: str, form: Form) -> Change:
        target = next((one for one in _RESETS if one == _text(form, "target")), None)
        if target is None:
            raise ConfigError(f"target={_text(form, 'target')}: must be one of {', '.join(_RESETS)}")
        value = _reset_value(target, _text(form, "number"))
        meant = moment_text(value) if target is ResetTarget.TO_DATETIME else value
        topic = _text(form, "topic")

        def moves(admin: Admin) -> list[Move]:
            refuse_members(admin, name)
            known = admin.group_offsets(name)
            if topic:
                partitions = [TopicPartition(topic, index) for index in admin.cluster.partitions(topic)]
            else:
                partitions = sorted(known)
            if not partitions:
                raise ConfigError(f"group {name!r} has no offsets: name a topic")
            moved = new_offsets(admin, known, partitions, target, value)
            starts, ends = (offsets_at(admin.cluster, sorted(moved), at) for at in (EARLIEST, LATEST))
            return [Move(tp, known.get(tp), moved[tp], starts[tp], ends[tp]) for tp in sorted(moved)]

        found = self._console.ask(moves)
        moved = {one.tp: one.to for one in found}
        return Change(
            f"Reset the offsets of the group {name} in {len(moved)} partitions {_RESETS[target][1].format(meant)}. "
            + summary(found),
            lambda: self._console.change(lambda admin: admin.alter_group_offsets(name, moved)),
            f"/groups/{segment(name)}",
            HEAD,
            [one.cells for one in found],
            words=1,
        )

    def delete_group(self, name: str, form: Mapping[str, Any]) -> Change:
        def known(admin: Admin) -> dict[TopicPartition, int]:
            refuse_members(admin, name)
            return admin.group_offsets(name)

        offsets = self._console.ask(known)
        if not (_is_confirmed(form) or offsets or name in self._console.sampler.watch(groups=True).groups):
            raise BrokerError(ErrorCode.group_id_not_found, f"there is no group {name!r}")
        return Change(
            f"Delete the group {name} with its committed offsets in {counted(len(offsets), 'partition')}. "
            "Who reads with it again begins where auto.offset.reset says.",
            lambda: self._console.change(lambda admin: admin.delete_group(name)),
            "/groups",
            ("partition", "committed"),
            sorted(offsets.items()),
        )

    # --- asking and doing

    def _ask_or_do(self, request: Request, form: Mapping[str, Any], change: Change, *, can_edit: bool) -> Response:
        token = _text(form, "once")
        if not _is_confirmed(form):
            return self._confirm(request, change, form, can_edit=can_edit)
        if self._is_first(token):
            try:
                change.perform()
            except Exception:
                self._done.pop(token, None)  # it may be tried again
                raise
        return RedirectResponse(change.address, 303)

    def _is_first(self, token: str) -> bool:
        """Whether a confirmation comes for the first time: a double click sends it twice. A program may send none."""
        with self._lock:
            if not token:
                return True
            if token in self._done:
                return False
            self._done[token] = None
            while len(self._done) > _REMEMBERED:
                self._done.pop(next(iter(self._done)))
            return True

    def _confirm(self, request: Request, change: Change, form: Mapping[str, Any], *, can_edit: bool) -> Response:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        fields["once"] = secrets.token_urlsafe(12)
        return self._render(request, "confirm.html", change=change, fields=fields, can_edit=can_edit, every=0)


def _is_confirmed(form: Mapping[str, Any]) -> bool:
    return form.get("confirmed") == "yes"


def _reset_value(target: ResetTarget, text: str) -> int:
    """The offset, time (ms) or difference. Raises ConfigError for one that is lacking, and for one without a use."""
    if target in (ResetTarget.TO_EARLIEST, ResetTarget.TO_LATEST):
        if text:
            raise ConfigError(
                f"number={text[:40]}: {_RESETS[target][0]} takes none; choose an offset or a time, or clear it"
            )
        return 0
    if target is ResetTarget.TO_DATETIME:
        return in_range("to", parse_time("to", text[:40]))
    if not text:
        raise ConfigError(f"number: say which; {_RESETS[target][0]}")
    return number("number", text)


def _text(form: Mapping[str, Any], name: str, *, strip: bool = True) -> str:
    value = form.get(name, "")
    text = value.replace("\r\n", "\n") if isinstance(value, str) else ""  # browsers send every line break as two bytes
    return text.strip() if strip else text


def _number(form: Mapping[str, Any], name: str, default: int, most: int = 2**63 - 1) -> int:
    text = _text(form, name)
    value = number(name, text) if text else default
    if value > most:
        raise ConfigError(f"{name}={value}: at most {most}")
    return value


def _settings(text: str) -> dict[str, str]:
    """One `name=value` per line."""
    return parse_pairs([line.strip() for line in text.splitlines() if line.strip()], "line")
