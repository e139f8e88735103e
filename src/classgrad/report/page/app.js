// The pickers, and which figure goes where.

const $ = (selector) => document.querySelector(selector);
const dark = matchMedia("(prefers-color-scheme: dark)");
const coarse = matchMedia("(pointer: coarse)");
const NONE = "none";

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function themeNow() {
  const root = document.documentElement;
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["paper", "card", "ink", "soft", "line", "grid", "matrix", "warm", "shade"];
  return {
    name: dark.matches && !root.classList.contains("printing") ? "dark" : "light",
    touch: coarse.matches,
    ...Object.fromEntries(names.map((name) => [name, colour(name)])),
  };
}

// Plots are drawn when they come near the window: a page of many opens at once and answers at once.
class Plots {
  constructor() {
    this.makers = new Map();
    this.stale = new Set();
    this.near = new Set();
    this.watcher = new IntersectionObserver((entries) => this.moved(entries), { rootMargin: "500px" });
  }

  set(element, label, make) {
    if (!this.makers.has(element)) this.watcher.observe(element);
    this.makers.set(element, { label, make });
    this.stale.add(element);
    if (this.near.has(element)) this.draw(element);
  }

  moved(entries) {
    for (const { target, isIntersecting } of entries) {
      this.near[isIntersecting ? "add" : "delete"](target);
      if (isIntersecting && this.stale.has(target)) this.draw(target);
    }
  }

  draw(element) {
    this.stale.delete(element);
    const { label, make } = this.makers.get(element);
    if (!make) {
      Plotly.purge(element);
      element.innerHTML = "";
      element.append(Object.assign(document.createElement("p"), { className: "absent", textContent: label }));
      return;
    }
    element.querySelector(".absent")?.remove();
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", label);
    const { data, layout } = make(element.clientWidth);
    Plotly.react(element, data, { width: element.clientWidth, ...layout }, { displayModeBar: false });
  }

  drawAll() {
    for (const element of this.makers.keys()) this.draw(element);
  }
}

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, value === chosen)));
  select.disabled = entries.length < 2;
  return select.value;
}

class Page {
  constructor(content) {
    this.content = content;
    this.plots = new Plots();
    this.picks = { problem: $("#pick-problem"), split: $("#pick-split"), first: $("#pick-first"), second: $("#pick-second") };
    options(this.picks.problem, content.problems.map(({ label }, at) => [String(at), label]), "0");
    this.picks.problem.addEventListener("change", () => this.opened());
    for (const name of ["split", "first", "second"]) this.picks[name].addEventListener("change", () => this.show());
    this.opened();
  }

  get problem() { return this.content.problems[Number(this.picks.problem.value)]; }
  get split() { return this.picks.split.value; }

  chosen(side) {
    const label = this.picks[side].value;
    return this.problem.experiments.find((experiment) => experiment.label === label);
  }

  // A data set was picked: fill the other pickers, keeping what was chosen where it exists.
  opened() {
    const { problem, picks } = this;
    const labels = problem.experiments.map(({ label }) => label);
    const kept = (select, among, otherwise) => (among.includes(select.value) ? select.value : otherwise);
    options(picks.split, problem.splits.map((split) => [split, `${split} set`]), kept(picks.split, problem.splits, problem.splits[0]));
    const entries = labels.map((label) => [label, label]);
    options(picks.first, entries, kept(picks.first, labels, problem.opening[0]));
    options(picks.second, [[NONE, "nothing"], ...entries], kept(picks.second, [NONE, ...labels], problem.opening[1] ?? NONE));
    picks.second.disabled = false;
    this.show();
  }

  show() {
    this.theme = themeNow();
    this.legends();
    this.overview("macro", "macro recall");
    this.overview("minority", "recall of the minority classes");
    for (const quantity of this.content.quantities) this.pair(quantity);
    for (const moment of ["final", "bottom"]) this.confusions(moment);
    const second = this.chosen("second");
    const names = second ? `${this.chosen("first").label} beside ${second.label}` : this.chosen("first").label;
    $("#status").textContent = `Showing ${names} on ${this.problem.label}, ${this.split} set.`;
  }

  print(on) {
    document.documentElement.classList.toggle("printing", on);
    this.show();
    if (on) this.plots.drawAll();
  }

  legends() {
    const entry = (label, colour) => {
      const item = document.createElement("li");
      const swatch = document.createElement("i");
      swatch.style.background = colour;
      item.append(swatch, label);
      return item;
    };
    const { problem, theme } = this;
    $("#algorithms").replaceChildren(...problem.experiments.map(({ label, colours }) => entry(label, colours[theme.name])));
    $("#legend").replaceChildren(...problem.lines.map(({ label }, line) => entry(label, problem.colours[theme.name][line])));
  }

  overview(name, what) {
    const { problem, split, theme } = this;
    const chosen = [this.chosen("first"), this.chosen("second")];
    const members = problem.experiments
      .filter((experiment) => experiment.overview[split])
      .map((experiment) => ({ ...experiment, curves: experiment.overview[split][name], chosen: chosen.includes(experiment) }))
      .filter(({ curves }) => curves.mean[0].some((value) => value !== null));
    const ends = members.map(({ label, curves }) => `${label} ends at ${number(lastFinite(curves.mean[0]))} %`);
    const quantity = this.content.quantities.find((known) => known.name === "recall");
    const make = members.length && ((width) => overviewFigure({ problem, quantity, members, theme, width }));
    this.plots.set($(`#plot-${name}`), make ? `${what}: ${ends.join(", ")}` : "Not measured.", make);
  }

