
// One run against another, query by query: a bubble for all queries at one place.
let chosenBubble = null;
const pair = { across: 0, up: Math.min(1, runs.length - 1), by: 0 };

function bubbles() {
  const grouped = new Map(), parts = 40;
  for (let place = 0; place < data.queries.length; place++) {
    const x = value(pair.by, pair.across, place), y = value(pair.by, pair.up, place);
    const key = Math.round(x * parts) * 1000 + Math.round(y * parts);
    if (!grouped.has(key)) grouped.set(key, { x: Math.round(x * parts) / parts, y: Math.round(y * parts) / parts, queries: [] });
    grouped.get(key).queries.push(place);
  }
  return [...grouped.values()].sort((a, b) => b.queries.length - a.queries.length);
}

function showScatter() {
  const size = 400, edge = 38, found = bubbles();
  const most = Math.max(1, ...found.flatMap((one) => [one.x, one.y])), at = scale(0, most, edge, size - 14), up = scale(0, most, size - edge, 24);
  const picture = draw("svg", { viewBox: `0 0 ${size} ${size}`, tabindex: 0, role: "application", "aria-label": "Queries by two runs; arrows choose a place, Enter shows its queries" });
  for (const tick of ticks(0, most, 5)) {
    picture.append(draw("line", { class: "axis", x1: at(tick), x2: at(tick), y1: up(0), y2: up(most) }), draw("line", { class: "axis", x1: at(0), x2: at(most), y1: up(tick), y2: up(tick) }));
    picture.append(draw("text", { x: at(tick), y: size - edge + 16, "text-anchor": "middle" }, short(tick)), draw("text", { x: edge - 7, y: up(tick) + 4, "text-anchor": "end" }, short(tick)));
  }
  picture.append(draw("line", { class: "equal", x1: at(0), y1: up(0), x2: at(most), y2: up(most) }));
  picture.append(draw("text", { x: size - 14, y: size - 4, "text-anchor": "end" }, runs[pair.across] + " →"), draw("text", { x: edge + 6, y: 10 }, "↑ " + runs[pair.up]));
  const largest = Math.sqrt(found[0].queries.length), nodes = found.map((one) => {
    const radius = Math.max(2.4, (17 * Math.sqrt(one.queries.length)) / Math.max(largest, 8));
    const node = draw("circle", { class: "bubble", cx: at(one.x), cy: up(one.y), r: radius }, draw("title", {}, bubbleWords(one)));
    node.addEventListener("click", () => choose(found.indexOf(one), true));
    return node;
  });
  picture.append(...nodes);
  let now = -1;
  function choose(number, open) {
    now = (number + found.length) % found.length;
    nodes.forEach((node, other) => node.classList.toggle("chosen", other === now));
    byId("scatter-said").textContent = bubbleWords(found[now]);
    if (open) showOnly(found[now].queries, bubbleWords(found[now]));
  }
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) choose(now < 0 ? 0 : now + step, false);
    else if (event.key === "Enter" && now >= 0) choose(now, true);
    else return;
    event.preventDefault();
  });
  replace("scatter", picture);
  balance();
}

const bubbleWords = (one) => `${runs[pair.across]} ${short(one.x)}, ${runs[pair.up]} ${short(one.y)}: ${plural(one.queries.length, "query", "queries")}`;

function balance() {
  let better = 0, worse = 0;
  for (let place = 0; place < data.queries.length; place++) {
    const difference = value(pair.by, pair.up, place) - value(pair.by, pair.across, place);
    better += difference > 0;
    worse += difference < 0;
  }
  const same = data.queries.length - better - worse;
  byId("scatter-said").textContent = `${runs[pair.up]} is better on ${plural(better, "query", "queries")}, ${runs[pair.across]} on ${better === worse ? "as many" : worse.toLocaleString("en")}, alike on ${same.toLocaleString("en")}.`;
}

// Which runs have an answer at the top, together or alone.
function showFound() {
  const groups = new Map();
  for (let place = 0; place < data.queries.length; place++) {
    const key = runs.map((_, run) => (data.firsts[run][place] > 0 && data.firsts[run][place] <= data.depth ? "1" : "0")).join("");
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(place);
  }
  const ordered = [...groups].sort((a, b) => b[1].length - a[1].length), most = ordered[0][1].length;
  const rows = ordered.slice(0, 14).map(([key, queries]) => {
    const names = runs.filter((_, run) => key[run] === "1"), words = names.length ? names.join(", ") : "no run";
    return make("button", { class: "row", type: "button", "aria-label": `${words}: ${plural(queries.length, "query", "queries")}`, onclick: () => showOnly(queries, "found by " + words) },
      make("span", { class: "who" }, runs.map((name, run) => make("i", { class: colour(run) + (key[run] === "1" ? " has" : ""), title: name }))),
      sized(make("span", { class: "bar" }), queries.length / most),
      make("span", { class: "num" }, queries.length.toLocaleString("en"), make("small", { class: "soft" }, " " + Math.round((100 * queries.length) / data.queries.length) + " %")));
  });
  const rest = ordered.length > 14 ? [make("p", { class: "soft" }, plural(ordered.length - 14, "rarer set is", "rarer sets are") + " not shown")] : [];
  replace("found", make("div", { class: "columns soft" }, runs.map((name, run) => make("span", {}, dot(run), name))), ...rows, ...rest);
}

if (runs.length) {
  byId("depth").textContent = data.depth;
  showFound();
  opened("compared", "Run against run");
  byId("scatter").closest(".card").hidden = runs.length < 2;
  if (runs.length > 1) {
    options(byId("across"), runs, pair.across, (run) => { pair.across = run; showScatter(); });
    options(byId("up"), runs, pair.up, (run) => { pair.up = run; showScatter(); });
    options(byId("by"), data.judged.measures, 0, (measure) => { pair.by = measure; showScatter(); });
    showScatter();
  }
}
