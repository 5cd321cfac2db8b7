// The page to ask: a conversation, its budget and profile; every answer with what was decided and what ran.

import { call, events, json } from "./api.js";
import { byId, el } from "./dom.js";
import { explain, t, word } from "./strings.js";
import { drawToken, drawTurn } from "./turn.js";

const NEAR = 120; // pixels from the end of the page that count as reading along

let facts = null;
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
    ask();
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
  profile.replaceChildren(...facts.profiles.map((name) => el("option", { value: name, text: name })));
  profile.value = facts.profiles.includes(chosen) ? chosen : facts.profiles[0];
  draw();
}

export function draw() {
  if (!facts) return;
  drawBudget();
  byId("turns").replaceChildren(...turns.map((turn) => (turn.node = drawTurn(turn, facts, vote))));
  byId("empty").hidden = turns.length > 0;
  byId("again").hidden = turns.length === 0;
  const state = byId("state");
  state.hidden = !turns.length || !facts.state || facts.state === "steady";
  state.textContent = facts.state ? word(facts.state) : "";
}

function drawBudget() {
  const auto = byId("auto").checked;
  const shown = auto ? t("budget_auto") : t("layers_of", { layers: byId("budget").value, total: facts.total });
  byId("budget-shown").textContent = shown;
  byId("budget").setAttribute("aria-valuetext", shown);
}

function redraw(turn) {
  if (!turns.includes(turn)) return; // the conversation was left
  const made = drawTurn(turn, facts, vote);
  turn.node.replaceWith(made);
  turn.node = made;
}

async function ask() {
  const field = byId("question");
  if (!field.value.trim() || running || !facts) return;
  const before = turns.filter((turn) => turn.pieces.length);
  for (const turn of turns) turn.open.map = turn.open.why = false;
  const turn = { question: field.value, pieces: [], open: { map: true, why: true }, done: false };
  turns = [...turns, turn];
  field.value = "";
  running = new AbortController();
  busy(true);
  draw();
  turn.node.scrollIntoView({ block: "nearest" });
  try {
    await stream(turn, body(before, turn.question), running.signal);
  } catch (error) {
    if (error.name === "AbortError") turn.stopped = true;
    else turn.error = explain(error);
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
    if (choice?.delta.content) add(turn, { text: choice.delta.content, depth: event.shoal.depth.max });
  }
  if (facts.parts.traces && turn.trace.depth.per_token.length) {
    const kept = await json(`v1/traces/${encodeURIComponent(turn.trace.id)}`, { signal }).catch(() => null);
    turn.tokens = kept?.tokens;
  }
}

function add(turn, piece) {
  const along = nearEnd();
  turn.pieces.push(piece);
  const answer = turn.node.querySelector(".answer");
  if (turn.pieces.length === 1) answer.replaceChildren();
  answer.append(drawToken(piece, facts));
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
