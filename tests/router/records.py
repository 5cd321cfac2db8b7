"""Records to keep and show: answers, plans and token decisions as the pipeline and the engine make them."""

from typing import Any

from shoal.gated_llm.policy import Plan
from shoal.gated_llm.trace import DepthTrace, Reason, TokenTrace, letters
from shoal.router import Request
from shoal.router.decision import Answer, Decision, Route
from shoal.router.journal import Journal, no_depth
from shoal.router.traces import Record

PLAN = Plan.from_order(
    [("mlp", 12), ("attention", 7)], [0.11, 0.25], total=30, attention_share=0.25, model_fingerprint="scripted"
)


def answer_of(
    text: str = "", *, trace_id: str = "req-1", reasons: tuple[str, ...] = ("looks like deep (0.91)",), **changes: Any
) -> Answer:
    """An answer of the deep route with a depth report, as the pipeline makes it."""
    decision = Decision(
        route=Route.DEEP, budget=29.0, total=30, bucket="27+", confidence=0.9, cacheable=True, reasons=reasons
    )
    depth = {**no_depth(30, 29.0), "max": 29.0, "mean": 28.5, "prefill": 30.0, "policy": "plan"}
    passage = {"doc_id": "a.md", "span": [0, 9], "score": 0.5, "depth_score": None, "text": "SECRET passage"}
    trace = Journal(trace_id).trace(Route.DEEP, decision, depth, layer_tokens=99.0, kept=(passage,))
    return Answer(text=text, trace=trace, **changes)


def request_of(text: str = "What is SECRET?", tenant: str = "default") -> Request:
    return Request.of(text, tenant=tenant)


def tokens_of(*pieces: str) -> DepthTrace:
    """Layers 12 (MLP) and 7 (attention) left out by the plan, layer 17's attention by signals for the last token."""
    mask = [list(pair) for pair in PLAN.mask(2)]
    reasons = [(Reason.PLAN, Reason.PLAN)] * 30
    planned = letters([(a, m) for a, m in mask], reasons)
    mask[17][0], reasons[17] = False, (Reason.SIGNALS, Reason.PLAN)
    signalled = letters([(a, m) for a, m in mask], reasons)
    last = len(pieces) - 1
    return DepthTrace(
        total=30,
        policy="hybrid",
        budget=29.0,
        prefill=30.0,
        gate_fingerprint="abc",
        tokens=tuple(
            TokenTrace(
                index=i,
                token=piece,
                depth=29.0 - (i == last) * 0.25,
                branches=signalled if i == last else planned,
                signals={16: {"entropy": 0.72 if i == last else 1.4, "attention_kl": 0.031}},
            )
            for i, piece in enumerate(pieces)
        ),
        thresholds={16: {"entropy": 1.0, "attention_kl": 0.05}},
        points=tuple((p.drop[0], p.drop[1], p.depth, p.loss) for p in PLAN.points),
    )


def record_of(*pieces: str, trace_id: str = "req-1", tenant: str = "default", at: float = 0.0, **more: Any) -> Record:
    tokens = tokens_of(*pieces) if pieces else None
    answer = answer_of("".join(pieces), trace_id=trace_id, tokens=tokens, **more)
    return Record.of(request_of(tenant=tenant), answer, at=at)
