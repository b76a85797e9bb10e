// Who learns from whom: a matrix or a graph, round by round.
const STRONGEST = 3;

function drawLinks() {
  const systems = Object.keys(page.links);
  if (!systems.length) return;
  const system = byId("links-system"), which = byId("links-matrix"), order = byId("links-order"), view = byId("links-view");
  const slider = byId("links-round"), shown = byId("links-shown");
  const cache = {};
  fill(system, systems);

  function choose() {
    const found = page.links[system.value];
    fill(which, Object.keys(found.matrices));
    slider.max = found.rounds.length - 1;
    slider.value = found.rounds.length - 1;
  }

  function matrix() {
    const found = page.links[system.value], key = `${system.value}\n${which.value}`;
    cache[key] = cache[key] || unpack(found.matrices[which.value]);
    const { flat, shape } = cache[key], rows = shape[1], start = Number(slider.value) * rows * rows;
    const places = order.value === "alike" ? found.order : found.clients.map((_, i) => i);
    const cells = places.map((i) => places.map((j) => {
      const value = flat[start + i * rows + j];
      return Number.isNaN(value) ? null : value;
    }));
    return { found, cells, labels: places.map((i) => (found.joined > 1 ? `${found.clients[i]} …` : found.clients[i])) };
  }

  function heat({ cells, labels }) {
    const values = cells.flat().filter((value) => value !== null);
    const low = Math.min(0, ...values), high = Math.max(...values, 1e-12);
    const bound = Math.max(-low, high);
    const colours = low < 0
      ? { zmin: -bound, zmax: bound, colorscale: [[0, "#c04a00"], [0.5, variable("--paper")], [1, "#0072b2"]] }
      : { zmin: 0, zmax: high, colorscale: [[0, variable("--raised")], [1, variable("--cell")]] };
    const text = labels.map(plain), ticks = labels.length <= 40;
    return {
      traces: [{
        type: "heatmap", z: cells, x: text, y: text, ...colours, xgap: ticks ? 1 : 0, ygap: ticks ? 1 : 0,
        hovertemplate: "<b>%{y}</b> takes %{z:.4g}<br>from <b>%{x}</b><extra></extra>", hoverongaps: false,
        colorbar: { thickness: 12, outlinewidth: 0 },
      }],
      layout: {
        xaxis: { type: "category", title: { text: "from" }, showticklabels: ticks, showgrid: false },
        yaxis: { type: "category", title: { text: "who learns" }, showticklabels: ticks, autorange: "reversed", showgrid: false },
        height: 560,
      },
    };
  }

  function graph({ cells, labels }) {
    const count = labels.length;
    const place = (i) => [Math.cos((2 * Math.PI * i) / count), Math.sin((2 * Math.PI * i) / count)];
    const edges = [];
    cells.forEach((row, i) => {
      row.map((value, j) => [value, j]).filter(([value, j]) => j !== i && value !== null && value > 0)
        .sort((a, b) => b[0] - a[0]).slice(0, STRONGEST).forEach(([value, j]) => edges.push([i, j, value]));
    });
    const high = Math.max(...edges.map((edge) => edge[2]), 1e-12);
    const traces = [1 / 3, 2 / 3, 1].map((bound, level) => {
      const x = [], y = [];
      for (const [i, j, value] of edges) {
        if (value > bound * high + 1e-12 || value <= (bound - 1 / 3) * high - 1e-12) continue;
        const [from, to] = [place(j), place(i)];
        x.push(from[0], to[0], null);
        y.push(from[1], to[1], null);
      }
      return {
        x, y, mode: "lines", hoverinfo: "skip", showlegend: false,
        line: { width: [0.7, 1.6, 3][level], color: translucent("#0072b2", [0.35, 0.55, 0.9][level]) },
      };
    });
    traces.push({
      x: labels.map((_, i) => place(i)[0]), y: labels.map((_, i) => place(i)[1]),
      mode: count <= 40 ? "markers+text" : "markers", text: labels.map(plain), textposition: labels.map((_, i) => {
        const [x, y] = place(i);
        return Math.abs(x) < 0.3 ? (y > 0 ? "top center" : "bottom center") : (x > 0 ? "middle right" : "middle left");
      }),
      hovertext: labels.map((label, i) => {
        const from = edges.filter((edge) => edge[0] === i).map(([, j, value]) => `${plain(labels[j])} ${value.toPrecision(3)}`);
        return `<b>${plain(label)}</b> takes from<br>${from.join("<br>") || "nobody"}`;
      }),
      hoverinfo: "text", marker: { size: count <= 40 ? 12 : 7, color: variable("--bad"), line: { color: variable("--paper"), width: 1 } },
      showlegend: false, cliponaxis: false,
    });
    const arrows = edges.length > 130 ? [] : edges.map(([i, j, value]) => {
      const [from, to] = [place(j), place(i)];
      return {
        x: 0.06 * from[0] + 0.94 * to[0], y: 0.06 * from[1] + 0.94 * to[1],
        ax: 0.1 * from[0] + 0.9 * to[0], ay: 0.1 * from[1] + 0.9 * to[1],
        xref: "x", yref: "y", axref: "x", ayref: "y", text: "", showarrow: true, arrowhead: 3, arrowsize: 1.1,
        arrowwidth: 1, arrowcolor: translucent("#0072b2", 0.4 + 0.6 * (value / high)),
      };
    });
    const hidden = { visible: false, range: [-1.45, 1.45] };
    return { traces, layout: { xaxis: hidden, yaxis: { ...hidden, scaleanchor: "x" }, height: 560, annotations: arrows } };
  }

  choose();
  const redraw = plot("links", () => {
    const made = matrix(), round = made.found.rounds[Number(slider.value)];
    shown.textContent = `round ${round}`;
    slider.setAttribute("aria-valuetext", `round ${round}`);
    byId("links-note").textContent =
      `${system.value}, ${which.value}, seed ${made.found.seed}, round ${round}.` +
      (made.found.joined > 1 ? ` Each row stands for ${made.found.joined} clients (mean).` : "") +
      (view.value === "graph" ? ` Arrows lead to each client from the ${STRONGEST} that it takes most from.` : " Row: who learns; column: from whom.");
    const drawing = view.value === "graph" ? graph(made) : heat(made);
    return { ...drawing, says: `Who learns from whom with ${system.value} in round ${round}, as a ${view.value}.` };
  });
  system.addEventListener("change", () => { choose(); redraw(); });
  for (const control of [which, order, view]) control.addEventListener("change", redraw);
  slider.addEventListener("input", () => requestAnimationFrame(redraw));
}
