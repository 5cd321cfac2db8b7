// The knowledge base: what it holds, what it finds, and, for an administrator's key, adding and deleting.

import { json } from "./api.js";
import { drawAudit } from "./audit.js";
import { byId, el } from "./dom.js";
import { explain, number, t } from "./strings.js";
import { drawPassage } from "./turn.js";

const MOST = 200; // names shown at once
const HITS = 8;

let facts = null;
let held = null; // what the service lists
let hits = null;
let audit = null;
let shown = false;

export function setUp() {
  byId("search").addEventListener("submit", (event) => act(event, search));
  byId("add").addEventListener("submit", (event) => act(event, add));
  byId("filter").addEventListener("input", drawDocuments);
}

export function know(told) {
  facts = told;
  if (shown) return read();
}

export function show(on) {
  shown = on;
  if (on) return read();
}

async function read() {
  if (!facts) return;
  if (facts.parts.kb) await safely(async () => {
    [held, { audit }] = await Promise.all([json("v1/kb"), json("v1/kb/audit")]);
  });
  draw();
}

export function draw() {
  if (!facts) return;
  const { kb } = facts.parts;
  for (const id of ["search", "filter", "add"]) {
    for (const field of byId(id).querySelectorAll("input, textarea, button")) field.disabled = !kb;
  }
  byId("filter").disabled = !kb;
  byId("add").hidden = !(kb && facts.admin);
  byId("audit").hidden = !kb;
  if (!kb) byId("kb-size").textContent = t("kb_none");
  if (!held) return;
  byId("kb-size").textContent = t("kb_size", { documents: number(held.documents.length), chunks: number(held.chunks) });
  drawDocuments();
  drawHits();
  byId("audited").replaceChildren(...drawAudit(audit));
}

function drawDocuments() {
  if (!held) return;
  const part = byId("filter").value.toLowerCase();
  const found = held.documents.filter((name) => name.toLowerCase().includes(part));
  const rows = found.slice(0, MOST).map((name) => el("li", {}, el("span", { class: "name", text: name }), facts.admin ? deleter(name) : null));
  if (found.length > MOST) rows.push(el("li", { class: "note", text: t("kb_more", { n: found.length - MOST }) }));
  byId("documents").replaceChildren(...rows);
}

function deleter(name) {
  const remove = () => window.confirm(t("kb_sure", { name })) && safely(async () => {
    await json(`v1/kb/documents/${encodeURIComponent(name)}`, { method: "DELETE" });
    await read();
    byId("added").textContent = t("kb_deleted", { name });
    byId("filter").focus();
  });
  return el("button", { type: "button", "aria-label": t("kb_delete_named", { name }), text: t("kb_delete"), on: { click: remove } });
}

function drawHits() {
  if (!hits) return;
  byId("hits").replaceChildren(...(hits.length ? hits.map((hit) => drawPassage(hit)) : [el("p", { class: "note", text: t("kb_nothing") })]));
}

async function search() {
  ({ hits } = await json("v1/kb/search", { method: "POST", body: { query: byId("query").value, k: HITS } }));
  drawHits();
}

async function add() {
  const typed = { id: byId("doc-id").value.trim(), text: byId("doc-text").value };
  const files = await Promise.all([...byId("files").files].map(async (file) => ({ id: file.name, text: await file.text() })));
  const documents = [...files, ...(typed.id && typed.text.trim() ? [typed] : [])];
  if (!documents.length) {
    byId("added").textContent = t("kb_need");
    return;
  }
  byId("added").textContent = t("busy");
  const told = await json("v1/kb/documents", { method: "POST", body: { documents } });
  byId("add").reset();
  byId("added").textContent = t("kb_added", told);
  await read();
}

function act(event, work) {
  event.preventDefault();
  return safely(work);
}

async function safely(work) {
  const problem = byId("problem");
  try {
    problem.hidden = true;
    await work();
  } catch (error) {
    byId("added").textContent = "";
    problem.textContent = explain(error);
    problem.hidden = false;
  }
}
