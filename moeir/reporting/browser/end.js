
// What the head says, and the first query.
replace("summary", [
  runs.length ? plural(data.queries.length, "query", "queries") : "",
  runs.length ? plural(runs.length, "run", "runs") : "",
  data.trainings.length ? plural(data.trainings.length, "training", "trainings") : "",
].filter(Boolean).join(" · "));
if (runs.length) {
  startBrowsing();
  relist();
}
document.documentElement.dataset.ready = "true";
})();