  sides(selector) {
    const row = $(selector);
    row.classList.toggle("single", !this.chosen("second"));
    return ["first", "second"].map((side) => {
      const figure = row.querySelector(`[data-side="${side}"]`);
      const experiment = this.chosen(side);
      figure.hidden = !experiment;
      if (experiment) figure.querySelector("figcaption").textContent = experiment.label;
      return { figure, experiment };
    }).filter(({ experiment }) => experiment);
  }

  seriesOf(experiment, quantity) {
    return experiment.curves[quantity.bySplit ? `${this.split}/${quantity.name}` : quantity.name];
  }

  pair(quantity) {
    const { problem, split, theme } = this;
    const sides = this.sides(`.pair[data-quantity="${quantity.name}"]`);
    const shared = sides.map(({ experiment }) => this.seriesOf(experiment, quantity)).filter(Boolean);
    for (const { figure, experiment } of sides) {
      const curves = this.seriesOf(experiment, quantity);
      const drop = experiment.drops[split];
      const verdict = figure.querySelector(".verdict");
      if (verdict) verdict.textContent = drop?.sentence ?? "";
      const span = quantity.bySplit ? drop?.span : null;
      const ends = curves && problem.lines.map(({ label }, line) => `${label} ends at ${number(lastFinite(curves.mean[line]))}`);
      const make = curves && ((width) => classFigure({ problem, quantity, curves, shared, span, theme, width }));
      const label = curves ? `${quantity.title}, ${quantity.axis}, ${experiment.label}: ${ends.join(", ")}` : "Not measured in these runs.";
      this.plots.set(figure.querySelector('[data-kind="curves"]'), label, make);
      this.map(figure, quantity, experiment);
    }
    this.numbers(quantity, sides);
  }

  map(figure, quantity, experiment) {
    const { problem, split, theme } = this;
    const element = figure.querySelector('[data-kind="map"]');
    const map = experiment.maps[`${split}/${quantity.name}`];
    element.hidden = !map;
    if (!map) return;
    const label = `${quantity.title} as a map of all classes, ${experiment.label}`;
    this.plots.set(element, label, () => mapFigure({ problem, quantity, map, theme }));
  }

  numbers(quantity, sides) {
    const details = $(`details[data-quantity="${quantity.name}"]`);
    const fill = () => {
      if (!details.open) return;
      const tables = sides.map(({ experiment }) => this.table(quantity, experiment)).filter(Boolean);
      details.querySelector(".tables").replaceChildren(...tables);
    };
    details.ontoggle = fill;
    fill();
  }

  table(quantity, experiment) {
    const curves = this.seriesOf(experiment, quantity);
    if (!curves) return null;
    const make = (name, text, more = {}) => Object.assign(document.createElement(name), { textContent: text, ...more });
    const table = document.createElement("table");
    table.append(make("caption", `${quantity.title}, ${quantity.axis}, ${experiment.label}`));
    const head = table.createTHead().insertRow();
    head.append(make("th", "step", { scope: "col" }), ...this.problem.lines.map(({ label }) => make("th", label, { scope: "col" })));
    const body = table.createTBody();
    curves.steps.forEach((step, at) => {
      body.insertRow().append(make("th", step, { scope: "row" }), ...curves.mean.map((line) => make("td", number(line[at]))));
    });
    const region = make("div", "", { className: "scroll", tabIndex: 0 });
    region.setAttribute("role", "region");
    region.setAttribute("aria-label", table.caption.textContent);
    region.append(table);
    return region;
  }

  confusions(moment) {
    const { problem, split, theme } = this;
    const sides = this.sides(`.pair[data-confusion="${moment}"]`);
    $(`.pair[data-confusion="${moment}"]`).hidden = !sides.some(({ experiment }) => experiment.confusions[split]?.[moment]);
    for (const { figure, experiment } of sides) {
      const found = experiment.confusions[split]?.[moment];
      figure.querySelector("figcaption").textContent = `${experiment.label}, ${found?.title ?? "at the bottom of the drop"}`;
      const make = found && ((width) => confusionFigure({ problem, matrix: found.matrix, theme, width }));
      const absent = moment === "bottom" ? "No minority initial drop." : "Not measured in these runs.";
      const label = found ? `Confusion matrix of ${experiment.label} ${found.title}: ${this.diagonal(found.matrix)}` : absent;
      this.plots.set(figure.querySelector(".plot"), label, make);
    }
  }

  diagonal(matrix) {
    const told = (row, at) => {
      const examples = row.reduce((a, b) => a + b, 0);
      return examples ? `${Math.round((100 * row[at]) / examples)} % right` : "no examples";
    };
    return matrix.map((row, at) => `${this.problem.classes[at].name} ${told(row, at)}`).join(", ");
  }
}

function copyButton() {
  const button = $("#copy");
  if (!button) return;
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText($("#commands").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

async function start() {
  const [content, plotly] = await Promise.all([unpacked("packed-data"), unpacked("packed-plotly")]);
  document.head.append(Object.assign(document.createElement("script"), { textContent: plotly }));
  $("#waiting").hidden = true;
  const page = new Page(JSON.parse(content));
  addEventListener("beforeprint", () => page.print(true));
  addEventListener("afterprint", () => page.print(false));
  dark.addEventListener("change", () => page.show());
  let width = innerWidth;
  let waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => page.show(), 150);
  });
}

copyButton();
start().then(
  () => { document.documentElement.dataset.ready = "yes"; },
  (error) => {
    $("#waiting").hidden = true;
    const trouble = $("#trouble");
    trouble.textContent = `The plots cannot be shown (${error.message}). A browser of 2023 or later can; the same figures lie as PNG and PDF files in the folder of this page.`;
    trouble.hidden = false;
    console.error(error);
  },
);
