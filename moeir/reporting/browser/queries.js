
// The queries: searched, narrowed, ordered; only those in sight are in the page.
const ROW = 62;
const browsing = { only: null, words: "", search: "", show: 0, order: 0, listed: [], now: -1 };
const foldedTexts = [];
const best = (place) => Math.max(...runs.map((_, run) => value(0, run, place)));
const last = runs.length - 1;
const others = runs.map((_, run) => run).slice(0, -1);
const gain = (place) => value(0, last, place) - Math.max(...others.map((run) => value(0, run, place)));
const spread = (place) => best(place) - Math.min(...runs.map((_, run) => value(0, run, place)));
const answered = (run, place) => data.firsts[run][place] > 0 && data.firsts[run][place] <= data.depth;

// What can be shown, and in which order: words, and what they mean of a query.
function selections() {
  const named = runs.map((name, run) => [`best: ${name}`, (place) => best(place) > 0 && runs.every((_, other) => other === run || value(0, other, place) < value(0, run, place))]);
  const alone = runs.map((name, run) => [`answer only from ${name}`, (place) => runs.every((_, other) => answered(other, place) === (other === run))]);
  const fused = runs.length > 2 ? [[`${runs[last]} below the best`, (place) => gain(place) < 0], [`${runs[last]} above all`, (place) => gain(place) > 0]] : [];
  return [["all queries", () => true], ...(runs.length > 1 ? named : []), ...(runs.length > 1 ? alone : []), ...fused,
    ["no answer in any list", (place) => runs.every((_, run) => !answered(run, place))]];
}
function orders() {
  const measure = runs.length ? data.judged.measures[0] : "";
  return [["as judged", null], [`${measure} of ${runs[last]}, worst first`, (place) => value(0, last, place)], [`${measure} of ${runs[last]}, best first`, (place) => -value(0, last, place)],
    ...(runs.length > 1 ? [["runs differ most", (place) => -spread(place)], [`${runs[last]} gains most`, (place) => -gain(place)], [`${runs[last]} loses most`, gain]] : []),
    ["longest first", (place) => -data.texts[place].length]];
}
const SHOWN = selections(), ORDERS = orders();

function relist(keep = true) {
  const before = browsing.listed[browsing.now], wanted = folded(browsing.search).split(/\s+/).filter(Boolean);
  if (wanted.length && !foldedTexts.length) data.texts.forEach((text, place) => foldedTexts.push(folded(text + " " + data.queries[place])));
  const source = browsing.only || data.queries.map((_, place) => place);
  let found = source.filter((place) => SHOWN[browsing.show][1](place) && wanted.every((word) => foldedTexts[place].includes(word)));
  const by = ORDERS[browsing.order][1];
  if (by) found = found.map((place) => [by(place), place]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((one) => one[1]);
  browsing.listed = found;
  browsing.now = keep && before !== undefined ? found.indexOf(before) : -1;
  if (browsing.now < 0) browsing.now = found.length ? 0 : -1;
  const clear = browsing.only ? [" · " + browsing.words + " ", make("button", { type: "button", onclick: () => { browsing.only = null; relist(); } }, "show all")] : [];
  replace("count", plural(found.length, "query", "queries"), found.length < data.queries.length ? " of " + data.queries.length.toLocaleString("en") : "", ...clear);
  byId("rows").style.height = found.length * ROW + "px";
  if (browsing.now >= 0) visit(browsing.now);
  else { paintRows(); replace("case", make("p", { class: "card soft" }, "No query is like that.")); }
}

function showOnly(places, words) {
  Object.assign(browsing, { only: places, words, search: "", show: 0 });
  byId("search").value = "";
  byId("show").value = 0;
  relist(false);
  byId("cases").scrollIntoView();
  byId("queries").focus({ preventScroll: true });
}

function paintRows() {
  const list = byId("queries"), first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4), end = Math.min(browsing.listed.length, first + Math.ceil(list.clientHeight / ROW) + 9);
  const rows = [];
  for (let number = first; number < end; number++) rows.push(queryRow(number));
  replace("rows", ...rows);
  if (browsing.now >= first && browsing.now < end) list.setAttribute("aria-activedescendant", "query-" + browsing.now);
  else list.removeAttribute("aria-activedescendant");
}

