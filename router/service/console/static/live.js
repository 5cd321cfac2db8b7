// The live page: what the service's own metrics, layer health and ledger say, read again every few seconds.

import { call, json } from "./api.js";
import { byId, columns, el, share, table } from "./dom.js";
import { Page } from "./prometheus.js";
import { explain, number, t, word } from "./strings.js";

const EVERY_S = 10;
const PRICES = { layer: "price-layer", prompt: "price-prompt", completion: "price-completion" };
const TIERS = ["l1", "l2", "semantic", "flight", "miss"];
const FREE = ["faq", "cache", "extract"];

let facts = null;
let seen = null; // what was read last
let paused = false;
let shown = false;

export function setUp() {
  byId("pause").addEventListener("click", () => {
    paused = !paused;
    draw();
    if (!paused) read();
  });
  for (const id of Object.values(PRICES)) {
    byId(id).addEventListener("input", () => {
      localStorage.setItem(`shoal-${id}`, byId(id).value);
      drawCosts();
    });
  }
  setInterval(() => shown && !paused && !document.hidden && read(), EVERY_S * 1000);
}

export function know(told) {
  facts = told;
  const usual = { layer: number(1 / facts.total, 4), prompt: "1", completion: "1" };
  for (const [name, id] of Object.entries(PRICES)) byId(id).value ||= localStorage.getItem(`shoal-${id}`) || usual[name];
}

export function show(on) {
  shown = on;
  if (on) return read();
}

async function read() {
  if (!facts) return;
  try {
    const [metrics, health, usage, told] = await Promise.all([
      call("metrics").then((response) => response.text()),
      json("v1/layers/health"),
      facts.parts.ledger ? json("v1/usage?by=route&days=30") : null,
      json("v1/console"),
    ]);
    seen = { page: new Page(metrics), health, usage, at: new Date(), state: told.state };
    byId("problem").hidden = true;
  } catch (error) {
    byId("problem").textContent = explain(error);
    byId("problem").hidden = false;
  }
  draw();
}

export function draw() {
  byId("pause").textContent = t(paused ? "resume" : "pause");
  byId("pause").setAttribute("aria-pressed", String(paused));
  if (!seen) return;
  byId("fresh").textContent = t("fresh", { time: seen.at.toLocaleTimeString() });
  byId("tiles").replaceChildren(...tiles());
  const { page } = seen;
  byId("by-route").replaceChildren(shares(page.by("shoal_answers_total", "route")));
  byId("by-tier").replaceChildren(shares(page.by("shoal_answers_total", "tier"), TIERS, "tier_"));
  byId("by-depth").replaceChildren(depths(page));
  byId("by-layer").replaceChildren(...layers(seen.health));
  drawCosts();
}

function tiles() {
  const { page } = seen;
  const routes = page.by("shoal_answers_total", "route");
  const tiers = page.by("shoal_answers_total", "tier");
  const all = page.sum("shoal_answers_total");
  const percent = (part) => (all ? `${Math.round((100 * part) / all)}%` : "–");
  const free = FREE.reduce((sum, route) => sum + (routes.get(route) || 0), 0);
  const mode = page.of("shoal_depth_mode").find(({ value }) => value === 1);
  const rows = [
    ["answers", t("tile_answers"), number(all, 0)],
    ["depth", t("tile_depth", { total: facts.total }), all ? number(page.mean("shoal_depth_layers")) : "–"],
    ["hits", t("tile_hits"), percent(all - (tiers.get("miss") || 0))],
    ["free", t("tile_free"), percent(free)],
    ["queue", t("tile_queue"), `${page.sum("shoal_in_flight")} / ${page.sum("shoal_queued")}`],
    ["skipped", t("tile_skipped"), number(page.sum("shoal_skipped_branches_total"), 0)],
    ["mode", t("tile_mode"), word(mode?.labels.shoal_depth_mode || "normal")],
    ["state", t("tile_state"), seen.state ? word(seen.state) : "–"],
  ];
  return rows.map(([name, label, value]) => el("dl", { class: "tile", data: { tile: name } }, el("dt", { text: label }), el("dd", { text: value })));
}

