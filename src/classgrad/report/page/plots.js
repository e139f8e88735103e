// Figures for plotly from the packed data: pure functions, no element of the page is touched here.

const HEIGHT = 330;
const ROOM_FOR_LABELS = 430;
const LABEL_GAP = 14;
const MARGIN = { l: 58, r: 16, t: 24, b: 44 };

// Plotly reads some markup in texts; names that users chose must show as they are.
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const translucent = (colour, share) => colour + Math.round(255 * share).toString(16).padStart(2, "0");
const finite = (values) => values.filter((value) => value !== null);
const lastFinite = (values) => values.findLast((value) => value !== null) ?? null;
const number = (value) => (value === null ? "–" : Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 }));

// Step 0 is on the axis because it is logarithmic in step + 1.
const place = (step) => step + 1;

const axisLook = (theme) => ({
  gridcolor: theme.grid,
  linecolor: theme.line,
  zeroline: false,
  fixedrange: theme.touch,
  tickfont: { size: 12 },
});

// Divisions of a logarithmic axis: 1, 2, 5 where it is short, whole powers of ten where it is long.
function logTicks([low, high]) {
  const every = Math.ceil((high - low) / 6);
  const powers = Array.from({ length: Math.floor(high) - Math.floor(low) + 1 }, (_, k) => Math.floor(low) + k);
  const written = (factor, power) =>
    Math.abs(power) > 3 ? `${factor > 1 ? `${factor}·` : ""}10<sup>${power}</sup>` : (factor * 10 ** power).toLocaleString("en");
  const ticks = powers
    .filter((power) => power % every === 0)
    .flatMap((power) => (high - low < 2 ? [1, 2, 5] : [1]).map((factor) => [factor, power]));
  return { tickvals: ticks.map(([factor, power]) => factor * 10 ** power), ticktext: ticks.map((tick) => written(...tick)) };
}

function stepAxis(problem, theme) {
  return {
    type: "log",
    range: [-0.03, Math.log10(place(problem.last)) * 1.01],
    tickvals: problem.ticks.map(place),
    ticktext: problem.ticks.map((step) => step.toLocaleString("en")),
    title: { text: "training step (log scale)", standoff: 8, font: { size: 13 } },
    ...axisLook(theme),
  };
}

function frame(theme, more) {
  return {
    height: HEIGHT,
    margin: MARGIN,
    paper_bgcolor: theme.paper,
    plot_bgcolor: theme.paper,
    font: { family: "system-ui, sans-serif", size: 13, color: theme.ink },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { bgcolor: theme.paper, bordercolor: theme.line, font: { color: theme.ink } },
    dragmode: theme.touch ? false : "zoom",
    ...more,
  };
}

// The ends of a value axis for all curves that share it; powers of ten where it is logarithmic.
function valueRange(quantity, curves) {
  const values = curves.flatMap((curve) => finite([...curve.mean.flat(), ...curve.high.flat()]));
  if (quantity.scale === "linear") {
    const [low, most] = quantity.limits;
    const highest = values.reduce((a, b) => Math.max(a, b), low);
    const high = Math.min(most, quantity.ticks * Math.max(1, Math.ceil((1.05 * highest) / quantity.ticks)));
    return [low - 0.03 * (high - low), high + 0.03 * (high - low)];
  }
  const powers = values.filter((value) => value > 0).map(Math.log10);
  if (!powers.length) return [0, 1];
  const low = powers.reduce((a, b) => Math.min(a, b));
  const high = powers.reduce((a, b) => Math.max(a, b));
  const margin = 0.06 * Math.max(high - low, 0.1);
  return [low - margin, high + margin];
}

function valueAxis(quantity, range, theme) {
  return {
    type: quantity.scale,
    range,
    title: { text: quantity.axis, standoff: 6, font: { size: 13 } },
    ...(quantity.scale === "log" ? logTicks(range) : { dtick: range[1] < 2 * quantity.ticks ? quantity.ticks / 4 : quantity.ticks }),
    ...axisLook(theme),
  };
}

