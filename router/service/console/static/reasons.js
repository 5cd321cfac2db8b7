// A full trace read cell by cell: what each branch did for each token, and the reason in words.
// The same words as `shoal trace` has, in both languages; the form of the columns is in docs/traces.md.

import { t } from "./strings.js";

export const BRANCHES = ["attention", "mlp"];
const SAFETY = "s";
const BEFORE = -1;
const ALL = ["entropy", "attention_kl", "residual", "confidence"];
const SIGNALS = { n: ALL, e: [ALL[0]], a: [ALL[1]], d: [ALL[2]], c: [ALL[3]] };

const letterOf = (trace, token, layer, branch) => trace.patterns[trace.pattern[token]][2 * layer + branch];
const runs = (letter) => letter !== letter.toLowerCase();

/** How a cell looks: r both ran, a attention only, m MLP only, o skipped, f safety. The classes of the trace page. */
export function state(trace, token, layer) {
  const letters = [0, 1].map((branch) => letterOf(trace, token, layer, branch));
  if (letters.every((letter) => letter.toLowerCase() === SAFETY)) return "f";
  return ["o", "m", "a", "r"][2 * runs(letters[0]) + runs(letters[1])];
}

/** Why both branches of a cell ran or were skipped. */
export function why(trace, token, layer) {
  const said = [0, 1].map((branch) => {
    const letter = letterOf(trace, token, layer, branch);
    return { state: t(runs(letter) ? "ran" : "skipped"), reason: reason(trace, token, layer, branch, letter) };
  });
  const one = (branch, at) => t("because", { branch, ...said[at] });
  if (said[0].state === said[1].state && said[0].reason === said[1].reason) return one(t("both"), 0);
  return `${one(t("attention"), 0)}; ${one(t("mlp"), 1)}`;
}

function reason(trace, token, layer, branch, letter) {
  const why = letter.toLowerCase();
  if (why in SIGNALS) return signalled(trace, token, layer, SIGNALS[why]) || t("by_signal");
  const gate = why === "g" && trace.gates.length ? ` (${trace.gates[token][2 * layer + branch].toFixed(2)})` : "";
  if (runs(letter)) return t(`ran_${why}`) + gate;
  if (why === "p") {
    const point = trace.points.find(([kind, at]) => kind === BRANCHES[branch] && at === layer);
    if (point) return t("off_p_at", { depth: short(point[2]), loss: point[3].toFixed(2) });
  }
  return t(`off_${why}`) + gate;
}

/** The signals that decided, each where it was probed: the nearest layer up to the branch's own. */
function signalled(trace, token, layer, names) {
  const bare = [];
  const bounded = [];
  for (const name of names) {
    const place = nearest(trace.signals, layer, name, (column) => column[token]);
    const value = place === null ? null : trace.signals[place][name][token];
    if (value === null || value === undefined) continue;
    const limit = nearest(trace.thresholds, layer, name, (bound) => bound);
    const where = place === layer ? "" : place === BEFORE ? t("token_before") : t("at_layer", { layer: place });
    const said = `${t(name)} ${short(value)}${where}`;
    if (limit === null) bare.push(said);
    else bounded.push(`${said} ${side(value, trace.thresholds[limit][name])} ${short(trace.thresholds[limit][name])}`);
  }
  return (bounded.length ? bounded : bare).join(", ");
}

function nearest(probes, layer, name, of) {
  const places = Object.keys(probes).map(Number).filter((place) => place <= layer && name in probes[place]);
  const with_value = places.filter((place) => of(probes[place][name]) !== null);
  return with_value.length ? Math.max(...with_value) : null;
}

const side = (value, bound) => t(value < bound ? "below" : value > bound ? "above" : "at");
const short = (value) => String(Number(Math.abs(value) >= 0.1 ? value.toFixed(2) : value.toPrecision(2)));