function shares(counts, order = [...counts.keys()], names = "") {
  const all = [...counts.values()].reduce((sum, value) => sum + value, 0);
  if (!all) return none();
  return el("ul", { class: "shares" }, order.map((name) => {
    const count = counts.get(name) || 0;
    const shown = `${number(count, 0)} · ${Math.round((100 * count) / all)}%`;
    return el("li", { data: { name } }, el("span", { class: "name", text: word(names + name) }), share(count / all, shown));
  }));
}

function depths(page) {
  const { edges, counts } = page.histogram("shoal_depth_layers");
  return counts.some(Boolean) ? columns(counts, t("by_depth"), { names: edges }) : none();
}

/** Of each layer, the share of its two branches that were skipped. */
function layers({ layers: health, requests }) {
  const percent = (rate) => Math.round(1000 * (1 - (rate ?? 1))) / 10;
  const skipped = Object.values(health).map(({ attention, mlp }) => [percent(attention), percent(mlp)]);
  const rates = skipped.map(([attention, mlp]) => number((attention + mlp) / 2));
  const titles = skipped.map(([attention, mlp], layer) => t("layer_skipped", { layer, attention, mlp }));
  if (!requests) return [none()];
  return [columns(rates.map(Number), t("by_layer"), { most: 100, unit: "%", titles }),
    el("p", { class: "note", text: t("by_layer_note", { requests: number(requests) }) })];
}

const none = () => el("p", { class: "note", text: t("none_yet") });

function drawCosts() {
  if (!seen) return;
  if (!seen.usage) return byId("costs").replaceChildren(el("p", { class: "note", text: t("no_ledger") }));
  const price = Object.fromEntries(Object.entries(PRICES).map(([name, id]) => [name, Number(byId(id).value) || 0]));
  const total = seen.usage.rows.reduce((sum, row) => {
    for (const name of ["requests", "prompt_tokens", "completion_tokens", "layer_tokens", "full_depth"]) sum[name] = (sum[name] || 0) + row[name];
    return sum;
  }, { route: t("all") });
  const heads = ["route", "requests", "tokens", "layer_tokens", "full", "saved", "by_depth", "plain"].map((name) => t(`col_${name}`));
  const rows = [...seen.usage.rows, ...(seen.usage.rows.length > 1 ? [total] : [])].map((row) => costs(row, price));
  const { quota } = seen.usage;
  const notes = [avoided(seen.usage.rows, total, price), quota ? t("quota", { left: number(quota.left, 0), granted: number(quota.granted, 0) }) : null];
  byId("costs").replaceChildren(rows.length ? table(heads, rows, t("cost"), "figures") : none(),
    ...notes.filter(Boolean).map((text) => el("p", { class: "note", text })));
}

const plainly = (row, price) => (row.prompt_tokens * price.prompt + row.completion_tokens * price.completion) / 1000;

/** What the answers without a model saved, by the mean of the answers with one; nothing where there are none of either. */
function avoided(rows, total, price) {
  const asked = (some) => rows.filter(some).reduce((sum, row) => sum + row.requests, 0);
  const [free, made] = [asked((row) => FREE.includes(row.route)), asked((row) => row.full_depth)];
  return free && made ? t("avoided", { n: number(free, 0), plain: number((free * plainly(total, price)) / made, 3) }) : null;
}

function costs(row, price) {
  const saved = row.full_depth ? `${Math.round(100 * (1 - row.layer_tokens / row.full_depth))}%` : "–";
  return [word(row.route), number(row.requests, 0), number(row.prompt_tokens + row.completion_tokens, 0), number(row.layer_tokens, 0),
    number(row.full_depth, 0), saved, number((row.layer_tokens * price.layer) / 1000, 3), number(plainly(row, price), 3)];
}