function band(curve, line, floor, colour, strength = 0.18) {
  const points = curve.steps.map((step, at) => [place(step), curve.low[line][at], curve.high[line][at]]);
  const known = points.filter(([, low, high]) => low !== null && high !== null);
  return {
    x: [...known.map(([x]) => x), ...known.map(([x]) => x).reverse()],
    y: [...known.map(([, , high]) => Math.max(high, floor)), ...known.map(([, low]) => Math.max(low, floor)).reverse()],
    mode: "lines",
    line: { width: 0 },
    fill: "toself",
    fillcolor: translucent(colour, strength),
    hoverinfo: "skip",
  };
}

function curve(curves, line, name, colour, more) {
  const error = (at) => {
    const [mean, high] = [curves.mean[line][at], curves.high[line][at]];
    return mean === null || high === null || curves.grouped ? "" : ` ± ${number(high - mean)}`;
  };
  return {
    x: curves.steps.map(place),
    y: curves.mean[line],
    customdata: curves.steps.map((step, at) => [step.toLocaleString("en"), number(curves.mean[line][at]) + error(at)]),
    name: escaped(name),
    mode: "lines",
    connectgaps: true,
    line: { color: colour, width: 2.2, ...more },
    hovertemplate: `<b>${escaped(name)}</b><br>step %{customdata[0]}: %{customdata[1]}<extra></extra>`,
  };
}

// Rising places at least `gap` apart and, if there is room, between 0 and `top`, near the given ones: those that would
// touch share their mean shift.
function apart(places, gap, top) {
  const heaps = [];
  places.forEach((at, k) => {
    let heap = { wish: at - k * gap, size: 1 };
    while (heaps.length && heaps.at(-1).wish > heap.wish) {
      const last = heaps.pop();
      heap = { wish: (last.wish * last.size + heap.wish * heap.size) / (last.size + heap.size), size: last.size + heap.size };
    }
    heaps.push(heap);
  });
  const bound = Math.max(0, top - (places.length - 1) * gap);
  return heaps.flatMap(({ wish, size }) => Array(size).fill(Math.min(Math.max(wish, 0), bound))).map((wish, k) => wish + k * gap);
}

// Names beside the ends of their lines, pushed apart where they would overlap.
function endLabels(ends, range, log) {
  const inner = HEIGHT - MARGIN.t - MARGIN.b;
  const pixel = (value) => (inner * ((log ? Math.log10(value) : value) - range[0])) / (range[1] - range[0]);
  const known = ends.filter(({ value }) => value !== null && (!log || value > 0));
  const sorted = known.map((end) => ({ ...end, at: pixel(end.value) })).sort((a, b) => a.at - b.at);
  const places = apart(sorted.map(({ at }) => at), LABEL_GAP, inner);
  return sorted.map((end, k) => ({
    text: escaped(shortened(end.name, 19)),
    font: { color: end.colour, size: 12 },
    xref: "paper",
    x: 1,
    xanchor: "left",
    xshift: 4,
    yref: "paper",
    y: 0,
    yshift: places[k],
    yanchor: "middle",
    showarrow: false,
  }));
}

function labelled(layout, ends, range, log, width) {
  if (width < ROOM_FOR_LABELS) return layout;
  const longest = Math.max(0, ...ends.map(({ name }) => shortened(name, 19).length));
  layout.margin = { ...MARGIN, r: 14 + 7 * longest };
  layout.annotations = [...(layout.annotations ?? []), ...endLabels(ends, range, log)];
  return layout;
}

