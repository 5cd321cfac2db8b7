"""A record as one HTML page that needs nothing else: no network, and no script to be read (G7).

Everything that comes from a request, a document or a model is escaped, and control characters are made visible or
dropped. The one script shows the reason of a cell that is tapped; the page's policy allows that script alone.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from ...gated_llm.policy import SAFE_LAYERS
from ...gated_llm.trace import KINDS, DepthTrace, TokenTrace
from ..visible import visible
from .record import Record
from .words import NAMES, lines, why

_CSS = Path(__file__).with_name("page.css")
_SCRIPT = (
    "const say=e=>{const c=e.target.closest('.map td[title]');"
    "if(c)document.getElementById('why').textContent=c.title};"
    "for(const k of ['click','mouseover'])document.addEventListener(k,say)"
)
_CHUNK = 32  # tokens of one table, so that tables stand side by side where there is room
_KEY = {"r": "ran", "a": "attention only", "m": "MLP only", "o": "skipped", "f": "safety, always runs"}
_DROPPED = {
    "score": "fits the question too little", "depth": "too hard to read", "duplicate": "says the same as another",
    "budget": "no room left",
}  # fmt: skip
_MARKS = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


def page(record: Record) -> str:
    """The whole page; every skipped branch has its reason in words."""
    style = _CSS.read_text("utf-8")
    policy = f"default-src 'none'; style-src '{csp_hash(style)}'; script-src '{csp_hash(_SCRIPT)}'"
    tokens = record.tokens
    parts = [_facts(record)]
    if tokens is not None and tokens.tokens:
        parts += [_answer(tokens), _map(tokens), _reasons(tokens)]
    else:
        parts.append(_layers(record.trace["depth"]))
    parts += [_passages(record.trace.get("passages", {})), _steps(record.trace["steps"])]
    note = f"record form 1; plan {shown(record.trace['depth'].get('gate_fingerprint', '')) or 'none'}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Trace {shown(record.id)}</title>\n<style>{style}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n<footer>{note}. Made by Shoal.</footer></main>\n"
        + ('<div id="why" aria-live="polite"></div>\n' if tokens is not None else "")
        + f"<script>{_SCRIPT}</script></body></html>\n"
    )


def shown(value: object) -> str:
    """Any text, escaped for HTML, with line ends and tabs made visible and other control characters left out."""
    return escape(visible("".join(_MARKS.get(char, char) for char in str(value))))


def prose(text: str) -> str:
    """Like `shown`, but line ends stay line ends."""
    return "\n".join(shown(line) for line in text.split("\n"))


def csp_hash(text: str) -> str:
    """What a content security policy calls this script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _facts(record: Record) -> str:
    trace = record.trace
    decision, depth = trace["decision"], trace["depth"]
    when = datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts = {
        "Route": f"{trace['route']}" + (f", cache {trace['cache']['tier']}" if trace["cache"]["tier"] else ""),
        "Why": "; ".join(map(str, decision.get("reasons", ()))) or "no reason given",
        "Budget": f"{decision['budget']:g} of {depth['total']} layers, bucket {decision['bucket']}",
        "Depth": f"at most {depth['max']:g}, mean {depth['mean']:.4g} of {depth['total']}; prompt {depth['prefill']:g}",
        "Policy": depth.get("policy", ""),
        "Tokens": len(depth.get("per_token", ())),
        "Cost": f"{trace['layer_tokens']:g} layer-tokens, {trace['latency_ms']:.0f} ms",
    }
    for message in record.prompt.get("messages", ()):
        facts[f"Said by {message['role']}"] = message["content"]
    rows = "".join(f"<dt>{shown(name)}</dt><dd>{shown(value)}</dd>" for name, value in facts.items())
    return f"<h1>Trace {shown(record.id)}</h1><p>{when}, mode {record.mode.value}</p><dl>{rows}</dl>"


def _answer(trace: DepthTrace) -> str:
    spans = "".join(
        f'<span class="d{9 * token.depth / trace.total:.0f}" title="depth {token.depth:g}">{prose(token.token)}</span>'
        for token in trace.tokens
        if token.token
    )
    spans = spans or '<span class="note">The model answered with nothing.</span>'
    return f'<h2>The answer, each token by its depth</h2><div class="answer">{spans}</div>'


def _map(trace: DepthTrace) -> str:
    heads = "".join(f'<th scope="col">{i if i % 5 == 0 else ""}</th>' for i in range(trace.total))
    titles: dict[tuple[Any, ...], str] = {}
    rows = [_row(trace, token, titles) for token in trace.tokens]
    tables = "".join(
        f'<table class="map"><thead><tr><th></th>{heads}<th></th></tr></thead><tbody>'
        f"{''.join(rows[start : start + _CHUNK])}</tbody></table>"
        for start in range(0, len(rows), _CHUNK)
    )
    key = " ".join(f'<span><i class="{kind}"></i>{text}</span>' for kind, text in _KEY.items())
    return (
        "<h2>Every token, layer by layer</h2><p>One row per token, one column per layer; the upper half of a cell is "
        'attention, the lower half the MLP. <span class="screen">Point at or tap a cell for the reason.</span></p>'
        f'<p class="key">{key}</p><div class="wide" tabindex="0">{tables}</div>'
    )


