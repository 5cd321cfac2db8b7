// The page to ask: a conversation, its budget and profile; every answer with what was decided and what ran.

import { call, events, json } from "./api.js";
import { byId, el } from "./dom.js";
import { explain, known, t, word } from "./strings.js";
import { drawToken, drawTurn } from "./turn.js";

const EXAMPLES = ["example_1", "example_2", "example_3"]; // from easy to hard
const NEAR = 120; // pixels from the end of the page that count as reading along

let facts = null;
let asked = false;
let turns = [];
let running = null; // the AbortController of the answer under way

export function setUp() {
  const question = byId("question");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  question.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return; // a composed word is not yet a question
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("again").addEventListener("click", () => {
    running?.abort();
    turns = [];
    draw();
    question.focus();
  });
  byId("budget").addEventListener("input", () => {
    byId("auto").checked = false;
    drawBudget();
  });
  byId("auto").addEventListener("change", drawBudget);
}

/** Takes what the server said of itself. */
export function know(told) {
  facts = told;
  const budget = byId("budget");
  budget.min = Math.ceil(facts.min_depth);
  budget.max = facts.total;
  if (byId("auto").checked) budget.value = facts.total;
  const profile = byId("profile");
  const chosen = profile.value || "balanced";
  profile.replaceChildren(...facts.profiles.map((name) => el("option", { value: name, text: known(`profile_${name}`) ? t(`profile_${name}`) : name })));
  profile.value = facts.profiles.includes(chosen) ? chosen : facts.profiles[0];
  draw();
  if (asked) ask();
}

export function draw() {
  if (!facts) return;
  drawBudget();
  byId("turns").replaceChildren(...turns.map(drawn));
  byId("empty").hidden = turns.length > 0;
  byId("examples").replaceChildren(...EXAMPLES.map((name) => el("button", { type: "button", text: t(name), on: { click: () => ask(t(name)) } })));
  byId("again").hidden = turns.length === 0;
  const state = byId("state");
  const now = turns.findLast((turn) => turn.trace)?.trace.experience || facts.state || "steady";
  state.hidden = !turns.length || now === "steady";
  state.textContent = word(now);
}

function drawBudget() {
  if (!facts) return; // moved before the server had said how deep its model is
  const auto = byId("auto").checked;
  const shown = auto ? t("budget_auto") : t("layers_of", { layers: byId("budget").value, total: facts.total });
  byId("budget-shown").textContent = shown;
  byId("budget").setAttribute("aria-valuetext", shown);
}

function drawn(turn) {
  turn.drawn = turn.pieces.length;
  return (turn.node = drawTurn(turn, facts, vote));
}

function redraw(turn) {
  if (turns.includes(turn)) turn.node.replaceWith(drawn(turn)); // else the conversation was left
}

async function ask(example = null) {
  const field = byId("question");
  const question = example ?? field.value;
  asked = !facts && Boolean(question.trim()); // then asked as soon as the server has said what it has
  if (!question.trim() || running || !facts) return;
  const before = turns.filter((turn) => turn.pieces.length);
  for (const turn of turns) turn.open.map = turn.open.why = false;
  const turn = { question, pieces: [], open: { map: true, why: true }, done: false };
  turns = [...turns, turn];
  if (example === null) field.value = "";
  running = new AbortController();
  busy(true);
  draw();
  turn.node.scrollIntoView({ block: "nearest" });
  try {
    await stream(turn, body(before, turn.question), running.signal);
  } catch (error) {
    if (error.name === "AbortError") turn.stopped = true;
    else turn.error = explain(error);
    if (turn.error && !field.value) field.value = question; // to be asked again, or shortened
  }
  turn.done = true;
  running = null;
  busy(false);
  const along = nearEnd();
  redraw(turn);
  byId("said").textContent = turn.error || turn.pieces.map((piece) => piece.text).join("");
  if (along) turn.node.scrollIntoView({ block: "start" });
  facts = { ...facts, ...(await json("v1/console").catch(() => ({}))) };
  draw();
}

function body(before, question) {
  const said = before.flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: turn.pieces.map((piece) => piece.text).join("") },
  ]);
  const depth = byId("auto").checked ? "auto" : Number(byId("budget").value);
  return {
    model: facts.model, messages: [...said, { role: "user", content: question }], stream: true, trace: "full",
    max_depth: depth, profile: byId("profile").value, ...(byId("cache").checked ? {} : { cache: false }),
  };
}

async function stream(turn, request, signal) {
  const response = await call("v1/chat/completions", { method: "POST", body: request, signal });
  for await (const event of events(response)) {
    const [choice] = event.choices;
    if (event.shoal.id) turn.trace = event.shoal;
    if (choice?.finish_reason === "length") turn.cut = true;
    if (choice?.delta.content) add(turn, { text: choice.delta.content, depth: event.shoal.depth.max });
  }
  if (facts.parts.traces && turn.trace.depth.per_token.length) {
    const kept = await json(`v1/traces/${encodeURIComponent(turn.trace.id)}`, { signal }).catch(() => null);
    turn.tokens = kept?.tokens;
  }
}

/** Takes a piece; what came since the last picture is drawn with the next one, so that a fast model cannot choke the page. */
function add(turn, piece) {
  turn.pieces.push(piece);
  if (turn.pieces.length === turn.drawn + 1) requestAnimationFrame(() => drawNew(turn));
}

function drawNew(turn) {
  if (turn.done || turn.drawn === turn.pieces.length) return;
  const along = nearEnd();
  const answer = turn.node.querySelector(".answer");
  if (!turn.drawn) answer.replaceChildren();
  answer.append(...turn.pieces.slice(turn.drawn).map((piece) => drawToken(piece, facts)));
  turn.drawn = turn.pieces.length;
  follow(along);
}

const nearEnd = () => window.innerHeight + window.scrollY > document.documentElement.scrollHeight - NEAR;
const follow = (along) => along && byId("turns").lastElementChild?.scrollIntoView({ block: "nearest" });

function busy(on) {
  byId("send").hidden = on;
  byId("stop").hidden = !on;
}

async function vote(turn, up) {
  try {
    await json("v1/feedback", { method: "POST", body: { request_id: turn.trace.id, up } });
    turn.thumb = up;
    turn.noted = up ? "thanked" : "retracted";
  } catch (error) {
    if (error.code === "answer_not_found") turn.noted = "forgotten";
    else turn.error = explain(error);
  }
  redraw(turn);
  turn.node.querySelector(`[data-thumb=${up ? "up" : "down"}]`).focus();
}
