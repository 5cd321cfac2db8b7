"""The page to ask, in a real browser: streaming, token map, budget, cache, feedback, hostile text, stop."""

import json
import re
from typing import Any

import pytest

CLASSES = """() => [...document.querySelectorAll(".map tbody tr")].map((row) => ({
  depth: Number(row.lastElementChild.textContent),
  cells: [...row.querySelectorAll("td[tabindex]")].map((cell) => cell.className),
}))"""
MARKUP = "#turns :is(script, img, b, strong, em, a), #hits :is(script, img, b, em, a), #documents :is(script, img, b)"


def fact(turn: Any, name: str) -> str:
    return turn.locator(f"[data-fact={name}] dd").inner_text()


@pytest.mark.model
def test_the_map_shows_what_the_depth_report_says(site: Any, visit: Any, ask: Any) -> None:
    with visit(site.url) as page:
        page.locator("#budget").fill("24")
        turn = ask(page, "Name three uses of a lighthouse.")
        rows = page.evaluate(CLASSES)
        text, shown = turn.locator(".answer").inner_text(), fact(turn, "depth")
        titles = {span.get_attribute("title") for span in turn.locator(".answer span[title]").all()}
    store = site.router.recorder.store
    record = store.get(store.newest(limit=1)[0]["id"], tenant="default")
    depth = record.trace["depth"]
    assert record.mode == "full"
    assert [row["depth"] for row in rows] == [pytest.approx(each, abs=0.01) for each in depth["per_token"]]
    for layer, (attention, mlp) in enumerate(depth["branch_runs"]):
        states = [row["cells"][layer] for row in rows]
        assert sum(state in "raf" for state in states) == attention
        assert sum(state in "rmf" for state in states) == mlp
    assert {cell for row in rows for cell in row["cells"][-3:]} == {"f"}
    assert any(cell == "o" for row in rows for cell in row["cells"])
    assert shown == f"{depth['max']:g} of 30 layers"
    assert text.strip() == "".join(token.token for token in record.tokens.tokens).strip()
    assert titles == {f"depth {each:g} of 30 layers" for each in set(depth["per_token"])}


@pytest.mark.model
def test_a_thumb_down_takes_the_answer_out_of_the_cache(site: Any, visit: Any, ask: Any) -> None:
    question = "Name the capital of Italy, please."
    with visit(site.url) as page:
        tiers = []
        for _ in range(2):
            turn = ask(page, question)
            tiers.append(fact(turn, "tier"))
            last = turn.locator("[data-thumb=down]")
            last.click()
            turn.get_by_text("out of the cache").wait_for()
            assert last.get_attribute("aria-pressed") == "true"
            page.click("#again")
        ask(page, question)
        page.click("#again")
        cached = ask(page, question)
        assert tiers == ["miss", "miss"]
        assert (fact(cached, "tier"), fact(cached, "route"), fact(cached, "depth")) == ("l1", "cache", "0 of 30 layers")
        assert "No layer ran" in cached.locator("[data-part=map]").inner_text()
        cached.locator("[data-thumb=up]").click()
        cached.get_by_text("Thank you").wait_for()


@pytest.mark.model
def test_passages_and_the_text_made_of_them(site: Any, visit: Any, ask: Any) -> None:
    with visit(site.url) as page:
        turn = ask(page, "How do the weights of the Heron and the Otter lamp compare?")
        assert fact(turn, "route") in ("rag", "deep")
        part = turn.locator("[data-part=passages]")
        part.locator("summary").click()
        kept = part.locator(".passage", has_text="kept")
        assert "740 grams" in " ".join(kept.all_inner_texts())
        assert "score" in kept.first.inner_text()
        fused = part.locator(".fused").inner_text()
        assert "740 grams" in fused
        assert "[heron.md, " in fused
        assert "looks like" in turn.locator("[data-part=why]").inner_text()


def test_the_slider_and_the_choices_go_into_the_request(live: Any, visit: Any) -> None:
    with visit(live.url) as page:
        page.locator("#profile option").first.wait_for(state="attached")
        assert (page.get_attribute("#budget", "min"), page.get_attribute("#budget", "max")) == ("15", "30")
        sent = []
        for act in (lambda: None, lambda: page.locator("#budget").fill("22"), lambda: page.uncheck("#cache")):
            act()
            page.fill("#question", "hello there")
            with page.expect_request("**/v1/chat/completions") as caught:
                page.press("#question", "Enter")
            page.locator("[aria-busy=true]").wait_for(state="detached")
            sent.append(json.loads(caught.value.post_data or ""))
        assert [body["max_depth"] for body in sent] == ["auto", 22, 22]
        assert [body.get("cache") for body in sent] == [None, None, False]
        assert {(body["profile"], body["trace"], body["stream"]) for body in sent} == {("balanced", "full", True)}
        assert [m["role"] for m in sent[1]["messages"]] == ["user", "assistant", "user"]
        page.check("#auto")
        assert page.inner_text("#budget-shown") == "auto"


