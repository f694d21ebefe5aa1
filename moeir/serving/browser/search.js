
// One query at a time: the lists of the experts beside the fused one, and why a document is there when it is chosen.
const asked = { query: "", number: 0, explained: new Set() };
seen.onchoose = explain;

async function ask(fields) {
  const body = JSON.stringify({ query: asked.query, k: data.depth, ...fields });
  const reply = await fetch("search", { method: "POST", headers: { "content-type": "application/json" }, body });
  const answer = await reply.json().catch(() => ({ error: `status ${reply.status}` }));
  if (!reply.ok) throw new Error(answer.error);
  return answer.results[0];
}

function say(text, isProblem = false) {
  byId("status").classList.toggle("warn", isProblem);
  byId("status").textContent = text;
}

async function search() {
  const query = byId("search").value.trim(), number = ++asked.number, started = performance.now();
  if (!query) return;
  asked.query = query;
  history.replaceState(null, "", "?q=" + encodeURIComponent(query));
  say("searching …");
  try {
    const result = await ask({ lists: true, texts: data.texts });
    if (number === asked.number) showLists(result, performance.now() - started);
  } catch (problem) {
    if (number === asked.number) { say(problem.message, true); replace("lists"); replace("why"); }
  }
}

// The answer in the columns of a report's page: documents by number, and the rank and score of each in every list.
function showLists(result, milliseconds) {
  const lists = runs.map((name) => result.lists[name]);
  if (lists.includes(undefined)) throw new Error("the server has another index now: load this page again");
  const numbers = new Map(), texts = [];
  for (const hit of lists.flat()) {
    if (!numbers.has(hit.document)) texts[numbers.size] = [hit.document, hit.title, hit.text];
    if (!numbers.has(hit.document)) numbers.set(hit.document, numbers.size);
  }
  const column = (list, field, missing) => {
    const values = Array(numbers.size).fill(missing);
    for (const hit of list) values[numbers.get(hit.document)] = hit[field];
    return values;
  };
  held.set("texts-0", texts);
  const found = { d: [...texts.keys()], r: lists.map((list) => column(list, "rank", 0)), s: lists.map((list) => column(list, "score", null)), g: Array(numbers.size).fill(-9) };
  Object.assign(seen, { found, chosen: -1 });
  asked.explained.clear();
  say(numbers.size ? `${plural(numbers.size, "document", "documents")} in ${plural(lists.length, "list", "lists")}, ${Math.max(1, Math.round(milliseconds))} ms` : "No document has anything of this.");
  replace("why");
  replace("lists", make("div", { class: "lists", role: "group", "aria-label": "Lists" }, runs.map((_, run) => runList(run))),
    runs.length > 1 && numbers.size ? make("p", { class: "soft hint" }, "dots: the other lists that have the document among their first " + data.depth) : "");
  document.querySelector(".lists").scrollLeft = 1e6; // the last list is the one to see first where not all have room
  if (numbers.size) chooseDocument(topOf(runs.length - 1)[0] ?? 0, runs.length - 1);
}

async function explain(number) {
  const found = seen.found, document = documentOf(found.d[number]).id;
  if (!data.explains || asked.explained.has(number)) return;
  asked.explained.add(number);
  try {
    const [explanation] = (await ask({ k: 1, explain: true, document: [document], rerank: false })).explanations;
    if (found !== seen.found) return;
    keepExplanation(found, number, explanation.experts);
    if (seen.chosen === number) showReasons(number);
  } catch (problem) {
    if (found === seen.found) { asked.explained.delete(number); say(problem.message, true); }
  }
}

const MOST_TERMS = 10;
function keepExplanation(found, number, experts) {
  const empty = () => found.d.map(() => []);
  found.x ??= Object.keys(experts);
  found.w ??= [];
  found.p ??= found.d.map(() => null);
  found.p[number] = found.x.map((expert) => experts[expert].part);
  const code = (word) => (word === null || word === undefined ? -1 : found.w.push(word) - 1);
  for (const [expert, { terms, tokens }] of Object.entries(experts)) {
    if (terms) ((found.t ??= {})[expert] ??= empty())[number] = terms.slice(0, MOST_TERMS).flatMap((one) => [code(one.term), one.query, one.document]);
    if (tokens) ((found.k ??= {})[expert] ??= empty())[number] = tokens.flatMap((one) => [code(one.query), code(one.document), one.similarity]);
  }
}

const leaveList = (key) => (key === "Escape" ? byId("search") : null);

byId("go").addEventListener("click", search);
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter") search();
  else if (event.key === "ArrowDown") document.querySelector(".hit[tabindex='0']")?.focus();
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target === byId("search")) return;
  byId("search").focus();
  byId("search").select();
  event.preventDefault();
});
replace("summary", plural(data.documents, "document", "documents") + " · " + runs.join(", "));
byId("search").value = new URLSearchParams(location.search).get("q") || "";
search();
document.documentElement.dataset.ready = "true";
})();
