// Test or validation result over rounds, or over the bytes that all clients together have sent and received.
function drawCurves() {
  const over = byId("curves-over"), split = byId("curves-split");
  const redraw = plot("curves", () => {
    const found = page.curves[split.value], bytes = over.value === "bytes";
    const traces = [];
    for (const label of page.labels) {
      const line = found[label];
      if (!line) continue;
      const x = bytes ? line.bytes : line.round, { color, dash } = style(label);
      if (line.std.some((value) => value)) {
        const upper = line.mean.map((mean, i) => mean + line.std[i]);
        const lower = line.mean.map((mean, i) => mean - line.std[i]);
        const band = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false, legendgroup: label };
        traces.push({ ...band, x, y: lower }, { ...band, x, y: upper, fill: "tonexty", fillcolor: translucent(color, 0.16) });
      }
      traces.push({
        x, y: line.mean, name: plain(label), legendgroup: label, mode: line.round.length < 3 ? "lines+markers" : "lines",
        line: { color, dash, width: 2 },
        customdata: line.round.map((round, i) => [round, line.std[i], line.seeds[i], size(line.bytes[i])]),
        hovertemplate: `<b>${plain(label)}</b><br>round %{customdata[0]}: %{y:.4f} ± %{customdata[1]:.4f}` +
          "<br>%{customdata[2]} seed(s), %{customdata[3]} so far<extra></extra>",
      });
    }
    return {
      traces,
      layout: {
        xaxis: { title: { text: bytes ? "bytes of all clients" : "round" }, ...(bytes ? { exponentformat: "SI", ticksuffix: "B" } : {}) },
        yaxis: { title: { text: `${split.value} ${page.about.metric}` } }, height: 420,
      },
      says: `Mean ${split.value} ${page.about.metric} over ${bytes ? "bytes" : "rounds"} of ${page.labels.join(", ")}.`,
    };
  });
  over.addEventListener("change", redraw);
  split.addEventListener("change", redraw);
}
