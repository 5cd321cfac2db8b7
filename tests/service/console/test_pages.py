"""All pages in a real browser: numbers, knowledge base, keys, phone width, keyboard, languages, accessibility."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from shoal.router.decision import Route
from shoal.router.features import Hints
from shoal.router.policy import PROFILES, Model, decide_budget
from shoal.router.service.console.files import FILES
from shoal.router.service.keys import create_key
from shoal.router.service.options import ServiceOptions

PAGES = ("#ask", "#live", "#knowledge")
OVERFLOW = "() => document.documentElement.scrollWidth - window.innerWidth"
PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


def open_page(page: Any, url: str, name: str) -> None:
    """The page of that name with something on it."""
    page.goto(f"{url}/console{name}")
    ready = {"#ask": "#composer", "#live": ".tile", "#knowledge": "#documents li"}[name]
    page.locator(ready).first.wait_for()


@pytest.mark.model
def test_the_live_page_tells_the_metrics(site: Any, visit: Any, ask: Any) -> None:
    with visit(site.url) as page:
        ask(page, "Hello! Who are you?")
        open_page(page, site.url, "#live")
        tiles = {
            tile.get_attribute("data-tile"): tile.locator("dd").inner_text() for tile in page.locator(".tile").all()
        }
        routes = dict(zip(page.locator("#by-route .name").all_inner_texts(),
                          page.locator("#by-route .share").all_inner_texts(), strict=True))  # fmt: skip
        with site.http() as http:
            lines = http.get("/metrics").text.splitlines()
            spent = http.get("/v1/usage?by=route").json()["rows"]
        answers = [line.rsplit(" ", 1) for line in lines if line.startswith("shoal_answers_total{")]
        assert int(tiles["answers"]) == sum(float(value) for _, value in answers) > 0
        for route, told in routes.items():
            counted = sum(float(value) for labels, value in answers if f'route="{route}"' in labels)
            assert int(told.split(" ·")[0]) == counted
        assert tiles["mode"] == "normal"
        assert tiles["queue"] == "0 / 0"
        assert "Depth of answers, in layers. " in (page.get_attribute("#by-depth .columns", "aria-label") or "")
        page.fill("#price-layer", "2")
        row = page.locator("#costs tbody tr").first.locator("td").all_inner_texts()
        booked = next(each for each in spent if each["route"] == row[0])
        assert float(row[6].replace(",", "")) == pytest.approx(booked["layer_tokens"] * 2 / 1000, abs=0.001)
        page.click("#pause")
        assert page.get_attribute("#pause", "aria-pressed") == "true"


@pytest.mark.model
def test_the_knowledge_base_is_searched_added_to_and_deleted_from(site: Any, visit: Any, tmp_path: Path) -> None:
    file = tmp_path / "wren.txt"
    file.write_text("The Wren lamp is made of oak.", "utf-8")
    with visit(site.url, "#knowledge") as page:
        page.locator("#documents li").first.wait_for()
        page.set_input_files("#files", file)
        page.fill("#doc-id", "灯/说明 1.md")
        page.fill("#doc-text", "鹪鹩灯的保修期是三年。")
        page.click("#add button")
        page.get_by_text("2 documents added").wait_for()
        page.fill("#query", "What is the Wren lamp made of?")
        page.press("#query", "Enter")
        page.locator(".passage", has_text="oak").wait_for()
        page.on("dialog", lambda dialog: dialog.accept())
        for name in ("wren.txt", "灯/说明 1.md"):
            page.fill("#filter", name)
            page.click("#documents button")
            page.get_by_text(f"{name} is deleted.").wait_for()
        page.fill("#filter", "")
        assert not {"wren.txt", "灯/说明 1.md"} & set(page.locator("#documents .name").all_inner_texts())


@pytest.mark.model
def test_the_audit_is_told_as_it_was_reported(site: Any, visit: Any, hostile: tuple[str, str]) -> None:
    with site.http() as http:
        report = http.get("/v1/kb/audit").json()["audit"]
    with visit(site.url, "#knowledge") as page:
        page.locator("#audited .tile").first.wait_for()
        tiles = dict(page.locator("#audited .tile").evaluate_all(
            "all => all.map((tile) => [tile.dataset.tile, tile.querySelector('dd').innerText])"))  # fmt: skip
        assert (tiles["hard"], tiles["aside"]) == ("1", str(report["size"]["quarantined"]["passages"]))
        assert tiles["documents"] == str(report["documents"]["all"])
        cells = page.locator("#audited table").last.evaluate(
            "table => [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.innerText))"
        )
        assert [row[0] for row in cells] == [one["id"] for one in report["quarantine"]["hardest"]]
        assert all(row[1].startswith("<i>log</i>#1, ") for row in cells)
        assert set(hostile[1].split()) <= {word for row in cells for word in row[3].split()}
        assert page.locator("#audited script, #audited img, #audited i, #audited b").count() == 0
        assert page.evaluate("() => window.owned") is None


def test_a_server_without_parts_is_no_error(live: Any, visit: Any) -> None:
    with visit(live.url, "#knowledge") as page:
        page.get_by_text("This server has no knowledge base.").wait_for()
        assert page.locator("#add").is_hidden()
        page.goto(f"{live.url}/console#live")
        page.get_by_text("This server keeps no ledger.").wait_for()


def test_the_page_asks_for_a_key_and_the_api_wants_it(start_live: Any, router: Any, visit: Any, tmp_path: Path) -> None:
    secret, _ = create_key(tmp_path / "keys.json", name="web", tenant="acme")
    with start_live(router, ServiceOptions(keys_path=tmp_path / "keys.json")) as live:
        with live.http() as http:
            assert http.get("/v1/console").status_code == 401
            assert http.get("/console/other.js").status_code == 401
            for path in ("/console", *(f"/console/{name}" for name in FILES)):
                reply = http.get(path)
                assert reply.status_code == 200
                assert "default-src 'self'" in reply.headers["content-security-policy"]
                assert reply.headers["x-content-type-options"] == "nosniff"
            assert http.get("/console/").headers["location"] == "../console"
        with visit(live.url, allow="401") as page:
            page.locator("#key-dialog[open]").wait_for()
            page.keyboard.press("Escape")  # without a key nothing can be asked: that is said, and the key asked for
            page.get_by_text("Without a key the server answers nothing here").wait_for()
            page.fill("#question", "hello there")
            page.press("#question", "Enter")
            page.locator("#key-dialog[open]").wait_for()
            for given in ("sk-shoal-wrong", secret):
                page.fill("#key-value", given)
                page.press("#key-value", "Enter")
                if given != secret:
                    page.get_by_text("does not know this key").wait_for()
            page.locator("#key-dialog[open]").wait_for(state="hidden")  # the key is known before anything is asked
            page.locator(".answer", has_text="hello there").wait_for()  # what was asked before the key was there
            assert page.locator("#problem").is_hidden()
            page.goto(f"{live.url}/console#knowledge")
            assert page.locator("#add").is_hidden()  # no administrator's key
            assert page.evaluate("() => [localStorage.length, document.cookie]") == [0, ""]
    assert router.requests[-1].tenant == "acme"


@pytest.mark.model
def test_a_phone_needs_no_sideways_scrolling(site: Any, visit: Any, ask: Any) -> None:
    with visit(site.url, **PHONE) as page:
        page.locator("#budget").fill("22")
        page.uncheck("#cache")
        turn = ask(page, "Name three uses of a lighthouse.")
        unfold(turn)
        assert page.evaluate(OVERFLOW) <= 0
        turn.locator(".map td.o").first.tap()
        assert "skipped: the plan leaves it out" in turn.locator(".reason").inner_text()
        for name in PAGES[1:]:
            open_page(page, site.url, name)
            assert page.evaluate(OVERFLOW) <= 0
        page.locator("#audited .stack").first.wait_for()
        narrow = "nodes => nodes.filter((node) => node.innerText.length > 40 && node.clientWidth < 200).length"
        assert page.locator("#audited .stack td").evaluate_all(narrow) == 0  # no text is squeezed into a pillar


def unfold(turn: Any) -> None:
    turn.locator("details").evaluate_all("all => all.forEach((each) => { each.open = true; })")
    turn.locator("[data-part=steps] table").wait_for()


def tab_to(page: Any, selector: str) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never reaches {selector}")


@pytest.mark.model
def test_everything_can_be_done_with_the_keyboard(site: Any, visit: Any) -> None:
    with visit(site.url) as page:
        page.locator("#profile option").first.wait_for(state="attached")
        tab_to(page, "#budget")
        for _ in range(6):
            page.keyboard.press("ArrowLeft")
        assert page.inner_text("#budget-shown") == "24 of 30 layers"
        tab_to(page, "#cache")
        page.keyboard.press("Space")
        tab_to(page, "#question")
        page.keyboard.type("Name three uses of a lighthouse.")
        page.keyboard.press("Enter")
        page.locator(".answer[aria-busy=false]").wait_for()
        tab_to(page, "nav a[href='#ask']")  # round the page's end
        tab_to(page, "[data-thumb=up]")
        page.keyboard.press("Enter")
        page.get_by_text("Thank you").wait_for()
        assert page.evaluate("() => document.activeElement.matches('[data-thumb=up]')")
        tab_to(page, ".map td")
        said = [page.locator(".reason").inner_text()]
        for key in ("ArrowRight", "ArrowDown", "End", "Home"):
            page.keyboard.press(key)
            said.append(page.locator(".reason").inner_text())
        assert [words.split("layer ")[1].split(":")[0] for words in said] == ["0", "1", "1", "29", "0"]
        assert "ran: one of the last layers, which always run" in said[3]
        tab_to(page, "[data-part=steps] summary")
        page.keyboard.press("Enter")
        page.locator("[data-part=steps] table").wait_for()


def test_both_languages_say_everything(live: Any, visit: Any, ask: Any) -> None:
    with visit(live.url, locale="zh-CN") as page:
        assert ask(page, "你好 吗").locator("[data-fact=depth] dt").inner_text() == "深度"
        assert page.get_attribute("html", "lang") == "zh-Hans"
        words = page.locator("[data-t]").evaluate_all("nodes => nodes.map((node) => node.textContent)")
        assert all(words)
        page.click("#language")
        assert page.locator("[data-fact=depth] dt").inner_text() == "depth"
        assert "你好 吗" in page.locator(".answer").inner_text()
        page.reload()
        assert page.get_attribute("html", "lang") == "en"
        table = page.evaluate("async () => (await import('/console/strings.js')).words()")
        assert all(len(pair) == 2 and all(pair) for pair in table)
        assert [en for en, zh in table if set(_blanks(en)) != set(_blanks(zh))] == []
        page.click("#language")
        said = page.evaluate("async (all) => all.map((await import('/console/said.js')).said)", reasons())
        assert [text for text in said if re.search("[a-z]+ [a-z]+", text)] == []


def reasons() -> list[str]:
    """Every reason that a decision can have."""
    model = Model(total=30, min_depth=15, auto=30)
    found = {"looks like rag (0.84)", "looks like rag (0.84), not sure: taken as deep"}
    for hints, profile, depth, limit, guarded in product(
        (Hints(), Hints(depth=9), Hints(hurry=("fast",)), Hints(anchors=("only",)), Hints(guiding=("detailed",))),
        PROFILES.values(),
        ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        (None, 16),
        (True, False),
    ):
        found |= set(decide_budget(
            route=Route.DIRECT, depth=depth, hints=hints, profile=profile, model=model, max_depth=limit, guarded=guarded
        ).reasons)  # fmt: skip
    assert len(found) > 12
    return sorted(found)


def _blanks(text: str) -> list[str]:
    return re.findall(r"\{\w+\}", text)


@pytest.mark.model
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site: Any, visit: Any, ask: Any, scheme: str) -> None:
    from axe_playwright_python.base import AXE_SCRIPT

    with visit(site.url, color_scheme=scheme, bypass_csp=True) as page:
        found = {}
        for name in PAGES:
            open_page(page, site.url, name)
            if name == "#ask":
                page.locator("#budget").fill("22")
                page.uncheck("#cache")
                turn = ask(page, "Name three uses of a lighthouse.")
                unfold(turn)
                turn.locator(".map td.o").first.click()
            if name == "#knowledge":
                page.fill("#query", "How heavy is the Heron lamp?")
                page.press("#query", "Enter")
                page.locator("#hits .passage").first.wait_for()
            page.evaluate(AXE_SCRIPT)
            for issue in page.evaluate("async () => (await axe.run()).violations"):
                if issue["impact"] in ("serious", "critical"):
                    found[f"{name} {issue['id']}"] = [node["html"][:200] for node in issue["nodes"][:3]]
        assert found == {}
