"""The pictures of the console in the docs, which `docs/images/draw.py --console` (`make pictures`) takes.

Each tab has one, and so have pages behind them, light and dark; the overview also as on a phone. They show the real
cluster of busy_cluster.py, after long enough that the charts have a line.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, ViewportSize

from tests.support.busy_cluster import CATALOG, TABLE, busy_cluster
from tests.support.chromium import browser
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

LASTS_S = 150
BEHIND_TABS = {
    "topic": ("A topic", "/topics/flights"),
    "records": ("Records", "/topics/flights/records?limit=12&path=%24.dest&equals=LAX"),
    "typed-records": ("Avro values, decoded by the registry", "/topics/fares/records?limit=12"),
    "group": ("A group that falls behind", "/groups/delays"),
    "share-group": ("A share group", "/groups/ticket-desk"),
}
"""File's name → (caption, address) of pages that have no tab."""
PHONE = "overview"
WIDE, NARROW = ViewportSize(width=1200, height=760), ViewportSize(width=390, height=760)


def take(target: Path, tabs: Mapping[str, str]) -> dict[str, str]:
    """Write `ui-<name>-<scheme>.png` into `target`, of each of `tabs` (name → address) and of what is behind them.
    File's name → caption, in order. Raises AssertionError for a page that is an error."""
    series = {"at": f"{TABLE} in {CATALOG}", "group": "nightly"}
    pages = {name.lower(): (name, address) for name, address in tabs.items()}
    pages |= BEHIND_TABS | {"series": ("A series of loads", f"/loads/group?{urlencode(series)}")}
    with tempfile.TemporaryDirectory(prefix="lake-") as directory, busy_cluster(Path(directory)) as busy:
        places = [word for place in busy.loads for word in ("--loads", place)]
        given = ["--schema-registry", busy.registry, "--catalog", CATALOG, *places]
        with UiProcess(busy.bootstrap, *given) as ui:
            busy.console.set_result(ui.address)
            for _ in range(LASTS_S // 5):  # it looks at the cluster more often while somebody looks at it
                ui.get("/")
                busy.check()
                time.sleep(5)
            eventually(lambda: all(ui.get(address).status == 200 for _, address in pages.values()), 30)
            if table := re.search(r'href="(/loads/table\?[^"]*)"', ui.get(pages["series"][1]).text):
                pages["table"] = ("The table that it writes", unescape(table[1]))
            taken = _shoot(ui.address, pages, target)
            busy.check()
            return taken


def _shoot(address: str, pages: Mapping[str, tuple[str, str]], target: Path) -> dict[str, str]:
    with browser() as running:
        for scheme in ("light", "dark"):
            context = running.new_context(color_scheme=scheme, viewport=WIDE, reduced_motion="reduce")
            page = context.new_page()
            for name, (_, path) in pages.items():
                _open(page, f"{address}{path}", name)
                _keep(page, target / f"ui-{name}-{scheme}.png")
                if name == PHONE:
                    page.set_viewport_size(NARROW)
                    _open(page, f"{address}{path}", name)
                    _keep(page, target / f"ui-{name}-phone-{scheme}.png")
                    page.set_viewport_size(WIDE)
            context.close()
    captions = {name: caption for name, (caption, _) in pages.items()}
    return captions | {f"{PHONE}-phone": f"{captions[PHONE]} on a phone"}


def _open(page: Page, url: str, name: str) -> None:
    answer = page.goto(url)
    assert answer is not None
    assert answer.status == 200, f"{url}: {page.inner_text('main')[:300]}"
    page.wait_for_load_state("networkidle")
    if name == "records":
        page.locator("#records details").first.locator("summary").first.click()


def _keep(page: Page, file: Path) -> None:
    """As high as the page where that is short, and in 256 colours, of which it has fewer: a third of the bytes."""
    end = page.locator("footer").bounding_box()
    size = page.viewport_size
    assert end is not None
    assert size is not None
    height = min(size["height"], end["y"] + end["height"])
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": size["width"], "height": height})
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)
