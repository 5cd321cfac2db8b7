"""R5, R6: a scripted conversation through the router and the local model: when earlier turns are said again, which
states are entered, and what it costs.

Seven turns; three at the model's shallowest plan, three at full depth, one shallow again. Printed per turn: depth, skip
rate, state, the event where it changed, and whether the prompt began with a reminder. The reminder is then checked to
hold nothing but sentences that were said.
"""

import argparse
import math

from benchmarks._router import table, write
from shoal.gated_llm import GatedLLM
from shoal.router import CognitiveRouter
from shoal.router.conversation import skip_rate, summary_of
from shoal.router.decision import messages_of
from shoal.router.experience import context_layers

TALK = (
    "My train to Porto leaves at 9:40 from platform 3, and I travel with my sister Ana.",
    "Ana is vegetarian. Which dishes of Porto could she try on the first evening there?",
    "We have 2 days. Plan both of them for us, with an hour by the river on each day.",
    "Please write a short and friendly message that tells Ana when we have to be at the station.",
    "Now compare the two days and tell me which of them is the harder one for us.",
    "And which of the two would you shorten if it rains, and why that one of them?",
    "Compose a second message to Ana that explains the plan for the rainy day.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=12)
    most = parser.parse_args().max_tokens
    rows, messages, reminders = [], list[dict[str, str]](), list[str]()
    with GatedLLM.load() as llm:
        router, low = CognitiveRouter(llm=llm), math.ceil(llm.min_depth)
        layers = context_layers(llm)
        for text, budget in zip(TALK, (low, low, low, llm.total, llm.total, llm.total, low), strict=True):
            messages.append({"role": "user", "content": text})
            *_, last = router.ask_stream(messages, max_depth=budget, max_tokens=most)
            assert last.answer is not None
            trace = last.answer.trace
            again = any(step.name == "remind" for step in trace.steps)
            if again:
                reminders.append(summary_of(messages_of(messages)))
            rows.append(
                {
                    "turn": len(rows) + 1,
                    "max_depth": budget,
                    "depth": trace.depth["max"],
                    "skip rate": skip_rate(trace.depth["max"], total=llm.total, min_depth=llm.min_depth),
                    "experience": trace.experience,
                    "event": last.event.state.value if last.event else "",
                    "reminder": "yes" if again else "",
                    "prompt tokens": last.answer.prompt_tokens,
                }
            )
            messages.append({"role": "assistant", "content": last.answer.text})
    print(f"layers that carry long-range context and may be skipped: {list(layers)}\n" + table(rows))
    said = " ".join(message["content"] for message in messages)
    invented = [part for each in reminders for part in each.split(". ") if part.strip(" .?!") not in said]
    print(f"\nreminders {len(reminders)}, sentences that nobody said: {len(invented)}\nthe first one: {reminders[:1]}")
    write(
        "conversation",
        "A scripted conversation: reminders and states (R5, R6)",
        {
            "turns": rows,
            "context layers": list(layers),
            "reminders": len(reminders),
            "sentences that nobody said": len(invented),
        },
    )


if __name__ == "__main__":
    main()