function queryRow(number) {
  const place = browsing.listed[number];
  const marks = runs.slice(0, 6).map((name, run) => make("span", { title: `${name}: first answer at rank ${data.firsts[run][place] || "–"}` }, dot(run), data.firsts[run][place] || "–"));
  const row = make("div", { class: "query", id: "query-" + number, role: "option", "aria-selected": String(number === browsing.now), "aria-posinset": number + 1, "aria-setsize": browsing.listed.length },
    make("b", {}, data.texts[place] || data.queries[place]), make("small", {}, marks));
  row.style.top = number * ROW + "px";
  row.addEventListener("click", () => { visit(number); byId("queries").focus({ preventScroll: true }); });
  return row;
}

function visit(number) {
  browsing.now = Math.max(0, Math.min(number, browsing.listed.length - 1));
  const list = byId("queries"), top = browsing.now * ROW;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  paintRows();
  showCase(browsing.listed[browsing.now]);
}

function queryKeys(event) {
  const page = Math.max(1, Math.floor(byId("queries").clientHeight / ROW) - 1);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity, j: 1, k: -1 };
  if (event.ctrlKey || event.metaKey || event.altKey || browsing.now < 0) return;
  if (event.key in steps) visit(browsing.now + steps[event.key]);
  else if (event.key === "Enter" || event.key === "ArrowRight") document.querySelector(".hit[tabindex='0']")?.focus();
  else return;
  event.preventDefault();
}

function searchKeys(event) {
  if (event.key === "ArrowDown" || event.key === "Enter") byId("queries").focus();
  else if (event.key === "Escape" && !byId("search").value) byId("queries").focus();
  else return;
  event.preventDefault();
}

function startBrowsing() {
  opened("cases", "Queries");
  options(byId("show"), SHOWN.map((one) => one[0]), 0, (number) => { browsing.show = number; relist(); });
  options(byId("order"), ORDERS.map((one) => one[0]), 0, (number) => { browsing.order = number; relist(false); });
  byId("search").addEventListener("input", () => { browsing.search = byId("search").value; relist(); });
  byId("search").addEventListener("keydown", searchKeys);
  byId("queries").addEventListener("keydown", queryKeys);
  byId("queries").addEventListener("scroll", () => requestAnimationFrame(paintRows));
  addEventListener("resize", () => requestAnimationFrame(paintRows));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    byId("search").focus();
    byId("search").select();
    event.preventDefault();
  });
}

function showCase(place) {
  if (seen.place === place) return;
  const found = caseOf(place);
  Object.assign(seen, { place, found, chosen: -1 });
  const measure = data.judged.measures[0];
  const chips = runs.map((name, run) => {
    const rank = data.firsts[run][place], title = `${measure} ${fixed(value(0, run, place))}`;
    return make("span", { class: "chip" + (rank === 1 ? " top-one" : rank ? "" : " none"), title }, dot(run), name, make("b", {}, rank ? "#" + rank : "–"), make("span", { class: "soft num" }, "\u2002" + fixed(value(0, run, place), 2)));
  });
  replace("case",
    make("div", {}, make("p", { class: "soft num" }, data.queries[place], " · ", plural(data.answers[place], "answer", "answers"), " · first answer’s rank and ", measure),
      make("p", { class: "asked" }, data.texts[place] || data.queries[place]), make("div", { class: "facts" }, chips)),
    make("div", {}, make("div", { class: "lists", role: "group", "aria-label": "Lists of the runs" }, runs.map((_, run) => runList(run))),
      runs.length > 1 ? make("p", { class: "soft hint" }, "✓ an answer; dots: the other lists that have the document among their first " + data.depth) : null),
    make("div", { id: "why" }));
  const answers = found.g.map((grade, number) => (grade > 0 ? number : -1)).filter((number) => number >= 0);
  const first = [...runs.keys()].reverse().map((run) => topOf(run)[0]).find((number) => number !== undefined);
  const start = answers.find((number) => found.r.some((ranks) => ranks[number] > 0 && ranks[number] <= data.depth)) ?? first ?? answers[0];
  if (start !== undefined) chooseDocument(start);
}

// The keys that leave a list: back to the queries, or on to another one.
function leaveList(key) {
  if (key === "Escape") return byId("queries");
  if (key !== "n" && key !== "p") return null;
  visit(browsing.now + (key === "n" ? 1 : -1));
  return document.querySelector(".hit[tabindex='0']");
}
