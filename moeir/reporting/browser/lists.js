
// One query: what every run has at its top, side by side, and where the answers are that no top has.
const seen = { place: -1, found: null, chosen: -1, onchoose: null };

const topOf = (run) => seen.found.r[run].map((rank, number) => [rank, number]).filter(([rank]) => rank > 0 && rank <= data.depth).sort((a, b) => a[0] - b[0]).map((one) => one[1]);

function runList(run) {
  const top = topOf(run);
  const below = seen.found.g.map((grade, number) => [grade, number]).filter(([grade, number]) => grade > 0 && !top.includes(number)).map((one) => one[1]);
  const items = [...top.map((number) => hit(run, number, false)), ...below.map((number) => hit(run, number, true))];
  const rows = items.map((item) => make("li", {}, item));
  if (below.length) rows.splice(top.length, 0, make("li", { class: "apart" }, below.length === 1 ? "an answer below these" : "answers below these"));
  return make("div", { class: "list " + colour(run) },
    make("h3", {}, dot(run), runs[run], make("small", { class: "num" }, top.length ? "" : "found nothing")), make("ol", {}, rows));
}

function hit(run, number, away) {
  const rank = seen.found.r[run][number], score = seen.found.s[run][number], text = documentOf(seen.found.d[number]), answer = seen.found.g[number] > 0;
  const also = runs.map((_, other) => other).filter((other) => other !== run && seen.found.r[other][number] > 0 && seen.found.r[other][number] <= data.depth);
  const words = [rank ? "rank " + rank : "not found", answer ? "answer" : "", text.title || text.text.slice(0, 80) || text.id].filter(Boolean).join(", ");
  const alone = !also.length && !away;
  return make("button", { type: "button", class: "hit" + (answer ? " answer" : "") + (away ? " away" : ""), tabindex: -1, "data-run": run, "data-number": number, "aria-label": words,
      title: score === null ? null : "score " + score, onclick: () => chooseDocument(number, run), onfocus: () => chooseDocument(number, run), onkeydown: hitKeys },
    make("span", { class: "rank" + (rank > 999 ? " far" : "") }, answer ? "✓\u2009" : "", rank || "–"),
    make("span", { class: "say" }, [text.title, text.text].filter(Boolean).join(" · ") || text.id),
    make("span", { class: "by", title: alone ? "in no other list" : null }, also.map((other) => make("i", { class: colour(other), title: "also: " + runs[other] }))));
}

function chooseDocument(number, run = null) {
  const hits = [...document.querySelectorAll(".hit")];
  const mine = hits.filter((one) => Number(one.dataset.number) === number);
  const tab = mine.find((one) => Number(one.dataset.run) === run) || mine.find((one) => !one.classList.contains("away")) || mine[0];
  for (const one of hits) {
    one.classList.toggle("same", Number(one.dataset.number) === number);
    one.tabIndex = one === tab ? 0 : -1;
    if (one === tab) one.setAttribute("aria-current", "true");
    else one.removeAttribute("aria-current");
  }
  if (seen.chosen === number) return;
  seen.chosen = number;
  showReasons(number);
  seen.onchoose?.(number);
}

function hitKeys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const here = event.currentTarget, list = [...here.closest("ol").querySelectorAll(".hit")], row = list.indexOf(here);
  const lists = [...document.querySelectorAll(".list")].filter((one) => one.querySelector(".hit")), column = lists.indexOf(here.closest(".list"));
  let next = null;
  if (event.key === "ArrowDown") next = list[row + 1];
  else if (event.key === "ArrowUp") next = list[row - 1];
  else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
    const beside = lists[column + (event.key === "ArrowRight" ? 1 : -1)];
    const hits = beside ? [...beside.querySelectorAll(".hit")] : [];
    next = hits[Math.min(row, hits.length - 1)];
  } else if (!(next = leaveList(event.key))) return;
  event.preventDefault();
  next?.focus();
  if (next?.classList.contains("hit")) next.scrollIntoView({ block: "nearest", inline: "nearest" });
}