def _row(trace: DepthTrace, token: TokenTrace, titles: dict[tuple[Any, ...], str]) -> str:
    cells = []
    for layer in range(trace.total):
        pair = [token.decision(layer, kind) for kind in KINDS]
        known = (token.branches[2 * layer : 2 * layer + 2], layer)
        if not any(d.reason.signals or d.gate is not None for d in pair) and known in titles:
            title = titles[known]
        else:
            title = titles[known] = _title(trace, token, layer)
        cells.append(f'<td class="{_state(trace, layer, [d.ran for d in pair])}" title="{title}"></td>')
    label = shown(token.token) if token.token.strip(" ") else "␣" if token.token else "·"
    return f'<tr><th scope="row">{label}</th>{"".join(cells)}<td class="n">{token.depth:g}</td></tr>'


def _state(trace: DepthTrace, layer: int, ran: list[bool]) -> str:
    if layer >= trace.total - SAFE_LAYERS:
        return "f"
    return {(True, True): "r", (True, False): "a", (False, True): "m", (False, False): "o"}[ran[0], ran[1]]


def _title(trace: DepthTrace, token: TokenTrace, layer: int) -> str:
    said = {kind: why(trace, token, layer, kind) for kind in KINDS}
    ran = {kind: "ran" if token.decision(layer, kind).ran else "skipped" for kind in KINDS}
    if len({*said.values()}) == 1 and len({*ran.values()}) == 1:
        return shown(f"layer {layer} {ran['mlp']}: {said['mlp']}")
    return shown("; ".join(f"layer {layer} {NAMES[kind]} {ran[kind]}: {said[kind]}" for kind in KINDS))


def _reasons(trace: DepthTrace) -> str:
    found = lines(trace)
    if not found:
        return "<h2>Skipped</h2><p>Nothing was skipped: every branch ran for every token.</p>"
    rows = (
        (line.layer, NAMES.get(line.kind or "", "both"), f"{line.tokens} of {line.of}", line.words) for line in found
    )
    return "<h2>What was skipped, and why</h2>" + _table(("Layer", "Branch", "Tokens", "Why"), rows)


def _layers(depth: Mapping[str, Any]) -> str:
    """What a light trace knows of the layers: for what share of the tokens each branch ran."""
    made, runs = len(depth.get("per_token", ())), depth.get("branch_runs", ())
    if not made or not runs:
        return "<h2>Layers</h2><p>No layer ran: the answer needed no model.</p>"
    rows = [
        (layer, f"{attention / made:.0%}", f"{mlp / made:.0%}", "active" if attention or mlp else "pruned")
        for layer, (attention, mlp) in enumerate(runs)
        if min(attention, mlp) < made
    ]
    said = "Share of the generated tokens for which each branch ran; all other layers ran for every token."
    return f"<h2>Layers</h2><p>{said}</p>" + (_table(("Layer", "Attention", "MLP", "State"), rows) if rows else "")


def _passages(passages: Mapping[str, Any]) -> str:
    found = [(kind, p) for kind in ("kept", "dropped") for p in passages.get(kind, ())]
    if not found:
        return ""
    rows = [
        (kind, p["doc_id"], "-".join(map(str, p["span"])), f"{p['score']:.3g}",
         _DROPPED.get(p.get("reason", ""), p.get("reason", "")))
        for kind, p in found
    ]  # fmt: skip
    heads = ["", "Document", "Characters", "Score", "Why"]
    if not any("text" in p for _, p in found):
        return "<h2>Passages</h2>" + _table(heads, rows)
    texts = [p.get("text", "") for _, p in found]
    whole = [(*row, text) for row, text in zip(rows, texts, strict=True)]
    return "<h2>Passages</h2>" + _table([*heads, "Text"], whole)


def _steps(steps: Iterable[Mapping[str, Any]]) -> str:
    rows = [(s["name"], f"{s['ms']:.1f}", _told(s["detail"])) for s in steps]
    return "<h2>Steps</h2>" + _table(("Step", "ms", "Found"), rows)


def _told(detail: Mapping[str, Any]) -> str:
    """What a step found, name by name; the reasons of a decision stand at the top of the page."""
    words = {True: "yes", False: "no", None: "none"}
    plain = {
        name: words[value] if value is None or isinstance(value, bool) else
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in detail.items() if name != "reasons"
    }  # fmt: skip
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in plain.items())


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f'<th scope="col">{shown(name)}</th>' for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{shown(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    table = f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide" tabindex="0">{table}</div>'
