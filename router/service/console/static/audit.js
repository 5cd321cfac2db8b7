// The last audit of the knowledge base, drawn from its report: size, recall, depth, what is hard, what was set aside.

import { columns, el, share, table } from "./dom.js";
import { language, number, t } from "./strings.js";

const MOST = 20; // rows of a table

/** Nodes that tell the report; one that says how to make one when there is none. */
export function drawAudit(report) {
  if (!report) return [el("p", { class: "note", text: t("audit_none") })];
  const { before, after } = report.depth;
  return [
    el("p", { class: "note", text: t(report.dry_run ? "audit_dry" : report.undone ? "audit_undone" : "audit_note", { made: new Date(report.made).toLocaleString(language), limit: report.limit }) }),
    el("div", { class: "tiles" }, tiles(report)),
    el("div", { class: "panels" },
      el("section", {}, el("h3", { text: t("audit_before") }), histogram(before, t("audit_before"))),
      el("section", {}, el("h3", { text: t("audit_after") }), histogram(after, t("audit_after")))),
    groups(report.depth.by_source, "audit_source"),
    groups(report.depth.by_scenario, "audit_scenario"),
    hardest(report),
    quarantine(report.quarantine),
  ].flat();
}

function tiles({ size, documents, recall }) {
  const change = size.after.characters / Math.max(1, size.before.characters) - 1;
  const rows = [
    ["documents", t("audit_documents"), number(documents.all)],
    ["hard", t("audit_hard"), number(documents.split)],
    documents.not_scored ? ["unscored", t("audit_unscored"), number(documents.not_scored)] : null,
    ["size", t("audit_size"), `${change > 0 ? "+" : ""}${Math.round(100 * change)}%`],
    ["aside", t("audit_aside"), number(size.quarantined.passages)],
    "before" in recall ? ["recall", t("audit_recall", { k: recall.k }), [recall.before, recall.after].filter((value) => value !== undefined).map((value) => `${number(100 * value)}%`).join(" → ")] : null,
  ];
  return rows.filter(Boolean).map(([name, label, value]) => el("dl", { class: "tile", data: { tile: name } }, el("dt", { text: label }), el("dd", { text: value })));
}

const histogram = (counts, label) => columns(counts, label, { names: counts.map((_, i) => number(i / counts.length, 2)) });

function groups(rows, name) {
  const heads = [t(name), t("audit_documents"), t("audit_mean"), t("audit_hard"), t("audit_units")];
  const cells = rows.slice(0, MOST).map((row) => [row.name, number(row.documents), row.mean === null ? "–" : number(row.mean, 2), share(row.hard / row.documents), number(row.hard_units)]);
  return [el("h3", { text: t(name) }), table(heads, cells, t(name))];
}

function hardest({ hardest: rows }) {
  const title = el("h3", { text: t("audit_hardest") });
  if (!rows.length) return [title, el("p", { class: "note", text: t("audit_all_easy") })];
  const heads = [t("audit_document"), t("audit_score"), t("audit_begins")];
  return [title, table(heads, rows.slice(0, MOST).map((row) => [row.doc_id, number(row.score, 2), row.text]), t("audit_hardest"), "stack")];
}

function quarantine({ passages, hardest: rows }) {
  const title = el("h3", { text: t("audit_quarantine", { n: number(passages) }) });
  const how = el("p", { class: "note", text: t("audit_restore") });
  if (!rows.length) return [title];
  const heads = ["id", t("audit_document"), t("audit_score"), t("audit_text")];
  const cells = rows.slice(0, MOST).map((row) => [row.id, `${row.doc_id}, ${row.span.join("-")}`, number(row.score, 2), row.text]);
  return [title, how, table(heads, cells, t("audit_quarantine", { n: number(passages) }), "stack")];
}