function dropShade(curves, span, theme) {
  const end = span.end ?? curves.steps.at(-1);
  return {
    shapes: [
      { type: "rect", xref: "x", yref: "paper", x0: place(span.start), x1: place(end), y0: 0, y1: 1,
        fillcolor: theme.shade, line: { width: 0 }, layer: "below" },
    ],
    annotations: [
      { text: "minority initial drop", font: { color: theme.warm, size: 12 }, xref: "x", yref: "paper", y: 1,
        x: Math.log10(Math.sqrt(place(span.start) * place(end))), yanchor: "bottom", showarrow: false },
    ],
  };
}

function levelLine({ level }, theme) {
  const line = { color: theme.soft, width: 1.5, dash: "dot" };
  return { shapes: [{ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: level, y1: level, line }] };
}

function dropMarks(problem, curves, span, theme) {
  const marks = Object.entries(span.lowest).map(([line, step]) => ({ line: Number(line), at: curves.steps.indexOf(step) }));
  return {
    x: marks.map(({ at }) => place(curves.steps[at])),
    y: marks.map(({ line, at }) => curves.mean[line][at]),
    text: marks.map(({ line, at }) => `${escaped(problem.lines[line].label)}: lowest at step ${curves.steps[at]}`),
    mode: "markers",
    cliponaxis: false,
    marker: { symbol: "triangle-down", size: 11, color: marks.map(({ line }) => problem.colours[theme.name][line]),
      line: { color: theme.ink, width: 1 } },
    hovertemplate: "%{text}<extra></extra>",
  };
}

// Per-class curves of one experiment; `shared` are all curves that must have the same value axis.
function classFigure({ problem, quantity, curves, shared, span, theme, width }) {
  const range = valueRange(quantity, shared);
  const log = quantity.scale === "log";
  const floor = log ? 10 ** range[0] : -Infinity;
  const colours = problem.colours[theme.name];
  const order = problem.lines.map((_, line) => line);
  const data = [
    ...order.map((line) => band(curves, line, floor, colours[line])),
    ...order.map((line) => curve(curves, line, problem.lines[line].label, colours[line])),
  ];
  const parts = [span ? dropShade(curves, span, theme) : {}, quantity.level ? levelLine(quantity, theme) : {}];
  if (span && quantity.name === "recall") data.push(dropMarks(problem, curves, span, theme));
  const layout = frame(theme, {
    xaxis: stepAxis(problem, theme),
    yaxis: valueAxis(quantity, range, theme),
    shapes: parts.flatMap((part) => part.shapes ?? []),
    annotations: parts.flatMap((part) => part.annotations ?? []),
  });
  const ends = order.map((line) => ({ name: problem.lines[line].name, colour: colours[line], value: lastFinite(curves.mean[line]) }));
  return { data, layout: labelled(layout, ends, range, log, width) };
}

// One curve per experiment, such as macro recall.
function overviewFigure({ problem, quantity, members, theme, width }) {
  const range = valueRange(quantity, members.map(({ curves }) => curves));
  const colour = (member) => member.colours[theme.name];
  const data = [
    ...members.map((member) => band(member.curves, 0, -Infinity, colour(member), member.chosen ? 0.18 : 0.07)),
    ...members.map((member) => curve(member.curves, 0, member.label, colour(member), { dash: member.dash, width: member.chosen ? 3.2 : 1.4 })),
  ];
  const layout = frame(theme, { xaxis: stepAxis(problem, theme), yaxis: valueAxis(quantity, range, theme) });
  const ends = members.map((member) => ({ name: member.label, colour: colour(member), value: lastFinite(member.curves.mean[0]) }));
  return { data, layout: labelled(layout, ends, range, false, width) };
}

const colourBar = (text) => ({
  title: { text, side: "right", font: { size: 13 } },
  tickfont: { size: 12 },
  thickness: 12,
  outlinewidth: 0,
});