def test_tokens_appear_as_they_are_made_and_stop_stops(live: Any, visit: Any, wait_for: Any) -> None:
    with visit(live.url) as page:
        page.locator("#profile option").first.wait_for(state="attached")
        page.fill("#question", "slow 900")
        page.click("#send")
        page.locator(".answer[aria-busy=true] span[title]").nth(3).wait_for()
        page.click("#stop")
        page.get_by_text("stopped", exact=True).wait_for()
        made = page.locator(".answer span[title]")
        assert 3 < made.count() < 900
        assert made.first.get_attribute("title") == "depth 21.5 of 30 layers"
        assert made.first.get_attribute("class") == "d4"  # 21.5 of 15 to 30 layers
        wait_for(lambda: live.service.admission.in_flight == 0)
        assert page.locator("#send").is_visible()


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("refuse this", r"This topic needs more thought than that\. \(depth_attack\)"),
        ("break off now", "server failed on this request|was cut off"),
        ("nomodel", r"this router has no language model \(no_model\)"),
    ],
)
def test_a_refusal_is_told_in_the_server_s_words(live: Any, visit: Any, ask: Any, question: str, said: str) -> None:
    with visit(live.url, allow="Failed to load resource") as page:
        assert re.search(said, ask(page, question).locator(".bad").inner_text())
        assert page.input_value("#question") == question  # to be changed and asked again
        assert "hello again" in ask(page, "hello again").locator(".answer").inner_text()


def test_a_newcomer_has_something_to_click_and_is_told_of_odd_ends(live: Any, visit: Any) -> None:
    with visit(live.url, viewport={"width": 320, "height": 256}) as page:
        page.fill("#question", "half a thought")
        page.locator("#examples button", has_text="Say hello in French.").click()
        page.locator(".answer", has_text="Say hello in French.").wait_for()
        page.locator(".answer[aria-busy=false]").wait_for()
        assert page.input_value("#question") == "half a thought"
        assert page.locator("#examples").is_hidden()
        # at 400% the form must not cover what is read, and right-to-left text keeps its direction
        assert page.evaluate("() => getComputedStyle(document.getElementById('composer')).position") == "static"
        assert page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth") <= 0
        page.fill("#question", "مرحبا بالعالم")
        page.press("#question", "Enter")
        page.locator(".answer", has_text="مرحبا").wait_for()
        page.locator(".answer[aria-busy=false]", has_text="مرحبا").wait_for()
        page.wait_for_function(
            "() => getComputedStyle([...document.querySelectorAll('.asked .said')].at(-1)).direction === 'rtl'"
        )
        drawn = page.evaluate("""async () => {
            const { drawTurn } = await import("/console/turn.js");
            const trace = { depth: { max: 21.5, total: 30, per_token: [21.5, 21.5] }, route: "deep", cache: {},
                decision: { reasons: [] }, passages: { kept: [], dropped: [] }, steps: [], latency_ms: 1 };
            const turn = { question: "q", pieces: [], open: {}, done: true, cut: true, trace };
            return drawTurn(turn, { total: 30, min_depth: 15 }, null).textContent;
        }""")
        assert "The model answered with nothing." in drawn
        assert "Cut at the limit of 2 tokens." in drawn


def test_text_of_user_and_model_stays_text(live: Any, visit: Any, ask: Any, hostile: tuple[str, str]) -> None:
    sent, shown = hostile
    with visit(live.url) as page:
        turn = ask(page, sent)
        assert turn.locator(".asked").inner_text().removeprefix("You:").strip() == shown
        assert turn.locator(".answer").inner_text().split() == shown.split()
        assert page.locator(MARKUP).count() == 0
        assert page.evaluate("() => window.owned") is None


@pytest.mark.model
def test_text_of_documents_stays_text(site: Any, visit: Any, ask: Any) -> None:
    with visit(site.url, "#knowledge") as page:
        page.locator("#documents .name", has_text="<b>trap</b>.md").wait_for()
        page.fill("#query", "What does the Trap lamp say?")
        page.press("#query", "Enter")
        page.locator(".passage", has_text="<script>window.owned = 1</script>").first.wait_for()
        page.goto(f"{site.url}/console#ask")
        turn = ask(page, "How heavy is the Trap lamp and what does it say?")
        passages = turn.locator("[data-part=passages]")
        if passages.count():
            passages.locator("summary").click()
            passages.locator(".passage").first.wait_for()
        turn.locator("[data-part=steps] summary").click()
        assert page.locator(MARKUP.replace("strong, ", "")).count() == 0
        assert page.evaluate("() => window.owned") is None


@pytest.mark.model
def test_what_is_done_before_the_server_has_answered_counts(site: Any, visit: Any, ask: Any) -> None:
    with visit(site.url) as page:
        held: list[Any] = []
        page.route("**/v1/console", lambda route: held.append(route))
        page.reload(wait_until="domcontentloaded")
        page.locator("#budget").fill("24")
        page.locator("#question").fill("Say hello in French.")
        page.locator("#question").press("Enter")
        page.wait_for_timeout(50)
        for route in held:
            route.continue_()
        page.unroute("**/v1/console")
        page.locator(".turn .answer[aria-busy=false]").wait_for()
        assert fact(page.locator(".turn").last, "depth") == "24 of 30 layers"
