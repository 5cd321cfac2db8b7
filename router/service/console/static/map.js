// The token × layer map: the trace page's table, walked with the arrow keys, with the reason of a cell under it.

import { clean, el } from "./dom.js";
import { state, why } from "./reasons.js";
import { number, t } from "./strings.js";

const CHUNK = 32; // tokens of one table, so that tables stand side by side where there is room
const MOST = 512; // tokens drawn
const KEY = { r: "ran", a: "attention_only", m: "mlp_only", o: "skipped", f: "safety" };
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** A token's text for a narrow place: line ends and blanks made visible. */
export const label = (text) => clean(text.replaceAll("\n", "⏎").replaceAll("\t", "⇥")).replace(/^ +$/, "␣") || "·";

/** The class of a depth: the lightest for none, the darkest for every layer, between them from the least depth up. */
export function shade(depth, least, total) {
  if (depth <= 0) return "d0";
  return `d${Math.round(1 + 8 * Math.min(1, Math.max(0, (depth - least) / Math.max(1e-9, total - least))))}`;
}

/** The map of a full trace's tokens. */
export function layerMap(trace) {
  const shown = Math.min(MOST, trace.tokens.length);
  const rows = Array.from({ length: shown }, (_, token) => row(trace, token));
  const reason = el("p", { class: "reason", role: "status", text: t("map_point") });
  const box = el("div", { class: "wide" }, tables(trace, rows));
  walk(trace, rows, box, reason);
  const key = Object.entries(KEY).map(([kind, name]) => el("span", {}, el("i", { class: kind }), t(name)));
  return el("div", { class: "layer-map" },
    el("p", { class: "note", text: t("map_note") }),
    el("p", { class: "key" }, key), reason, box,
    shown < trace.tokens.length ? el("p", { class: "note", text: t("map_more", { shown, all: trace.tokens.length }) }) : null);
}

function tables(trace, rows) {
  const chunks = [];
  for (let start = 0; start < rows.length; start += CHUNK) {
    const heads = Array.from({ length: trace.total }, (_, i) => el("th", { scope: "col", text: i % 5 ? "" : i }));
    const head = el("thead", { "aria-hidden": "true" }, el("tr", {}, el("td", { class: "n" }), heads, el("td", { class: "n" })));
    const body = el("tbody", {}, rows.slice(start, start + CHUNK));
    chunks.push(el("table", { class: "map", role: "grid", "aria-label": t("map_label") }, head, body));
  }
  return chunks;
}

function row(trace, token) {
  const cells = Array.from({ length: trace.total }, (_, layer) => el("td", { class: state(trace, token, layer), tabindex: "-1" }));
  const head = el("th", { scope: "row", text: label(trace.tokens[token]) });
  return el("tr", { data: { token } }, head, cells, el("td", { class: "n", text: number(trace.depths[token], 2) }));
}

/** One cell can be reached by Tab; the arrow keys, Home and End move from there; pointing and tapping do too. */
function walk(trace, rows, box, reason) {
  let current = null;
  const place = (cell) => [Number(cell.parentNode.dataset.token), cell.cellIndex - 1];
  const tell = (cell) => {
    const [token, layer] = place(cell);
    const words = `${t("cell", { token: `“${label(trace.tokens[token])}”`, layer })}: ${why(trace, token, layer)}`;
    reason.textContent = words;
    cell.setAttribute("aria-label", words);
  };
  const reach = (cell) => {
    current?.setAttribute("tabindex", "-1");
    (current = cell).setAttribute("tabindex", "0");
  };
  const cellOf = (event) => event.target.closest("tbody td[tabindex]");
  if (rows.length) reach(rows[0].cells[1]);
  box.addEventListener("pointerover", (event) => cellOf(event) && tell(cellOf(event)));
  box.addEventListener("click", (event) => cellOf(event)?.focus());
  box.addEventListener("focusin", (event) => {
    if (cellOf(event)) reach(cellOf(event)), tell(cellOf(event));
  });
  box.addEventListener("keydown", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    const [token, layer] = place(cell);
    const ends = { Home: 0, End: trace.total - 1 };
    const [down, right] = STEPS[event.key] || [0, event.key in ends ? ends[event.key] - layer : 0];
    if (!(event.key in STEPS || event.key in ends)) return;
    event.preventDefault();
    const to = rows[Math.min(rows.length - 1, Math.max(0, token + down))];
    to.cells[1 + Math.min(trace.total - 1, Math.max(0, layer + right))].focus();
  });
}
