
// Points in the plane or in space, coloured by group; a path for each group, so that thousands are light.
const turned = { around: 0.6, over: 0.35 };
const off = new Set();

function flat(places) {
  if (places[0].length === 2) return places;
  const [c, s, d, t] = [Math.cos(turned.around), Math.sin(turned.around), Math.cos(turned.over), Math.sin(turned.over)];
  return places.map(([x, y, z]) => [c * x + s * z, d * y - t * (c * z - s * x)]);
}

function centred(places) {
  const axes = places[0].map((_, axis) => places.map((place) => place[axis]));
  const low = axes.map((axis) => axis.reduce((a, b) => Math.min(a, b))), high = axes.map((axis) => axis.reduce((a, b) => Math.max(a, b)));
  const middle = axes.map((_, axis) => (low[axis] + high[axis]) / 2), reach = Math.max(...axes.map((_, axis) => high[axis] - low[axis])) / 2 || 1;
  return places.map((place) => place.map((at, axis) => (at - middle[axis]) / reach));
}

function showMap() {
  const map = data.map, width = 900, height = 520, places = centred(map.places), deep = places[0].length > 2, stretch = deep ? 230 : 250;
  const wide = deep ? 1 : 1.6, picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-label": "Map of " + plural(places.length, "point", "points") + (deep ? "; arrows turn it" : "") });
  const clouds = map.groups.map((_, group) => draw("path", { class: "cloud " + colour(colourOf(map.groups[group], group)) }));
  const ring = draw("circle", { class: "here", r: 6, visibility: "hidden" });
  picture.append(...clouds, ring);
  let at = [];
  function paint() {
    at = flat(places).map(([x, y]) => [width / 2 + x * stretch * wide, height / 2 - y * stretch]);
    const paths = map.groups.map(() => []);
    at.forEach(([x, y], number) => paths[map.of[number]].push(`M${x.toFixed(1)} ${y.toFixed(1)}h0`));
    clouds.forEach((cloud, group) => { cloud.setAttribute("d", paths[group].join("")); cloud.classList.toggle("away", off.has(group)); });
  }
  function nearest(event) {
    const box = picture.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * width, y = ((event.clientY - box.top) / box.height) * height;
    let best = -1, least = 400;
    at.forEach((place, number) => {
      const far = (place[0] - x) ** 2 + (place[1] - y) ** 2;
      if (far < least && !off.has(map.of[number])) { best = number; least = far; }
    });
    return best;
  }
  const moving = { from: null };
  picture.addEventListener("pointerdown", (event) => { if (deep) { moving.from = [event.clientX, event.clientY]; picture.setPointerCapture(event.pointerId); } });
  picture.addEventListener("pointerup", () => { moving.from = null; });
  picture.addEventListener("pointermove", (event) => {
    if (moving.from) {
      turned.around += (event.clientX - moving.from[0]) / 150; turned.over += (event.clientY - moving.from[1]) / 150;
      moving.from = [event.clientX, event.clientY];
      paint();
    }
    const number = nearest(event);
    ring.setAttribute("visibility", number < 0 ? "hidden" : "visible");
    if (number >= 0) { ring.setAttribute("cx", at[number][0]); ring.setAttribute("cy", at[number][1]); }
    byId("place").textContent = number < 0 ? "\u00a0" : pointWords(number);
  });
  picture.addEventListener("click", (event) => {
    const number = nearest(event), place = number < 0 ? -1 : (data.queries || []).indexOf(map.ids[number]);
    if (place >= 0 && map.sides[number] !== "document") showOnly([place], "chosen on the map");
  });
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[event.key];
    if (!step || !deep) return;
    turned.around += step[0]; turned.over += step[1];
    paint();
    event.preventDefault();
  });
  paint();
  replace("places", picture);
  replace("groups", ...map.groups.map((name, group) => make("button", { type: "button", "aria-pressed": "true", onclick: (event) => {
    if (off.has(group)) off.delete(group); else off.add(group);
    event.currentTarget.setAttribute("aria-pressed", String(!off.has(group)));
    paint();
  } }, dot(colourOf(name, group)), `${name} (${map.of.filter((one) => one === group).length.toLocaleString("en")})`)));
}

const colourOf = (name, group) => (runs.includes(name) ? runs.indexOf(name) : runs.some((run) => data.map.groups.includes(run)) ? 7 : group);

function pointWords(number) {
  const id = data.map.ids[number], place = (data.queries || []).indexOf(id);
  const text = place >= 0 && data.map.sides[number] !== "document" ? ": " + data.texts[place] : "";
  return `${data.map.sides[number]} ${id} · ${data.map.groups[data.map.of[number]]}${text}`;
}

if (data.map) {
  opened("map", "Map");
  showMap();
}
