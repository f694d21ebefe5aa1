
// One document: its words with what matched, and what each expert gave for it.
const plainWord = (word) => folded(word).replace(/^(##|▁|Ġ)/, "");
const special = (word) => word === null || /^[[<].*[\]>]$/.test(word);

function showReasons(number) {
  const found = seen.found, text = documentOf(found.d[number]), answer = found.g[number] > 0;
  const terms = termsOf(number), tokens = tokensOf(number);
  const ranks = runs.map((name, run) => make("span", { class: "chip" + (found.r[run][number] === 1 ? " top-one" : found.r[run][number] ? "" : " none"), title: found.s[run][number] === null ? null : "score " + found.s[run][number] },
    dot(run), name, make("b", {}, found.r[run][number] ? "#" + found.r[run][number] : "–")));
  const grade = found.g[number] === -9 ? (data.judged ? "not judged" : "") : found.g[number] > 0 ? "answer" + (found.g[number] > 1 ? `, grade ${found.g[number]}` : "") : "judged, no answer";
  const blocks = [partsBlock(number), ...terms.map(([expert, rows]) => termsBlock(expert, rows)), ...tokens.map(([expert, rows]) => tokensBlock(expert, rows))].filter(Boolean);
  byId("why").replaceChildren(make("div", { class: "card why" },
    make("div", {}, make("h3", {}, make("span", { class: answer ? "answer-word" : "soft" }, grade), make("span", { class: "id" }, "\u2003" + text.id)),
      make("div", { class: "facts" }, ranks), passage(text, terms, tokens)),
    make("div", {}, blocks.length ? blocks : make("p", { class: "soft" }, found.x ? "Nothing is told of this document." : data.judged ? "Terms, tokens and parts are shown where the report was made with --index." : "…"))));
}

// [expert, rows] of those that say something of a document.
function termsOf(number) {
  return Object.entries(seen.found.t || {}).map(([expert, documents]) =>
    [expert, grouped(documents[number], 3).map(([word, asked, weight]) => [wordAt(word), asked, weight, asked * weight])]).filter(([, rows]) => rows.length);
}
function tokensOf(number) {
  return Object.entries(seen.found.k || {}).map(([expert, documents]) =>
    [expert, grouped(documents[number], 3).map(([asked, written, similarity]) => [wordAt(asked), wordAt(written), similarity])]).filter(([, rows]) => rows.length);
}
const grouped = (flat, size) => Array.from({ length: flat.length / size }, (_, row) => flat.slice(row * size, row * size + size));
const wordAt = (place) => (place < 0 ? null : seen.found.w[place]);
const runOf = (expert) => { const run = runs.indexOf(data.experts[expert] ?? expert); return run < 0 ? 7 : run; };

function partsBlock(number) {
  const parts = seen.found.p?.[number], experts = seen.found.x || [];
  if (!parts || experts.length < 2 || parts.some((part) => part === null)) return null;
  const whole = parts.reduce((sum, part) => sum + Math.abs(part), 0) || 1;
  return make("div", { class: "block" }, make("h3", {}, "What each expert gives to the fused score"),
    make("div", { class: "stack", "aria-hidden": "true" }, parts.map((part, expert) => sized(make("i", { class: colour(runOf(experts[expert])) }), Math.abs(part) / whole))),
    make("div", { class: "legend" }, parts.map((part, expert) => make("span", { class: "num" }, dot(runOf(experts[expert])), `${experts[expert]} ${short(part)} (${Math.round((100 * Math.abs(part)) / whole)} %)`))));
}

function termsBlock(expert, rows) {
  const most = Math.max(...rows.map((row) => row[3]), 1e-9);
  return make("div", { class: "block " + colour(runOf(expert)) }, make("h3", {}, dot(runOf(expert)), `${expert}: terms that both have`),
    make("p", { class: "soft" }, "weight in the query × weight in the document"),
    make("div", { class: "words" }, rows.flatMap(([word, query, written, product]) => [make("span", {}, word), sized(make("span", { class: "bar" }), product / most),
      make("span", { class: "num" }, `${short(query)} × ${short(written)} = ${short(product)}`)])));
}

function tokensBlock(expert, rows) {
  const most = Math.max(...rows.map((row) => row[2]), 1e-9);
  return make("div", { class: "block " + colour(runOf(expert)) }, make("h3", {}, dot(runOf(expert)), `${expert}: each query token’s best token`),
    make("p", { class: "soft" }, "query token, similarity, token of the document"),
    make("div", { class: "pairs" }, rows.map(([from, to, similarity]) => {
      const quiet = special(from);
      const lit = (on) => { if (to) for (const one of byId("why").querySelectorAll("[data-word]")) one.classList.toggle("lit", on && one.dataset.word === plainWord(to)); };
      return make("div", { class: "pair" + (quiet ? " quiet" : ""), title: `${from ?? "?"} → ${to ?? "?"}: ${short(similarity)}`, onpointerenter: () => lit(true), onpointerleave: () => lit(false) },
        make("span", {}, from ?? "–"), make("span", { class: "beam" }, sized(make("div", { class: "bar" }), similarity / most)), make("span", {}, to ?? short(similarity)));
    })));
}

// The passage, its words marked by the weight of the terms they share with the query and underlined where tokens met.
function passage(text, terms, tokens) {
  const weights = new Map(), met = new Map();
  for (const [, rows] of terms) {
    const most = Math.max(...rows.map((row) => row[3]), 1e-9);
    for (const [word, , , product] of rows) weights.set(plainWord(word), Math.max(product / most, weights.get(plainWord(word)) || 0));
  }
  for (const [, rows] of tokens) {
    const most = Math.max(...rows.map((row) => row[2]), 1e-9);
    for (const [from, to, similarity] of rows) {
      if (!special(from) && !special(to) && !to.startsWith("##")) met.set(plainWord(to), Math.max(similarity / most, met.get(plainWord(to)) || 0));
    }
  }
  const node = make("p", { class: "passage" });
  if (text.title) node.append(make("b", {}, ...marked(text.title, weights, met)));
  node.append(...(text.title || text.text ? marked(text.text, weights, met) : [make("span", { class: "soft" }, "(its text was not given)")]));
  return node;
}

function marked(text, weights, met) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(/[\p{L}\p{N}\p{M}]+/gu)) {
    const word = folded(match[0]), weight = weights.get(word) ?? stemmed(word, weights), similarity = met.get(word);
    if (weight === undefined && similarity === undefined) continue;
    nodes.push(text.slice(end, match.index));
    const names = [weight === undefined ? "" : weight > 0.66 ? "m3" : weight > 0.33 ? "m2" : "m1", similarity === undefined ? "" : "token" + (similarity > 0.6 ? " t2" : "")];
    nodes.push(make(weight === undefined ? "span" : "mark", { class: names.filter(Boolean).join(" "), "data-word": word }, match[0]));
    end = match.index + match[0].length;
  }
  return [...nodes, text.slice(end)];
}

// A stem or a first piece stands for the words that begin with it.
function stemmed(word, weights) {
  for (let size = word.length - 1; size >= Math.max(4, word.length - 4); size--) if (weights.has(word.slice(0, size))) return weights.get(word.slice(0, size));
  return undefined;
}
