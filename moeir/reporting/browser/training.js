
// Each training: a chart for each kind of fact.
if (data.trainings.length) {
  opened("training", "Training");
  const colours = new Map(runs.map((name, number) => [name, number]));
  for (const training of data.trainings) for (const chart of training.charts) for (const curve of chart.curves) {
    if (!colours.has(curve.label)) colours.set(curve.label, colours.size);
  }
  replace("trainings", ...data.trainings.map((training) => {
    const cards = training.charts.map((chart) => make("div", { class: "card" }, make("h3", {}, chart.title), ...lineChart(chart, colours), legend(colours, chart.curves.map((curve) => curve.label))));
    const words = `${plural(training.steps, "step", "steps")}${training.finished ? "" : ", unfinished"}`;
    return make("div", {}, make("p", { class: "lead" }, make("b", {}, training.name), make("span", { class: "soft" }, " · " + words)),
      make("div", { class: "cards" }, cards), training.alarms.map((alarm) => make("p", { class: "warn" }, alarm)));
  }));
}
