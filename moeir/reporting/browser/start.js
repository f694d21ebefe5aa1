(() => {
"use strict";

// What the page knows: `data` at once, cases and texts in chunks when somebody looks.
const byId = (id) => document.getElementById(id);
const held = new Map();
function stored(id) {
  if (!held.has(id)) held.set(id, JSON.parse(byId(id).textContent));
  return held.get(id);
}
const data = stored("data");
const runs = data.runs || [];
const caseOf = (place) => stored("cases-" + Math.floor(place / data.chunks.cases))[place % data.chunks.cases];
function documentOf(number) {
  const [id, title = "", text = ""] = stored("texts-" + Math.floor(number / data.chunks.texts))[number % data.chunks.texts];
  return { id, title, text };
}

// Elements are made by hand: what stands in a text is never markup.
const SVG = "http://www.w3.org/2000/svg";
function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
const replace = (id, ...children) => byId(id).replaceChildren(...children);
const colour = (number) => "r" + (number % 8);
const dot = (number) => make("i", { class: "dot " + colour(number), "aria-hidden": "true" });
function sized(node, share) {
  node.style.width = Math.max(0, Math.min(100, 100 * share)) + "%";
  return node;
}

// Numbers and words as people read them.
const folded = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const plural = (count, one, many) => count.toLocaleString("en") + " " + (count === 1 ? one : many);
const fixed = (number, digits = 4) => number.toFixed(digits);
const short = (number) => (Number.isInteger(number) ? String(number) : Number(number.toPrecision(4)).toString());
const chance = (p) => (p < 0.001 ? "<0.001" : p.toFixed(3));
const value = (measure, run, place) => data.judged.values[measure][run][place] / 10000;

function options(select, names, chosen, changed) {
  select.replaceChildren(...names.map((name, number) => make("option", { value: number, selected: number === chosen }, name)));
  select.addEventListener("change", () => changed(Number(select.value)));
}

function opened(section, title) {
  byId(section).hidden = false;
  byId("ways").append(make("a", { href: "#" + section }, title));
}

// Light, dark, or as the system has it; kept where the browser lets a file keep something.
const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
function remembered(name) {
  try { return localStorage.getItem(name); } catch { return null; }
}
function remember(name, text) {
  try { localStorage.setItem(name, text); } catch { /* a file may not: then it is forgotten */ }
}
function themed(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  byId("theme").textContent = THEMES[name];
  byId("theme").dataset.now = name;
}
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(byId("theme").dataset.now) + 1) % names.length];
  themed(next);
  remember("moeir-theme", next);
});
themed(THEMES[remembered("moeir-theme")] ? remembered("moeir-theme") : "auto");
