"""``milecastle dev``, in processes of its own: change the code, break it, kill the parent."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.acceptance.server.processes import LIMIT, ROOT, Process
from tests.postgres_cluster import wait_until

FLOW = """
from typing import TypedDict
from milecastle import END, START, StateGraph

class Note(TypedDict, total=False):
    text: str

graph = StateGraph(Note, name="notes")

@graph.node
def write(state: Note) -> dict:
    return {"text": "WORD"}

graph.add_edges(START, "write", END)
"""
OPENED = "import pathlib, sys; pathlib.Path('opened').write_text(sys.argv[1])"
"""A browser: it writes down what it was asked to open."""


class Dev(NamedTuple):
    """A folder with code, `dev` in it, and a browser that is logged in."""

    folder: Path
    process: Process
    browser: httpx.Client

    def write(self, word: str) -> None:
        text = FLOW.replace("WORD", word)
        self.folder.joinpath("flow.py").write_text(text, encoding="utf-8")

    def run(self, thread: str) -> Any:
        """What the node of a new run returns."""
        path = f"/v1/threads/{thread}/runs?wait=30"
        answer = self.browser.post(path, json={"input": {}})
        assert answer.status_code == 200, answer.text
        return answer.json()["state"]["text"]


def started(folder: Path, *options: str, how: str = "honest") -> Process:
    """`dev` in a folder with code and a browser."""
    folder.joinpath("flow.py").write_text(FLOW.replace("WORD", "one"), encoding="utf-8")
    folder.joinpath("browser.py").write_text(OPENED, encoding="utf-8")
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {name: os.environ[name] for name in os.environ if "MILECASTLE" not in name}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["BROWSER"] = f"{sys.executable} {folder / 'browser.py'} %s"
    settings = {"cwd": folder, "env": environment}
    return Process("dev", "flow:graph", "--port", "0", *options, how=how, **settings)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    process = started(tmp_path)
    try:
        process.said(r"serving notes on http://\S+\n")
        wait_until((tmp_path / "opened").exists, LIMIT)
        wait_until(lambda: bool((tmp_path / "opened").read_text("utf-8")), LIMIT)
        url = (tmp_path / "opened").read_text("utf-8")
        with httpx.Client(base_url=url.partition("?")[0], timeout=LIMIT) as browser:
            assert browser.get(url).status_code == 303
            yield Dev(tmp_path, process, browser)
    finally:
        process.kill()


def test_a_change_of_the_code_is_run_next_and_the_browser_stays_logged_in(dev: Dev) -> None:
    """Fails if files are not watched, or if each child makes its own token."""
    assert dev.run("first") == "one"
    dev.write("two, changed")
    dev.process.said(r"flow\.py has changed: restarting(?s:.)*serving notes")
    assert dev.run("second") == "two, changed"
    page = dev.browser.get("/threads", headers={"Accept": "text/html"})
    assert page.status_code == 200
    assert "first" in page.text
    assert dev.folder.joinpath("runs.db").exists()
    assert dev.process.stop() == 0
    assert "token" not in dev.process.log.replace("/?token=", "")


def test_broken_code_is_reported_and_requests_wait_until_it_is_fixed(dev: Dev) -> None:
    """Fails if `dev` ends with its child, or if the socket is the child's."""
    dev.folder.joinpath("flow.py").write_text("def broken(:\n", encoding="utf-8")
    assert "SyntaxError" in dev.process.said(r"cannot be imported: .*\n")
    dev.process.said("waiting for a change")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(dev.run, "first")
        dev.write("fixed")
        assert waiting.result(LIMIT) == "fixed"


def test_the_server_ends_if_the_parent_is_killed(dev: Dev) -> None:
    """Fails if the child does not watch its pipe: then it serves on."""
    address = dev.browser.base_url.host, dev.browser.base_url.port or 0
    dev.process.kill()

    def is_refused() -> bool:
        with socket.socket() as one:
            return one.connect_ex(address) != 0

    wait_until(is_refused, LIMIT)


def test_ctrl_c_while_the_server_starts_waits_for_its_end(tmp_path: Path) -> None:
    """Failed with an exception: the process was not known yet, and `dev` ended before it."""
    process = started(tmp_path, "--no-browser", how="pressed-at-the-start")
    try:
        child = int(process.said(r"child (\d+)\n"))
        assert process.ended() == 0
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        assert process.said("stopped\n")
    finally:
        process.kill()


def test_ctrl_c_where_exceptions_are_ignored_is_not_lost(tmp_path: Path) -> None:
    """Failed with an exception: Python printed and forgot it, and `dev` went on."""
    process = started(tmp_path, "--no-browser", how="pressed-in-a-finalizer")
    try:
        assert process.ended() == 0
        assert process.said("stopped\n")
    finally:
        process.kill()
