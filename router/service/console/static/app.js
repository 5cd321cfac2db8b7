// Puts the console together: the three pages, the language, the key.

import { json, key } from "./api.js";
import * as ask from "./ask.js";
import { byId } from "./dom.js";
import * as knowledge from "./knowledge.js";
import * as live from "./live.js";
import { explain, language, setLanguage, t, translate } from "./strings.js";

const PAGES = { ask, live, knowledge };
let known = false; // whether the server has said what it has
const keyed = document.documentElement.dataset.keys === "yes";

function draw() {
  translate();
  byId("language").textContent = language === "zh" ? "English" : "中文";
  byId("language").lang = language === "zh" ? "en" : "zh-Hans";
  for (const page of Object.values(PAGES)) page.draw();
}

function go() {
  const chosen = location.hash.slice(1);
  const name = chosen in PAGES ? chosen : "ask";
  document.title = `${t(name)} · Shoal`;
  for (const [each, page] of Object.entries(PAGES)) {
    byId(`page-${each}`).hidden = each !== name;
    page.show?.(each === name);
  }
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (known) byId("problem").hidden = true;
}

/** Asks the service about itself; asks for a key where the service wants one that is not there or wrong. */
async function know() {
  if (keyed && !key.get()) return askKey("");
  try {
    const facts = await json("v1/console");
    known = true;
    byId("problem").hidden = true;
    for (const page of Object.values(PAGES)) page.know(facts);
  } catch (error) {
    if (error.status === 401) return askKey(t("key_wrong"));
    problem(explain(error));
  }
}

function problem(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = false;
}

function askKey(wrong) {
  byId("key-wrong").textContent = wrong;
  byId("key-value").value = "";
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

byId("language").addEventListener("click", () => {
  setLanguage(language === "zh" ? "en" : "zh");
  draw();
  go();
});
byId("key").hidden = !keyed;
byId("key").addEventListener("click", () => askKey(""));
byId("key-form").addEventListener("submit", () => {
  key.set(byId("key-value").value.trim());
  know().then(go);
});
byId("key-dialog").addEventListener("cancel", () => {
  if (!known) problem(t("key_missing"));
});
byId("composer").addEventListener("submit", () => known || know());
window.addEventListener("hashchange", go);
for (const page of Object.values(PAGES)) page.setUp();
draw();
know().then(go);
