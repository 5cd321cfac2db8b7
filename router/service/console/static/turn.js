// One question with its answer, drawn from plain data: tokens by depth, facts, thumbs, reasons, map, passages, steps.

import { el, icon, share, table } from "./dom.js";
import { layerMap, shade } from "./map.js";
import { said } from "./said.js";
import { known, number, t } from "./strings.js";

const THUMB = "M1 7h3v7H1zM5 7l3-6c1.5 0 2 1 2 2l-.6 3H14c.8 0 1.3.6 1.1 1.3l-1.5 5.5c-.2.7-.7 1.2-1.4 1.2H5z";

const LONG = 600; // characters of a question that its bubble may have to scroll

/** What a turn needs to know and do: `facts` of the server, `vote(turn, up)`. */
export function drawTurn(turn, facts, vote) {
  return el("article", { class: "turn" },
    el("p", { class: "asked", tabindex: turn.question.length > LONG ? "0" : null },
      el("span", { class: "unseen", text: `${t("you")}: ` }), el("span", { class: "said", dir: "auto", text: turn.question })),
    drawAnswer(turn, facts),
    turn.error ? el("p", { class: "bad", text: turn.error }) : null,
    turn.trace ? [drawFacts(turn, facts), drawThumbs(turn, vote), drawMore(turn, facts)] : null,
    turn.cut ? el("p", { class: "note", text: t("length", { n: number(turn.trace.depth.per_token.length) }) }) : null,
    turn.stopped ? el("p", { class: "note", text: t("stopped") }) : null);
}

/** The answer: a span per token, shaded by its depth. */
export function drawAnswer(turn, facts) {
  const spans = pieces(turn).map((piece) => drawToken(piece, facts));
  const empty = !turn.done ? "answering" : turn.error || turn.stopped ? null : "empty_answer";
  const waiting = spans.length || !empty ? null : el("span", { class: "note", text: t(empty) });
  return el("div", { class: "answer", dir: "auto", role: "group", "aria-label": t("answer"), "aria-busy": String(!turn.done) }, spans, waiting);
}

export function drawToken({ text, depth }, facts) {
  const title = `${t("depth")} ${t("layers_of", { layers: number(depth, 2), total: facts.total })}`;
  return el("span", { class: shade(depth, facts.min_depth, facts.total), text, title });
}

/** Each token with its own depth once the full trace is there; before, each piece with the deepest so far. */
function pieces(turn) {
  const { tokens } = turn;
  const same = tokens && tokens.tokens.join("") === turn.pieces.map((piece) => piece.text).join("");
  return same ? tokens.tokens.map((text, i) => ({ text, depth: tokens.depths[i] })).filter(({ text }) => text) : turn.pieces;
}

function drawFacts({ trace }, facts) {
  const { depth } = trace;
  const rows = [
    ["route", trace.route],
    ["tier", trace.cache.tier || t("miss")],
    ["depth", t("layers_of", { layers: number(depth.max, 2), total: depth.total })],
    ["time", `${number(trace.latency_ms, 0)} ms`],
    ["cost_short", t("layer_tokens", { n: number(trace.layer_tokens, 0) })],
  ];
  const chips = rows.map(([name, value]) => el("div", { class: "chip", data: { fact: name } }, el("dt", { text: t(name) }), el("dd", { text: value })));
  const scale = Array.from({ length: 9 }, (_, i) => el("i", { class: `d${i + 1}` }));
  const legend = el("div", { class: "legend" }, number(facts.min_depth, 2), el("span", { role: "img", "aria-label": t("shallow_to_deep") }, scale), number(facts.total));
  return el("dl", { class: "facts" }, chips, depth.per_token.length ? el("div", { class: "chip" }, el("dt", { text: t("layers") }), el("dd", {}, legend)) : null);
}

