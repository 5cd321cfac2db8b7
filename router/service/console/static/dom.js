// Elements made from data. Text only ever becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";
// control characters and marks that turn the reading direction: a text must not disguise what stands around it
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

export const clean = (text) => String(text).replace(HIDDEN, "");

/** An element with properties (`class`, `text`, `on`, `data`, else attributes) and children (nodes, text, null). */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = clean(value);
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : clean(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) made.append(child instanceof Node ? child : clean(child));
  }
  return made;
}

/** An icon of one path on a 16 × 16 field; says nothing to a screen reader. */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" })) {
    svg.setAttribute(name, value);
  }
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

export const byId = (id) => document.getElementById(id);

/** A table with a head, in a box that scrolls sideways by itself. */
export function table(heads, rows, label, kind = "") {
  const head = el("thead", {}, el("tr", {}, heads.map((name) => el("th", { scope: "col", text: name }))));
  const body = el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))));
  const made = el("table", { class: `rows ${kind}`, "aria-label": label }, head, body);
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, made);
}

/** Columns of equal width whose heights are shares of `most`; told in words to who cannot see them. */
export function columns(values, label, { names = values.map((_, i) => i), most = Math.max(...values), unit = "", titles = names.map((name, i) => `${name}: ${values[i]}${unit}`) } = {}) {
  const said = names.map((name, i) => [name, values[i]]).filter(([, value]) => value).map(([n, v]) => `${n}: ${v}${unit}`);
  const slots = values.map((value, i) => {
    const bar = el("span", { class: "bar", title: titles[i] });
    bar.style.height = value ? `${Math.max(2, (100 * value) / most)}%` : "0";
    return el("span", { class: "slot" }, el("span", { class: "well" }, bar), el("span", { class: "tick", text: i % 5 ? "" : names[i] }));
  });
  return el("div", { class: "columns", role: "img", "aria-label": `${label}. ${said.join(", ") || "0"}` },
    el("span", { class: "most", text: `${most}${unit}` }), slots);
}

/** A share from 0 to 1 as a bar with its number. */
export function share(value, shown = `${Math.round(100 * value)}%`) {
  const fill = el("span", { class: "fill" });
  fill.style.width = `${Math.min(100, Math.max(0, 100 * value))}%`;
  return el("span", { class: "share" }, el("span", { class: "track", "aria-hidden": "true" }, fill), shown);
}
