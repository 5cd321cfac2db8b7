"""The service for as long as asked, with everything that callers do at once: nothing may grow, nothing may stay.

FAQ and cache hits, sampled streams of the model, streams left early, wrong requests, thumbs, decisions, embeddings.
`--minutes M` (default 10), after 1,500 requests to warm up. Memory is read every tenth of the time.
"""

import argparse
import random
import threading
import time
from collections import Counter
from typing import Any

import httpx

from benchmarks._router import table
from benchmarks._service import FAQ, Served, ask, save

CALLERS = 4
WARM = 1500  # requests before the time starts


def visit(http: httpx.Client, chance: random.Random) -> str:
    """One thing that a caller may do; what it was, and the status when it is not the one expected."""
    kind = chance.choice(["faq", "cache", "stream", "leaves", "wrong", "route", "embeddings", "thumb"])
    chat, number = "/v1/chat/completions", chance.getrandbits(20)
    sampled = ask(f"Story {number}.", stream=True, temperature=0.9, seed=number, cache=False)
    if kind == "stream":
        with http.stream("POST", chat, json={**sampled, "max_tokens": 8}) as response:
            return kind if list(response.iter_lines())[-2:-1] == ["data: [DONE]"] else f"{kind} BROKEN"
    if kind == "leaves":
        with http.stream("POST", chat, json={**sampled, "max_tokens": 200}) as response:
            next(response.iter_lines(), None)
        return kind
    requests: dict[str, tuple[str, dict[str, Any], int]] = {
        "faq": (chat, ask(FAQ), 200), "cache": (chat, ask("Name the capital of France, please."), 200),
        "wrong": (chat, {**ask("x"), "temperature": "hot"}, 400),
        "route": ("/v1/route", {"input": f"Why {number}?"}, 200),
        "embeddings": ("/v1/embeddings", {"model": "shoal-embed", "input": f"text {number}"}, 200),
        "thumb": ("/v1/feedback", {"request_id": f"req-{number}", "up": False}, 404),
    }  # fmt: skip
    path, body, expected = requests[kind]
    status = http.post(path, json=body).status_code
    return kind if status == expected else f"{kind} {status}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=10)
    minutes = arguments.parse_args().minutes
    counts, lock, over = Counter[str](), threading.Lock(), threading.Event()

    def caller(served: Served, index: int) -> None:
        chance = random.Random(index)
        with served.http() as http:
            while not over.is_set():
                done = visit(http, chance)
                with lock:
                    counts[done] += 1

    with Served(threads="1") as served:
        callers = [threading.Thread(target=caller, args=(served, index)) for index in range(CALLERS)]
        for each in callers:
            each.start()
        while counts.total() < WARM and minutes >= 1:
            time.sleep(0.2)
        began, rows = time.monotonic(), list[dict[str, Any]]()
        for tenth in range(11):
            time.sleep(max(0.0, began + 6 * minutes * tenth - time.monotonic()))
            prefix = round(served.metrics()["shoal_prefix_bytes"] / 2**20, 1)
            rows.append({"s": round(time.monotonic() - began), "requests": counts.total(), "RSS, MiB": served.rss_mib,
                         "of that kept prompts, MiB": prefix, "RSS without, MiB": round(served.rss_mib - prefix, 1),
                         "open files": served.descriptors})  # fmt: skip
            print(rows[-1], dict(counts), flush=True)
        over.set()
        for each in callers:
            each.join()
        grew = round(rows[-1]["RSS without, MiB"] - rows[0]["RSS without, MiB"], 1)
        left = {"in flight after": served.quiet(), "KV bytes after": int(served.metrics()["shoal_kv_bytes"]),
                "errors in the log": served.log.read_text().count(" ERROR "),
                "RSS without kept prompts grew, MiB": grew}  # fmt: skip
    print(table(rows), dict(counts), left, sep="\n")
    note = (
        f"{CALLERS} callers without a pause for {minutes:g} minutes, after {WARM} requests; the default model on one "
        "thread. Keys and values of earlier prompts are kept up to 64 MiB, for prompts that begin alike."
    )
    save("service_soak", "Soak of the service", note, "over time", rows)
    save("service_soak", "Soak of the service", note, "what was done", [dict(sorted(counts.items()))])
    save("service_soak", "Soak of the service", note, "afterwards", [left])
    if left["in flight after"] or any(" " in name for name in counts):
        raise SystemExit("The soak found something left open or broken.")


if __name__ == "__main__":
    main()