function drawThumbs(turn, vote) {
  const thumb = (up) => el("button", {
    type: "button", class: up ? "thumb" : "thumb down", "aria-pressed": String(turn.thumb === up),
    data: { thumb: up ? "up" : "down" }, "aria-label": t(up ? "good" : "bad"), title: t(up ? "good" : "bad"), on: { click: () => vote(turn, up) },
  }, icon(THUMB));
  return el("div", { class: "thumbs" }, thumb(true), thumb(false), el("span", { class: "note", role: "status", text: turn.noted ? t(turn.noted) : "" }));
}

function drawMore(turn, facts) {
  const { decision, passages, steps } = turn.trace;
  const found = passages.kept.length + passages.dropped.length;
  const counts = { kept: passages.kept.length, dropped: passages.dropped.length };
  return [
    part(turn, "why", t("why"), () => drawWhy(decision)),
    part(turn, "map", t("map"), () => drawMap(turn, facts)),
    found ? part(turn, "passages", t("passages_n", counts), () => drawPassages(passages)) : null,
    part(turn, "steps", t("steps"), () => table([t("step"), "ms", t("found")],
      steps.map((step) => [step.name, number(step.ms), told(step.detail)]), t("steps"))),
  ];
}

/** What a step found, name by name; the reasons of a decision are told above. */
function told(detail) {
  const entries = Object.entries(detail).filter(([name]) => name !== "reasons");
  return entries.map(([name, value]) => `${name.replaceAll("_", " ")} ${plain(value)}`).join(" · ") || "–";
}

function plain(value) {
  if (typeof value === "number") return number(value, 3);
  if (typeof value === "boolean") return t(value ? "yes" : "no");
  if (value === null) return "–";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** A part that folds; drawn when first opened, and open again when the page is drawn anew. */
function part(turn, name, title, draw) {
  const made = el("details", { class: "part", data: { part: name } }, el("summary", { text: title }));
  const fill = () => made.open && made.children.length === 1 && made.append(el("div", {}, draw()));
  made.addEventListener("toggle", () => {
    turn.open[name] = made.open;
    fill();
  });
  made.open = Boolean(turn.open[name]);
  fill();
  return made;
}

function drawWhy(decision) {
  const reasons = decision.reasons.length ? decision.reasons : [t("no_reason")];
  const decided = { ...decision, budget: number(decision.budget, 2), confidence: number(decision.confidence, 2) };
  return [el("p", { text: t("decided", decided) }), el("ul", {}, reasons.map((text) => el("li", { text: said(text) })))];
}

function drawMap({ tokens, trace }, facts) {
  if (tokens?.tokens.length) return layerMap(tokens);
  const ran = trace.depth.per_token.length > 0;
  return el("p", { class: "note", text: t(ran ? "map_missing" : "map_none") });
}

function drawPassages({ kept, dropped, fused }) {
  const why = (reason) => (known(`drop_${reason}`) ? t(`drop_${reason}`) : reason);
  const rows = [...kept.map((passage) => [passage, t("kept")]), ...dropped.map((passage) => [passage, t("dropped", { reason: why(passage.reason) })])];
  return [el("p", { class: "note", text: t("passages_note") }), rows.map(([passage, state]) => drawPassage(passage, state)),
    fused ? [el("h3", { text: t("fused") }), el("blockquote", { class: "fused", dir: "auto", tabindex: "0", text: fused })] : null];
}

/** A passage with where it is from and its scores; `state` says what became of it. */
export function drawPassage(passage, state = null) {
  const [from, to] = passage.span;
  const scores = [
    state ? el("strong", { text: state }) : null,
    el("span", {}, share(passage.score, t("score", { score: number(passage.score, 3) }))),
    passage.depth_score === null ? null : el("span", { text: t("depth_score", { score: number(passage.depth_score, 2) }) }),
    el("span", { text: t("characters", { from, to }) }),
  ];
  return el("article", { class: "passage" }, el("h3", { text: passage.doc_id }), el("p", { class: "scores" }, scores),
    passage.text === undefined ? null : el("p", { class: "quoted", dir: "auto", text: passage.text }));
}
