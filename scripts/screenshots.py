"""Pictures of the web view: those of the docs, or every page, light and dark, wide and narrow.

`just screenshots` writes those of the docs into docs/images/web; `just screenshots FOLDER` writes
every page into a folder, to look at after a change of a template or of the style sheet. The only
thing that is changed for a picture is what names this machine: its folders and its host.
"""

from __future__ import annotations

import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, sync_playwright

from scripts.shop import order
from tests.acceptance.server.processes import LIMIT, Process, is_ready
from tests.browser.browsing import FLAGS, SCHEMES, SEEN
from tests.postgres_cluster import wait_until

WIDTHS: Final = (1280, 400)
DOCS: Final = ("overview", "threads", "thread", "inbox", "failures")
"""The pages whose pictures are in the docs, wide as high as a window."""
HEIGHT: Final = 860
GRAPHS: Final = tuple(
    f"scripts.shop:{name}" for name in ("orders", "imports", "support", "payments", "parcels")
)
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


@contextmanager
def serving(folder: str) -> Generator[tuple[httpx.Client, str], None, None]:
    """A server of the shop, without a thread: its client and its start URL."""
    process = Process("serve", *GRAPHS, "--store", f"sqlite:///{folder}/runs.db", "--port", "0")
    try:
        url = process.said(r"serving .* on (http://\S+)\n")
        root, _, token = url.partition("?token=")
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=root, headers=headers, timeout=LIMIT) as client:
            wait_until(lambda: is_ready(client), LIMIT)
            yield client, url
    finally:
        process.kill()


def fill(client: httpx.Client) -> None:
    """Threads of every kind; what runs long is started last."""

    def call(path: str, **body: Any) -> Any:
        answer = client.post(f"/v1/threads/{path}", json=body)
        answer.raise_for_status()
        return answer.json()

    def run(thread: str, graph: str, given: Mapping[str, Any], *tags: str) -> None:
        call(f"{thread}/runs", graph=graph, input=given, tags=tags)

    def rests(thread: str, *statuses: str) -> Any:
        wait_until(lambda: status(thread) in statuses, LIMIT)
        return client.get(f"/v1/threads/{thread}").json()

    def status(thread: str) -> str:
        return str(client.get(f"/v1/threads/{thread}").json()["status"])

    rows: dict[str, Any] = {"pause": 0.0, "bad": [], "done": []}
    run("order-20418", "orders", order("Kestrel Books", 12, 2, "retries"), "express", "kestrel")
    run("order-20407", "orders", order("Osprey Tea", 3, 1, "price"), "express")
    for number, customer in enumerate(("Heron & Sons", "Wren Optics", "Finch Tools", "Teal Ltd")):
        run(f"order-{20411 + number}", "orders", order(customer, 2 + number, 1), "standard")
    for number in range(3):
        run(f"order-{20431 + number}", "orders", order("Osprey Tea", 2, 1, "price"), "nightly")
    run("order-20399", "orders", order("Martin Lamps", 2, 1, "late"))
    run("order-20390", "orders", order("Siskin Co", 2, 1, "label"))
    run("order-20402", "orders", order("Curlew Inns", 6, 5), "kestrel")
    for name, pieces in (("Plover", 11), ("Dunlin", 21)):
        run(f"order-{20500 + pieces}", "orders", order(f"{name} Hotels", 2, pieces), "express")
    bad = [7, 311, 312, 1200]
    run("import-monday", "imports", {**rows, "rows": [*range(2000)], "bad": bad})
    run("import-2025", "imports", {**rows, "rows": [1], "rounds": 400})
    said = {"role": "user", "content": "Two of the chairs in order 20377 arrived with broken legs."}
    run("support-8841", "support", {"messages": [said]}, "tier-2")
    rests("support-8841", "completed")
    time.sleep(6)
    refund = {"role": "user", "content": "The refund, please."}
    run("support-8841", "support", {"messages": [refund]})
    run("payment-77", "payments", {"order": "20418", "log": []})
    rests("payment-77", "sleeping")
    message = {"note": "The customer called about the invoice."}
    call("payment-77/messages", topic="notes", value=message, by="ada")
    run("parcels-9", "parcels", {"customer": "Kestrel", "halls": ["1", "2", "3"], "sent": []})
    rests("order-20402", "interrupted")
    call("order-20402/fork", at=4)
    call("order-20402/update", update={"risk": 0.12, "log": ["checked by ada"]})
    call("order-20402/retry")
    rests("order-20402", "interrupted")
    call("order-20402/fork", at=5, as_thread="order-20402-b")
    for name in ("order-20418", "support-8841"):
        rests(name, "interrupted")
    rests("import-2025", "completed")
    rests("import-monday", "failed")
    slow = {"rows": [*range(3000)], "pause": 0.25, "bad": [], "done": []}
    run("import-running", "imports", slow)
    time.sleep(12)


