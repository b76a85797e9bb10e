// Asks for the state every few seconds and shows it. Names come from others: they are only ever set as text.
"use strict";

const SECONDS = 3;
const COLOURS = ["#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#ee8866"];
const DASHES = [["solid", ""], ["dash", "6 4"], ["dot", "2 3"], ["dashdot", "6 3 2 3"], ["longdash", "10 4"]];
const UNKNOWN = "–";
const MOST_FAILURES = 100;
const byId = (id) => document.getElementById(id);
let shown = "";
let state = null;

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;  // a live region speaks only when something is new
}

function duration(seconds) {
  if (seconds === null) return UNKNOWN;
  if (seconds < 99.5) return `${seconds.toFixed(0)} s`;
  return seconds < 5970 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function pace(seconds) {
  if (seconds === null) return UNKNOWN;
  return seconds < 1 ? `${seconds.toFixed(3)} s` : seconds < 99.95 ? `${seconds.toFixed(1)} s` : duration(seconds);
}

function result(value) {
  if (value === null) return UNKNOWN;
  return state.in_points ? value.toFixed(3) : value.toPrecision(4);
}

function gain(value) {
  if (value === null) return UNKNOWN;
  return (value < 0 ? "−" : "+") + (state.in_points ? Math.abs(value).toFixed(1) : Math.abs(value).toPrecision(3));
}

function cell(tag, content, style) {
  const element = document.createElement(tag);
  if (content instanceof Node) element.append(content);
  else element.textContent = content;
  if (style) element.className = style;
  return element;
}

// A row is a list of [text or node, class]; the first names the row.
function fill(table, headings, rows) {
  const head = document.createElement("thead");
  head.append(document.createElement("tr"));
  headings.forEach(([text, style]) => {
    const heading = cell("th", text, style);
    heading.scope = "col";
    head.firstChild.append(heading);
  });
  const body = document.createElement("tbody");
  rows.forEach((cells) => {
    const row = document.createElement("tr");
    cells.forEach(([content, style], place) => {
      const element = cell(place ? "td" : "th", content, style);
      if (!place) element.scope = "row";
      row.append(element);
    });
    body.append(row);
  });
  table.replaceChildren(head, body);
}

const look = (place) => ({
  colour: COLOURS[place % COLOURS.length],
  dash: DASHES[Math.floor(place / COLOURS.length) % DASHES.length],
});

// The line of a system as in the plot, before its name.
function key(place, label) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "line");
  const { colour, dash } = look(place);
  const values = { x1: 0, y1: 5, x2: 26, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash[1] };
  Object.entries(values).forEach(([name, value]) => line.setAttribute(name, value));
  picture.setAttribute("class", "key");
  picture.setAttribute("viewBox", "0 0 26 10");
  picture.setAttribute("aria-hidden", "true");
  picture.append(line);
  const name = document.createElement("span");
  name.append(picture, label);
  return name;
}

const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");  // plotly reads tags in names

function draw() {
  const styles = getComputedStyle(document.documentElement);
  const [text, line] = ["--text", "--line"].map((name) => styles.getPropertyValue(name).trim());
  const traces = state.systems.map((system, place) => ({
    x: system.curve.round,
    y: system.curve.mean,
    name: plain(system.label),
    mode: system.curve.round.length > 1 ? "lines" : "markers",
    line: { color: look(place).colour, dash: look(place).dash[0], width: 2 },
    marker: { color: look(place).colour },
    hovertemplate: `%{y:${state.in_points ? ".3f" : ".4g"}} in round %{x}<extra>${plain(system.label)}</extra>`,
  }));
  const axis = { gridcolor: line, zeroline: false, linecolor: line, automargin: true };
  const metric = state.metric === "accuracy" ? "accuracy" : state.title;
  Plotly.react("curve", traces, {
    margin: { l: 40, r: 12, t: 8, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: text, family: "system-ui, sans-serif" },
    xaxis: { ...axis, title: { text: "round" }, range: [0, Math.max(1, state.rounds)], ...(state.rounds < 10 ? { dtick: 1 } : {}) },
    yaxis: { ...axis, title: { text: `mean test ${metric} over clients` } },
    showlegend: false,
    uirevision: "kept",
  }, { displaylogo: false, displayModeBar: false });
}

function tables() {
  const metric = state.title;
  const headings = [["Round"], [metric], ["Gain"], ["Pace"], ["Left"]];
  const numbers = (one) => [
    [`${one.round}/${state.rounds}`], [result(one.value)], [gain(one.gain)], [pace(one.seconds_per_round)],
    [duration(one.seconds_left)],
  ];
  fill(byId("systems"), [["System", "name"], ["State", "name"], ["Over"], ...headings],
    state.systems.map((system, place) => [
      [key(place, system.label), "name"], [system.state, `name ${system.state}`],
      [`${system.over}/${system.runs.length}`], ...numbers(system),
    ]));
  fill(byId("runs"), [["System", "name"], ["Seed"], ["State", "name"], ...headings, ["Why", "name"]],
    state.systems.flatMap((system) => system.runs.map((run) => [
      [system.label, "name"], [String(run.seed)], [run.state, `name ${run.state}`], ...numbers(run),
      [run.reason, "name text"],
    ])));
  byId("failed").hidden = state.failures.length === 0;
  fill(byId("failures"),
    [["Clients", "name"], ["System", "name"], ["Seed"], ["Last round"], ["Rounds"], ["Why", "name"]],
    state.failures.slice(0, MOST_FAILURES).map((one) => [
      [one.clients.join(", "), "name text"], [one.label, "name"], [String(one.seed)], [String(one.round)],
      [String(one.times)], [one.reason, "name text"],
    ]));
  byId("meaning").textContent = `Mean over clients and seeds at the last evaluated round; ${state.gain_title}.`;
}

function show() {
  const going = state.condition === "running" && state.seconds_left !== null;
  document.title = `${state.name} – coterie watch`;
  setText(byId("name"), state.name);
  setText(byId("sentence"), state.sentence);
  byId("sentence").dataset.condition = state.condition;
  byId("fresh").textContent = (going ? `About ${duration(state.seconds_left)} left. ` : "")
    + `${state.directory}, last written ${duration(state.seconds_since_write)} ago`;
  byId("notes").replaceChildren(...state.notes.map((note) => cell("p", note)));
  const runs = state.systems.flatMap((system) => system.runs);
  const done = runs.map((run) => (run.state === "failed" ? state.rounds : run.round));
  const all = state.rounds * runs.length;
  byId("progress").value = all ? done.reduce((sum, value) => sum + value, 0) / all : 0;
  const news = JSON.stringify([state.systems, state.failures, state.rounds]);
  if (news !== shown) {
    shown = news;
    tables();
    draw();
  }
}

async function ask() {
  let news = null;
  try {
    const answer = await fetch("/state.json", { cache: "no-store", signal: AbortSignal.timeout(60000) });
    if (answer.ok) news = await answer.json();
  } catch { /* said below */ }
  setTimeout(ask, SECONDS * 1000);
  if (news === null) {
    setText(byId("sentence"), "coterie watch does not answer: it may have been stopped. This is what it said last.");
    byId("sentence").dataset.condition = "lost";
    return;
  }
  state = news;
  show();
}

new ResizeObserver(() => state && Plotly.Plots.resize("curve")).observe(byId("curve"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state && draw());
ask();
