"""A real headless Chromium and what it visits: the console of a real server over the default model, and of a script."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shoal import CognitiveRouter, DepthCache, GatedLLM, KnowledgeBase, default_embedder
from shoal.router.service.options import ServiceOptions
from shoal.router.traces import Recorder, TraceStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 45_000
HOSTILE = (
    "<script>window.owned = 1</script><img src=x onerror='window.owned = 1'> **bold** "
    "[link](javascript:window.owned=1) \x1b[31mred\x1b[2J \u202egnp.exe"
)
SHOWN = HOSTILE.replace("\x1b", "").replace("\u202e", "")


@pytest.fixture(scope="module")  # its event loop runs in this thread: tests elsewhere need their own
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    arguments = [
        "--disable-gpu",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]
    if os.geteuid() == 0:  # Chromium refuses its sandbox to root
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=found, args=arguments) as started:
        yield started


Visit = Callable[..., Any]


class Easy:
    """Depth scores by hand: what says zxq is hard."""

    fingerprint = "easy:1"

    def __call__(self, texts: Sequence[str]) -> list[float]:
        return [0.02 if "zxq" in text else 0.9 for text in texts]


@pytest.fixture
def visit(browser: "Browser") -> Visit:
    """`with visit(url, "#live", viewport=…) as page:` in a context of its own.

    At the end nothing may have been asked of another host, and the browser's console must be without errors, but for
    what `allow` names.
    """

    @contextmanager
    def start(url: str, page_name: str = "", *, allow: str = "-", **context: Any) -> Iterator["Page"]:
        troubles: list[str] = []
        asked: list[str] = []
        own = browser.new_context(**{"locale": "en-GB", "viewport": {"width": 1180, "height": 860}, **context})
        own.set_default_timeout(PATIENCE_MS)
        page = own.new_page()
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        try:
            page.goto(f"{url}/console{page_name}")
            yield page
            assert [each for each in troubles if allow not in each] == []
            assert {each for each in asked if not each.startswith(f"{url}/")} == set()
        finally:
            own.close()

    return start


@pytest.fixture(scope="session")
def site(llm: GatedLLM, tmp_path_factory: pytest.TempPathFactory, start_live: Any) -> Iterator[Any]:
    """A server with all its parts, over the default model."""
    home: Path = tmp_path_factory.mktemp("console")
    embed = default_embedder()
    kb = KnowledgeBase.open(home / "kb")
    kb.add_text("# Heron\n\nThe Heron lamp weighs 740 grams. Its cable is two metres long.", "heron.md")
    kb.add_text("# Otter\n\nThe Otter lamp weighs 120 grams and folds flat.", "otter.md")
    kb.add_text(f"# Trap\n\nThe Trap lamp says {HOSTILE} and weighs 5 grams.", "<b>trap</b>.md")
    kb.add_text(f"zxq {HOSTILE} zxq 0x17 zxq.", "<i>log</i>#1")
    kb.audit(Easy(), [])
    router = CognitiveRouter(
        llm=llm, kb=kb, cache=DepthCache(embed=embed, total=llm.total), embed=embed,
        recorder=Recorder(TraceStore(home / "traces.sqlite"), mode="light"),
    )  # fmt: skip
    with start_live(router, ServiceOptions(ledger_path=home / "ledger.sqlite")) as running:
        yield running
    kb.close()
    router.recorder.store.close()


def ask(page: "Page", question: str) -> Any:
    """Asks and waits for the end; the turn."""
    turns = page.locator(".turn")
    before = turns.count()
    page.locator("#profile option").first.wait_for(state="attached")
    page.fill("#question", question)
    page.press("#question", "Enter")
    turn = turns.nth(before)
    turn.locator(".answer[aria-busy=false]").wait_for()
    return turn


@pytest.fixture(name="ask", scope="session")
def ask_fixture() -> Any:
    return ask


@pytest.fixture(scope="session")
def hostile() -> tuple[str, str]:
    """A text that would like to be more than text, and how the page must show it."""
    return HOSTILE, SHOWN
