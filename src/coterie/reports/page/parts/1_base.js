// Data, colours and what all plots share.
const page = JSON.parse(document.getElementById("data").textContent);
const names = page.clients.names;
const byId = (id) => document.getElementById(id);
const accuracy = page.about.in_points;
const palette = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a0522d", "#8a6fdf"];
const dashes = ["solid", "dash", "dot", "dashdot"];
const others = page.labels.filter((label) => label !== page.about.reference);

function style(label) {
  if (label === page.about.reference) return { color: "#8b919c", dash: "dash" };
  const place = Math.max(0, others.indexOf(label));
  return { color: palette[place % palette.length], dash: dashes[Math.floor(place / palette.length) % dashes.length] };
}

function variable(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function unpack(stored) {
  const bytes = bytesOf(stored.bytes);
  const flat = stored.kind === "f8" ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
  return { flat, shape: stored.shape };
}

function translucent(colour, share) {
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  return `rgba(${red},${green},${blue},${share})`;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (bytes >= 999.5 && place < units.length - 1) { bytes /= 1000; place += 1; }
  return `${bytes.toFixed(bytes < 9.95 && place ? 1 : 0)} ${units[place]}`;
}

function number(value, digits = 3) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : value.toFixed(digits);
}

function signed(value, digits) {
  return value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + value.toFixed(digits);
}

// Text that plotly shows may hold a few tags, and a client may be called anything.
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

const gainUnit = accuracy ? "points" : `of ${page.about.metric.toUpperCase()}`;
const gainDigits = accuracy ? 1 : 4;

function layout(extra) {
  const axis = {
    gridcolor: variable("--line"), zerolinecolor: variable("--soft"), linecolor: variable("--line"), automargin: true,
    tickfont: { size: 12 },
  };
  const { xaxis, yaxis, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: variable("--ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 56, r: 12, t: 12, b: 44 }, hovermode: "closest",
    hoverlabel: { bgcolor: variable("--raised"), bordercolor: variable("--line"), font: { color: variable("--ink") } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    ...rest, xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis },
  };
}

const drawn = [];

// A plot is drawn when it comes near the window, so that a page with many answers at once.
const approaching = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) { approaching.unobserve(target); target.draw(true); }
  }
}, { rootMargin: "500px" });

// Returns a function that draws again; `make` returns traces, a layout and what a reader who cannot see hears.
function plot(id, make) {
  const element = byId(id);
  if (!element) return () => {};
  let near = false;
  element.draw = (now = false) => {
    near = near || now;
    const made = near ? make() : null;
    if (!made) return;
    element.setAttribute("aria-label", made.says);
    Plotly.react(element, made.traces, layout(made.layout), { displayModeBar: false, responsive: true });
  };
  drawn.push(element.draw);
  approaching.observe(element);
  return () => element.draw();
}

function fill(select, values, texts = values) {
  select.replaceChildren(...values.map((value, i) => new Option(texts[i], value)));
}