def places(client: httpx.Client) -> dict[str, str]:
    """Each page by a short name, with samples in its path."""
    job = client.post("/v1/runs/cancel", json={"status": "queued", "graph": "orders"}).json()["job"]
    samples = {"thread": "order-20418", "graph": "orders", "job": job}
    named = {re.sub(r"\W+", "-", path).strip("-"): path.format(**samples) for path in SEEN}
    threads = ("order-20407", "order-20390", "order-20411", "order-20399", "order-20402")
    others = ("import-monday", "import-running", "import-2025", "support-8841", "payment-77")
    long = client.get("/v1/threads/import-2025").json()["checkpoint"]["seq"]
    return {
        **named,
        "thread": "/threads/order-20418",
        "graph": "/graphs/orders",
        **{name: f"/threads/{name}" for name in (*threads, *others, "parcels-9")},
        "tab-changes": "/threads/order-20418?at=5&tab=changes",
        "tab-about": "/threads/order-20418?at=6&tab=about",
        "tab-raw": "/threads/order-20402?tab=raw",
        "axis-clock": "/threads/order-20402?axis=clock",
        "one-node": "/threads/order-20418?node=price",
        "form-fork": "/threads/order-20411?do=fork",
        "long-middle": f"/threads/import-2025?at={long // 2}",
        "compare-branches": "/compare?a=order-20402@8&b=order-20402",
        "chat": "/threads/support-8841/chat",
        "items-failed": "/threads/import-monday/items?item=311",
        "items-running": "/threads/import-running/items",
        "items-done": "/threads/order-20418/items",
        "thread-runs": "/threads/support-8841/runs",
        "threads-filtered": "/threads?q=status:failed+order",
        "graph-imports": "/graphs/imports",
    }


def shoot(
    browser: Browser, start: str, pages: Mapping[str, str], folder: Path, *, docs: bool
) -> None:
    """Write the pictures."""
    root = start.partition("/?")[0]
    for width in WIDTHS[:1] if docs else WIDTHS:
        for scheme in SCHEMES:
            context = browser.new_context(
                viewport={"width": width, "height": 800}, color_scheme=scheme
            )
            page = context.new_page()
            if not docs:
                page.goto(f"{root}/login")
                page.screenshot(path=folder / f"login-{scheme}-{width}.png", full_page=True)
            page.goto(start)
            for name, path in pages.items():
                page.set_viewport_size({"width": width, "height": HEIGHT})
                page.goto(root + path)
                page.evaluate(_HIDE, HERE)
                page.evaluate("new Promise(done => setTimeout(done, 300))")  # until it is live
                if not docs:  # what sticks to the bottom is there
                    height = page.evaluate("document.documentElement.scrollHeight")
                    page.set_viewport_size({"width": width, "height": height})
                place = folder / f"{name}-{scheme}-{width}.png"
                page.screenshot(path=place, animations="disabled")
            context.close()


def main(arguments: list[str]) -> int:
    """Write the pictures into a folder."""
    docs = not arguments
    folder = Path("docs/images/web" if docs else arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        serving(temporary) as (client, start),
        sync_playwright() as playwright,
    ):
        place = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=place, args=FLAGS)
        if not docs:
            shoot(browser, start, {"first": "/overview"}, folder, docs=False)
        fill(client)
        pages = places(client)
        wanted = {name: pages[name] for name in DOCS} if docs else pages
        shoot(browser, start, wanted, folder, docs=docs)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
