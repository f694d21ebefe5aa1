
// Axes and curves.
function ticks(low, high, wanted = 4) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
}
const scale = (low, high, from, to) => (at) => from + ((to - from) * (at - low)) / (high - low || 1);
const compact = (number) => (Math.abs(number) >= 10000 ? number.toLocaleString("en", { notation: "compact" }) : short(number));

function lineChart(chart, colours) {
  const width = 420, height = 190, left = 44, right = 10, top = 10, bottom = 24;
  const all = chart.curves.flatMap((curve) => curve.points);
  const steps = all.map((point) => point[0]), values = all.map((point) => point[1]);
  const low = Math.min(...values), high = Math.max(...values), spare = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  const across = scale(Math.min(...steps), Math.max(...steps), left, width - right), up = scale(low - spare, high + spare, height - bottom, top);
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chartWords(chart) });
  for (const at of ticks(low, high)) {
    picture.append(draw("line", { class: "axis", x1: left, x2: width - right, y1: up(at), y2: up(at) }));
    picture.append(draw("text", { x: left - 6, y: up(at) + 3.5, "text-anchor": "end" }, compact(at)));
  }
  for (const at of ticks(Math.min(...steps), Math.max(...steps))) {
    picture.append(draw("text", { x: across(at), y: height - 6, "text-anchor": "middle" }, compact(at)));
  }
  for (const curve of chart.curves) {
    const name = colour(colours.get(curve.label)), points = curve.points.map(([step, at]) => `${across(step).toFixed(1)},${up(at).toFixed(1)}`);
    if (points.length === 1) picture.append(draw("circle", { class: "curve-dot " + name, cx: points[0].split(",")[0], cy: points[0].split(",")[1], r: 3 }));
    else if (points.length < 24) picture.append(draw("polyline", { class: "curve " + name, points: points.join(" ") }));
    else picture.append(draw("polyline", { class: "curve raw " + name, points: points.join(" ") }), draw("polyline", { class: "curve " + name, points: smooth(curve.points).map(([step, at]) => `${across(step).toFixed(1)},${up(at).toFixed(1)}`).join(" ") }));
  }
  return readable(picture, chart, across, { left, right: width - right, top, bottom: height - bottom, width });
}

// Means over a tenth of the course: what is drawn bold, above the single means.
function smooth(points) {
  const reach = Math.max(1, Math.round(points.length / 20));
  return points.map(([step], place) => {
    const near = points.slice(Math.max(0, place - reach), place + reach + 1);
    return [step, near.reduce((sum, point) => sum + point[1], 0) / near.length];
  });
}

const chartWords = (chart) =>
  chart.title + ": " + chart.curves.map((curve) => `${curve.label} ${short(curve.points[0][1])} to ${short(curve.points.at(-1)[1])}`).join(", ");

// Under the pointer, the numbers of every curve at that step.
function readable(picture, chart, across, area) {
  const line = draw("line", { class: "cursor", y1: area.top, y2: area.bottom, visibility: "hidden" });
  const said = make("p", { class: "soft num" }, "\u00a0");
  picture.append(line);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * area.width;
    const found = chart.curves.map((curve) => curve.points.reduce((best, point) => (Math.abs(across(point[0]) - at) < Math.abs(across(best[0]) - at) ? point : best)));
    line.setAttribute("x1", across(found[0][0]));
    line.setAttribute("x2", across(found[0][0]));
    line.setAttribute("visibility", "visible");
    said.textContent = `step ${found[0][0].toLocaleString("en")}: ` + chart.curves.map((curve, number) => `${curve.label} ${short(found[number][1])}`).join(", ");
  });
  picture.addEventListener("pointerleave", () => { line.setAttribute("visibility", "hidden"); said.textContent = "\u00a0"; });
  return [picture, said];
}

function legend(colours, labels) {
  return make("div", { class: "legend" }, labels.map((label) => make("span", {}, dot(colours.get(label)), label)));
}
