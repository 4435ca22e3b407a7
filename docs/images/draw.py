"""Makes the pictures of the documents: `python docs/images/draw.py`, which `make docs` runs, draws the figures as SVG,
light and dark, and fails if the pictures of the console lack one of its tabs. `--console` takes those anew, in minutes,
and writes the list of them into the page about the console.

A figure is boxes and arrows (`overview`), a stack of layers (`layers`), or a sequence (`sequence`): columns that send
each other messages, in order.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


class Colours(NamedTuple):
    """Of one of the two looks."""

    text: str
    faint: str
    line: str
    box: str
    strong: str
    alert: str


LOOKS = {
    "light": Colours("#1f2430", "#5b6472", "#8a94a6", "#f3f5f9", "#2b6cb0", "#c53030"),
    "dark": Colours("#e6e9ef", "#a3adbd", "#6f7a8c", "#2a303c", "#63b3ed", "#fc8181"),
}


class Message(NamedTuple):
    """An arrow from one column to another, or a note in one when both are the same."""

    sender: int
    receiver: int
    text: str
    alert: bool = False


def sequence(columns: list[str], messages: list[Message], look: Colours, width: int = 960) -> str:
    step, top = 44, 60
    height = top + step * len(messages) + 30
    at = [width * (2 * one + 1) / (2 * len(columns)) for one in range(len(columns))]
    half_box = width / len(columns) / 2 - 7
    parts = []
    for x, name in zip(at, columns, strict=True):
        parts.append(
            f'<line x1="{x}" y1="44" x2="{x}" y2="{height - 10}" stroke="{look.line}" stroke-dasharray="3 4"/>'
        )
        parts.append(_box(x - half_box, 8, 2 * half_box, 36, look))
        parts.append(_text(x, 31, name, look.text, weight=600))
    for number, message in enumerate(messages):
        y = top + step * number + 30
        colour = look.alert if message.alert else look.strong
        start, end = at[message.sender], at[message.receiver]
        label = f"{number + 1}. {message.text}"
        if start == end:
            room = 7.1 * len(label) + 16
            left = min(max(start - room / 2, 4), width - room - 4)
            parts.append(
                f'<rect x="{left}" y="{y - 18}" width="{room}" height="26" rx="5" fill="{look.box}" stroke="{colour}"/>'
            )
            parts.append(_text(left + room / 2, y, label, look.text))
        else:
            tip = end - 7 if end > start else end + 7
            parts.append(f'<line x1="{start}" y1="{y}" x2="{tip}" y2="{y}" stroke="{colour}" stroke-width="1.6"/>')
            parts.append(_tip(end, y, 1 if end > start else -1, colour))
            half = 3.6 * len(label)
            middle = min(max((start + end) / 2, half + 4), width - half - 4)
            parts.append(_text(middle, y - 7, label, look.text))
    return _svg(width, height, parts)


DESTINATIONS: list[tuple[str, str, set[str]]] = [
    ("Iceberg", "in a catalog", {"iceberg"}),
    ("Delta", "disk, HDFS, S3", {"delta"}),
    ("Files", "Parquet, JSON, …", {"parquet", "json", "orc", "avro"}),
    ("Database", "through SQL", {"sql"}),
]
"""Of the overview: name, what it is, and the formats of loads that it stands for."""


def overview(look: Colours) -> str:
    """The whole of pykafka."""
    parts = [
        _panel(20, 20, 250, 330, "Clients", look),
        *_lines(45, 70, 200, ["any Kafka client", "producers, consumers"], look),
        *_lines(45, 150, 200, ["pykafka console", "terminal and browser"], look),
        *_lines(45, 230, 200, ["PySpark", 'format("pykafka")', "read, stream, write, load"], look, height=90),
        _panel(380, 20, 250, 330, "Broker (or Apache Kafka)", look),
        *_lines(405, 70, 200, ["Kafka's protocol", "over TLS, SASL"], look),
        *_lines(405, 150, 200, ["coordinators", "groups, queues, transactions"], look),
        *_lines(405, 230, 200, ["partition logs", "append-only segments,", "retention, compaction"], look, height=90),
        *_service(20, "ZooKeeper", "who is there, topics", look),
        *_service(105, "Another cluster", "same topics and groups", look),
        *_service(190, "Archive", "S3, HDFS, a directory", look),
        *_service(275, "Schema registry", "Avro, Protobuf, JSON", look),
        *_arrow(270, 100, 380, 100, "records", look, both=True),
        *_arrow(270, 275, 380, 275, "record batches", look, both=True),
        *_arrow(630, 52, 740, 52, "registers", look),
        *_arrow(630, 137, 740, 137, "mirror", look, both=True),
        *_arrow(630, 222, 740, 222, "old segments", look, both=True),
    ]
    # From PySpark below the broker: to the registry beside it, and down to where loads go.
    parts.append(f'<path d="M 195 350 V 372 H 840 V 348" fill="none" stroke="{look.strong}" stroke-width="1.8"/>')
    parts.append(f'<path d="M 840 341 l -5 9 h 10 z" fill="{look.strong}"/>')
    parts.append(_text(505, 366, "schemas by id", look.text))
    parts.append(f'<path d="M 95 350 V 464 H 373" fill="none" stroke="{look.strong}" stroke-width="1.8"/>')
    parts.append(_tip(380, 464, 1, look.strong))
    parts.append(_text(238, 455, "exactly once", look.text))
    parts.append(_panel(380, 394, 560, 150, "Loads: rows and offsets in one commit", look))
    for row, (name, where, _) in enumerate(DESTINATIONS):
        parts += _lines(397 + 133 * row, 436, 125, [name, where], look, height=56)
    parts.append(_text(660, 515, "list, verify, rewind, compact; bad records in a table of their own", look.faint))
    parts.append(_text(660, 533, "read by Spark, DuckDB, polars, pandas", look.faint))
    return _svg(960, 558, parts)


def _service(y: float, title: str, text: str, look: Colours) -> list[str]:
    """A box at the right, for what runs beside the broker."""
    return _lines(740, y, 200, [title, text], look)


def layers(look: Colours) -> str:
    """The folders of broker/ and spark_connector/: each imports only what lies below it."""
    parts, height, gap = [], 40, 8
    for row, boxes in enumerate(LAYERS):
        y = 16 + row * (height + gap)
        for start, width, name, is_connector in boxes:
            x, room = 20 + start * 92, width * 92 - gap
            parts.append(_box(x, y, room, height, look, look.strong if is_connector else ""))
            parts.append(_text(x + room / 2, y + 25, name, look.text, weight=600))
    return _svg(960, 16 + len(LAYERS) * (height + gap) + 8, parts)


def _panel(x: float, y: float, width: float, height: float, title: str, look: Colours) -> str:
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="none" stroke="{look.line}"/>'
    return frame + _text(x + width / 2, y + 28, title, look.text, weight=700, size=15)


def _lines(x: float, y: float, width: float, lines: list[str], look: Colours, height: float = 64) -> list[str]:
    first = y + height / 2 - 9 * (len(lines) - 1) + 4
    texts = [_text(x + width / 2, first, lines[0], look.text, weight=600)]
    texts += [_text(x + width / 2, first + 18 * row, line, look.faint) for row, line in enumerate(lines[1:], start=1)]
    return [_box(x, y, width, height, look), *texts]


def _arrow(x: float, y: float, to: float, y2: float, label: str, look: Colours, both: bool = False) -> list[str]:
    parts = [f'<line x1="{x + 7}" y1="{y}" x2="{to - 7}" y2="{y2}" stroke="{look.strong}" stroke-width="1.8"/>']
    parts += [_tip(to, y2, 1, look.strong)] + ([_tip(x, y, -1, look.strong)] if both else [])
    return [*parts, _text((x + to) / 2, y - 9, label, look.text)]


def _tip(x: float, y: float, direction: int, colour: str) -> str:
    return f'<path d="M {x} {y} l {-9 * direction} -5 v 10 z" fill="{colour}"/>'


def _box(x: float, y: float, width: float, height: float, look: Colours, line: str = "") -> str:
    size = f'width="{width}" height="{height}" rx="7"'
    return f'<rect x="{x}" y="{y}" {size} fill="{look.box}" stroke="{line or look.line}"/>'


def _text(x: float, y: float, text: str, colour: str, weight: int = 400, size: int = 13) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="middle" font-size="{size}" font-weight="{weight}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def _svg(width: float, height: float, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{escape(FONT)}">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


LAYERS = [
    [(0, 7, "tools", False)],
    [(0, 5, "server", False)],
    [(0, 2.5, "api", False), (2.5, 2.5, "web", False)],
    [(0, 5, "share", False)],
    [(0, 5, "coordinator", False)],
    [(0, 5, "cluster", False)],
    [(0, 5, "zookeeper", False)],
    [(0, 5, "replica", False)],
    [(0, 5, "archive", False)],
    [(0, 5, "log", False), (5, 2, "mirror", False), (7, 3, "spark_connector", True)],
    [(0, 5, "net", False), (5, 5, "client", False)],
    [(0, 10, "records", False)],
    [(0, 10, "protocol", False)],
    [(0, 10, "base: errors, clock, config, settings, security, metrics, …", False)],
]
"""From the top: (first column, columns, name, whether it is the connector) of each layer; ten columns in all."""

SEQUENCES = {
    "produce-and-fetch": (
        ["Producer", "Connection", "API handler", "Partition", "Log", "Consumer"],
        [
            Message(5, 1, "Fetch, offset 7: nothing there yet"),
            Message(1, 2, "request"),
            Message(2, 3, "wait for more bytes"),
            Message(0, 1, "Produce: a frame"),
            Message(1, 2, "request"),
            Message(2, 2, "check every record"),
            Message(2, 3, "append"),
            Message(3, 4, "offsets, write, index"),
            Message(3, 2, "wake the waiting fetch"),
            Message(2, 0, "base offset 7"),
            Message(2, 3, "read from offset 7"),
            Message(3, 4, "find the position"),
            Message(2, 1, "a range of the file"),
            Message(1, 5, "sendfile"),
        ],
    ),
    "micro-batch": (
        ["Spark", "Driver's reader", "Task", "Brokers", "Driver's writer"],
        [
            Message(0, 1, "latestOffset(start)"),
            Message(1, 3, "where do the topics end?"),
            Message(0, 0, "writes the end into its checkpoint"),
            Message(0, 1, "partitions(start, end)"),
            Message(0, 2, "a range of offsets"),
            Message(2, 3, "fetch, decode to Arrow"),
            Message(2, 3, "open a transaction, write rows"),
            Message(2, 0, "report with the transaction's handle"),
            Message(0, 4, "commit(batch, reports)"),
            Message(4, 3, "record the decision"),
            Message(4, 3, "end every transaction"),
            Message(0, 0, "writes the commit into its checkpoint"),
        ],
    ),
    "exactly-once-load": (
        ["Load 1", "Brokers", "Staging", "Commit log", "Load 2"],
        [
            Message(0, 3, "which number is next?  7"),
            Message(0, 1, "what is new?"),
            Message(0, 2, "intent: what will be loaded"),
            Message(0, 2, "Tasks write the rows"),
            Message(0, 2, "manifest: rows are counted"),
            Message(0, 3, "commit 7: offsets and load"),
            Message(0, 0, "killed before the rename", alert=True),
            Message(4, 3, "newest commit?  7, unpublished"),
            Message(4, 2, "publish 7: rename its directory"),
            Message(4, 3, "which number is next?  8"),
            Message(4, 1, "what is new?"),
        ],
    ),
}


def pictures() -> dict[str, str]:
    """File name → SVG."""
    drawn = {}
    for name, look in LOOKS.items():
        drawn[f"overview-{name}.svg"] = overview(look)
        drawn[f"layers-{name}.svg"] = layers(look)
        drawn |= {f"{title}-{name}.svg": sequence(*parts, look) for title, parts in SEQUENCES.items()}
    return drawn


# --- the console's pictures

TAKEN = HERE / "console-pictures.json"
"""The tabs that the console had when its pictures were taken, and of each picture its name and what it shows."""
_NAVIGATION = HERE.parents[1] / "pykafka_ui" / "templates" / "base.html"
_PAGE = HERE.parent / "how-to" / "browser-console.md"
_GALLERY = "## Pictures of its pages\n"


def tabs() -> dict[str, str]:
    """Name → address of the tabs that the console has."""
    found = re.findall(r'\("(/\w*)", "(\w+)"\)', _NAVIGATION.read_text(encoding="utf-8"))
    if not found:
        sys.exit(f"no tab is found in {_NAVIGATION}: `tabs` in {__file__} is to read it as it is now")
    return {name: path for path, name in found}


def missing_tabs() -> list[str]:
    """The tabs of the console that its pictures do not show."""
    return [tab for tab in tabs() if tab not in json.loads(TAKEN.read_text(encoding="utf-8"))["tabs"]]


def with_gallery(page: str) -> str:
    """The page about the console, whose last part shows the pictures that the parts before do not show."""
    before = page.partition(_GALLERY)[0]
    shown = [f"{before}{_GALLERY}"]
    for name, caption in json.loads(TAKEN.read_text(encoding="utf-8"))["pictures"].items():
        file = f"../images/ui-{name}"
        if f"{file}-light.png" not in before:
            dark = f'<source media="(prefers-color-scheme: dark)" srcset="{file}-dark.png">'
            light = f'<img alt="{escape(caption)}" src="{file}-light.png">'
            shown.append(f"{caption}:\n\n<picture>\n  {dark}\n  {light}\n</picture>\n")
    return "\n".join(shown)


def take_console() -> None:
    """Takes all pictures of the console, forgets those that it no longer has, and writes down which these are."""
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.support.screenshots import take  # a cluster and a browser, which the figures do without

    shown = tabs()
    taken = take(HERE, shown)
    for file in HERE.glob("ui-*.png"):
        if file.stem.removeprefix("ui-").rpartition("-")[0] not in taken:
            file.unlink()
    written = json.dumps({"tabs": list(shown), "pictures": taken}, indent=1)
    TAKEN.write_text(f"{written}\n", encoding="utf-8")
    _PAGE.write_text(with_gallery(_PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def main(arguments: list[str]) -> None:
    for file, svg in pictures().items():
        (HERE / file).write_text(svg, encoding="utf-8")
    if "--console" in arguments:
        take_console()
    if missing := missing_tabs():
        sys.exit(f"pictures of the console lack {', '.join(missing)}: run `make pictures`")


if __name__ == "__main__":
    main(sys.argv[1:])
