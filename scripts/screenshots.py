"""Pictures of every page of the web view: light and dark, for a desk and for a phone.

`just screenshots` writes them into docs/images/web, or into the folder that is given. Look at them
after a change of a template or of the style sheet. The only thing that is changed for a picture is
what names this machine: its folders and its host.
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired, TypedDict

import httpx
from playwright.sync_api import Browser, FloatRect, sync_playwright

from milecastle import END, START, StateGraph, append, interrupt
from tests.acceptance.server.processes import LIMIT, Process, is_ready
from tests.browser.browsing import FLAGS, SCHEMES, SEEN
from tests.postgres_cluster import wait_until

WIDTHS: Final = (1280, 400)
TOP: Final[FloatRect] = {"x": 0, "y": 0, "width": 1280, "height": 1390}
"""The part of the thread page that the README shows."""
TAGS: Final = ("express", "customer 4711")
HERE: Final = {
    str(Path(__file__).parents[1]): "/app",
    sys.base_prefix: "/usr",
    f">{socket.gethostname()}, ": ">host, ",
    f">{Path(__file__).parents[1].name}/": ">app/",
}
"""What names this machine, and what a picture shows in its place."""
_HIDE: Final = """names => {
    const hide = () => {
        for (const [name, shown] of Object.entries(names))
            for (const element of document.querySelectorAll("main :is(pre, td, .sub, .trace li)"))
                if (element.outerHTML.includes(name))
                    element.outerHTML = element.outerHTML.replaceAll(name, shown);
    };
    hide();
    new MutationObserver(hide).observe(
        document.body, {subtree: true, childList: true, characterData: true});
}"""
"""Also in what a live page writes again before its picture is taken."""


class Order(TypedDict):
    """An order."""

    item: str
    pieces: int
    log: Annotated[list[str], append]
    price: NotRequired[float]


graph: StateGraph[Order] = StateGraph(Order, name="orders")


@graph.node
def pack(state: Order) -> dict[str, Any]:
    """Pack it."""
    return {"log": [f"packed {state['pieces']} x {state['item']}"]}


@graph.node
def price(state: Order) -> dict[str, Any]:
    """Fail if there is no price."""
    if state["item"] == "unicorn":
        raise LookupError("there is no price for it")
    return {"price": 19.5 * state["pieces"], "log": ["priced"]}


@graph.node
def approve(state: Order) -> dict[str, Any]:
    """Ask if it is large."""
    if state["pieces"] > 5:
        interrupt(
            f"Ship {state['pieces']} pieces?", answer=bool, show={"price": state.get("price")}
        )
    return {"log": ["approved"]}


@graph.node
def ship(state: Order) -> dict[str, Any]:
    """Ship it."""
    return {"log": ["shipped"]}


graph.add_edges(START, "pack", "price", "approve", "ship", END)


@contextmanager
def serving(folder: str) -> Generator[tuple[httpx.Client, str], None, None]:
    """A server with some orders: its client and its start URL."""
    store = f"sqlite:///{folder}/runs.db"
    process = Process("serve", "scripts.screenshots:graph", "--store", store, "--port", "0")
    try:
        url = process.said(r"serving orders on (http://\S+)\n")
        root, _, token = url.partition("?token=")
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=root, headers=headers, timeout=LIMIT) as client:
            wait_until(lambda: is_ready(client), LIMIT)
            for number, item in enumerate(("lamp", "table", "unicorn", "chair", "shelf") * 3):
                given: dict[str, Any] = {"item": item, "pieces": number % 8, "log": []}
                path = f"/v1/threads/order-{1001 + number}/runs?wait=60"
                client.post(path, json={"input": given, "tags": TAGS[: number % 3]})
            yield client, url
    finally:
        process.kill()


def places(client: httpx.Client) -> dict[str, str]:
    """Each page by a short name, with samples in its path."""
    job = client.post("/v1/runs/cancel", json={"status": "queued"}).json()["job"]
    samples = {"thread": "order-1007", "graph": "orders", "job": job}
    named = {re.sub(r"\W+", "-", path).strip("-"): path.format(**samples) for path in SEEN}
    return {**named, "failed-thread": "/threads/order-1003"}


def shoot(browser: Browser, start: str, pages: dict[str, str], folder: Path) -> None:
    """Write the pictures."""
    root = start.partition("/?")[0]
    for width in WIDTHS:
        for scheme in SCHEMES:
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme=scheme
            )
            page = context.new_page()
            page.goto(start)
            for name, path in pages.items():
                page.goto(root + path)
                page.evaluate(_HIDE, HERE)
                place = folder / f"{name}-{scheme}-{width}.png"
                page.screenshot(path=place, full_page=True, animations="disabled")
                if place.name == "threads-thread-light-1280.png":
                    readme = folder / "thread-page.png"
                    page.screenshot(path=readme, full_page=True, animations="disabled", clip=TOP)
            context.close()


def main(arguments: list[str]) -> int:
    """Write the pictures into a folder."""
    folder = Path(arguments[0] if arguments else "docs/images/web")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, serving(temporary) as (client, start):
        pages = places(client)
        with sync_playwright() as playwright:
            chromium = playwright.chromium
            browser = chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            shoot(browser, start, pages, folder)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