// Recall of every class at every step as a map, for more classes than a plot has room for lines.
function mapFigure({ problem, quantity, map, theme }) {
  const names = problem.classes.map(({ name, count }) => `${escaped(name)} (n = ${count.toLocaleString("en")})`);
  const data = [{
    type: "heatmap",
    x: map.steps.map(place),
    y: names.map((_, at) => at),
    z: map.mean,
    zmin: quantity.limits[0],
    zmax: quantity.limits[1],
    colorscale: "Cividis",
    customdata: map.mean.map((_, at) => map.steps.map((step) => [names[at], step.toLocaleString("en")])),
    hovertemplate: "%{customdata[0]}<br>step %{customdata[1]}: %{z:.3g}<extra></extra>",
    colorbar: colourBar(quantity.axis),
  }];
  const layout = frame(theme, {
    xaxis: stepAxis(problem, theme),
    yaxis: { autorange: "reversed", title: { text: "classes, largest first", standoff: 6, font: { size: 13 } }, showgrid: false, zeroline: false,
      tickvals: [0, names.length - 1], ticktext: ["1", String(names.length)], fixedrange: theme.touch },
  });
  return { data, layout: { ...layout, margin: { ...MARGIN, r: 8 } } };
}

// From one colour to another with the root of the value: among many classes, small shares must show too.
function rootScale(from, to) {
  const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const mixed = (share) => parts(from).map((part, k) => Math.round(part + share * (parts(to)[k] - part)));
  return [0, 0.01, 0.04, 0.09, 0.16, 0.25, 0.49, 1].map((value) => [value, `rgb(${mixed(Math.sqrt(value)).join(",")})`]);
}

function confusionFigure({ problem, matrix, theme, width }) {
  const names = problem.classes.map(({ name }) => escaped(shortened(name, 14)));
  const full = problem.classes.map(({ name }) => escaped(name));
  const totals = matrix.map((row) => row.reduce((a, b) => a + b, 0));
  const shares = matrix.map((row, at) => row.map((count) => (totals[at] ? (100 * count) / totals[at] : null)));
  const few = names.length <= 12;
  const longest = Math.max(...problem.classes.map(({ name }) => Math.min(name.length, 14)));
  const left = few ? 28 + 7.2 * longest : 58;
  const slanted = few && names.length > 4 && longest > 3;
  const cell = slanted ? 38 : Math.max(names.length > 4 ? 38 : 62, 7.2 * longest + 8);
  const size = Math.min(width, few ? left + 8 + cell * names.length : 460);
  const ticks = few
    ? { tickvals: names.map((_, at) => at), ticktext: names }
    : { tickvals: [0, names.length - 1], ticktext: ["1", String(names.length)] };
  const data = [{
    type: "heatmap",
    z: shares,
    zmin: 0,
    zmax: 100,
    xgap: few ? 1 : 0,
    ygap: few ? 1 : 0,
    colorscale: few ? [[0, theme.card], [1, theme.matrix]] : rootScale(theme.card, theme.matrix),
    showscale: !few,
    colorbar: colourBar("% of the true class"),
    texttemplate: few ? "%{z:.0f}" : "",
    textfont: { size: names.length > 7 && width < 420 ? 9 : 13 },
    customdata: matrix.map((row, truth) => row.map((count, guess) => [full[truth], full[guess], count, totals[truth]])),
    hovertemplate: "%{customdata[0]} taken for %{customdata[1]}:<br>%{customdata[2]} of %{customdata[3]} (%{z:.1f} %)<extra></extra>",
  }];
  const axis = { ...ticks, showgrid: false, zeroline: false, fixedrange: true, ticks: "" };
  const layout = frame(theme, {
    height: few ? Math.min(size - left + 58 + (slanted ? 5 * longest : 0), 480) : size,
    width: few ? size : width,
    xaxis: { ...axis, side: "bottom", title: { text: "given to", standoff: 6, font: { size: 13 } }, tickangle: slanted ? -45 : 0, automargin: true },
    yaxis: { ...axis, autorange: "reversed", title: { text: "true class", standoff: 4, font: { size: 13 } }, automargin: true },
    dragmode: false,
  });
  return { data, layout: { ...layout, margin: { l: left, r: 8, t: 8, b: 50 } } };
}
