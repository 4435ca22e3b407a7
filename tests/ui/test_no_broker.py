"""What the console shows while no broker has answered: that nothing is known, not that there is nothing."""

from __future__ import annotations

import re
import socket

from tests.support.ui_process import UiProcess


def test_what_is_not_known_is_not_zero() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, UiProcess(f"127.0.0.1:{silent.getsockname()[1]}") as ui:
        overview = ui.get("/").text
        figures = re.findall(r"<dt>([^<]*)</dt><dd>(.*?)</dd>", overview)
        assert {name: re.sub("<[^>]*>", "", value) for name, value in figures} == dict.fromkeys(
            ("Brokers", "Controller", "Topics", "Partitions", "Under-replicated", "Without leader", "Groups"), "?"
        )
        for page, text in (
            ("/", "No group is behind."),
            ("/topics", "There are no topics."),
            ("/groups", "no groups."),
        ):
            assert text not in ui.get(page).text
            assert "They are not known." in ui.get(page).text
        assert not re.search(r"^kafka_brokers \d", ui.get("/metrics").text, re.MULTILINE)
