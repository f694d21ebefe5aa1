
// Means with their intervals, one card for each measure.
function forest(measure, base) {
  const means = data.judged.means[measure], p = data.judged.p[measure][base];
  const low = Math.min(...means.map((one) => one[1])), high = Math.max(...means.map((one) => one[2]));
  const across = scale(low, high, 6, 194);
  const rows = runs.map((name, run) => {
    const [mean, from, to] = means[run];
    const picture = draw("svg", { viewBox: "0 0 200 20", "aria-hidden": "true" },
      draw("line", { class: "whisker", x1: across(from), x2: across(to), y1: 10, y2: 10 }),
      draw("circle", { class: "mean", cx: across(mean), cy: 10, r: 5 }));
    const difference = mean - means[base][0];
    const words = run === base ? "" : chance(p[run]);
    return make("tr", { class: run === base ? "base" : null },
      make("th", { scope: "row" }, make("span", { class: "run-name" }, dot(run), name)),
      make("td", { class: "wide " + colour(run) }, picture),
      make("td", { class: "num", title: `95 %: ${fixed(from)} to ${fixed(to)}` }, fixed(mean)),
      make("td", { class: "num soft" }, run === base ? "" : (difference < 0 ? "−" : "+") + fixed(Math.abs(difference))),
      make("td", { class: "num " + (run !== base && p[run] < 0.05 ? "sure" : "unsure") }, words));
  });
  const head = ["", "", "mean", "difference", data.judged.p_header].map((word, number) => make("th", { class: number > 1 ? "num" : null, scope: "col" }, word));
  return make("div", { class: "card" }, make("h3", {}, data.judged.measures[measure]),
    make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, rows)));
}

function showMeasures(base) {
  replace("cards", ...data.judged.measures.map((_, measure) => forest(measure, base)));
}

if (runs.length) {
  opened("measures", "Measures");
  options(byId("base"), runs, 0, showMeasures);
  showMeasures(0);
}
