// The clients' training data, as far as they are known.
function drawData() {
  const { class_counts: counts, features, samples, n, labels } = page.clients;
  const named = (c) => (labels ? plain(labels[c]) : `class ${c}`);
  if (counts) {
    plot("data-classes", () => {
      const classes = counts.find((row) => row).length, many = names.length > 60 || classes > 12;
      const shown = names.map((_, i) => i).filter((i) => counts[i]);
      if (many) {
        const joined = Math.ceil(shown.length / 300), rows = [];
        for (let start = 0; start < shown.length; start += joined) rows.push(shown.slice(start, start + joined));
        return {
          traces: [{
            type: "heatmap", x: Array.from({ length: classes }, (_, c) => named(c)),
            y: rows.map((row) => plain(names[row[0]]) + (joined > 1 ? " …" : "")),
            z: rows.map((row) => Array.from({ length: classes }, (_, c) => row.reduce((sum, i) => sum + counts[i][c], 0))),
            colorscale: [[0, variable("--raised")], [1, variable("--cell")]], colorbar: { thickness: 12, outlinewidth: 0 },
            hovertemplate: "<b>%{y}</b>, %{x}: %{z}<extra></extra>",
          }],
          layout: {
            xaxis: { type: "category", showgrid: false, showticklabels: classes <= 40 },
            yaxis: { type: "category", showgrid: false, showticklabels: rows.length <= 60, title: { text: "client" } }, height: 520,
          },
          says: `Training examples by client and class; ${names.length} clients, ${classes} classes.`,
        };
      }
      return {
        traces: Array.from({ length: classes }, (_, c) => ({
          type: "bar", name: named(c), x: shown.map((i) => plain(names[i])), y: shown.map((i) => counts[i][c]),
          marker: { color: [...palette, "#b8b200", "#6b7280", "#7f1d1d", "#155e75"][c] },
          hovertemplate: `<b>%{x}</b>, ${named(c)}: %{y}<extra></extra>`,
        })),
        layout: { barmode: "stack", xaxis: { type: "category", title: { text: "client" } }, yaxis: { title: { text: "training examples" } }, height: 400 },
        says: `Training examples by client and class; ${names.length} clients, ${classes} classes.`,
      };
    });
  } else if (n && n.train) {
    plot("data-classes", () => ({
      traces: names.length <= MANY
        ? [{ type: "bar", x: names.map(plain), y: n.train, marker: { color: variable("--good") }, hovertemplate: "<b>%{x}</b>: %{y}<extra></extra>" }]
        : [{ type: "histogram", x: n.train, marker: { color: variable("--good") } }],
      layout: names.length <= MANY
        ? { xaxis: { type: "category", title: { text: "client" } }, yaxis: { title: { text: "training examples" } }, height: 360 }
        : { xaxis: { title: { text: "training examples" } }, yaxis: { title: { text: "clients" } }, height: 360 },
      says: `Training examples of each of ${names.length} clients.`,
    }));
  }
  if (features) {
    plot("data-features", () => {
      const shown = names.map((_, i) => i).filter((i) => features.mean[i]);
      const width = features.mean[shown[0]].length;
      const overall = Array.from({ length: width }, (_, f) => {
        const values = shown.map((i) => features.mean[i][f]);
        const mean = values.reduce((a, b) => a + b, 0) / values.length;
        const spread = Math.sqrt(shown.reduce((sum, i) => sum + features.std[i][f] ** 2, 0) / shown.length) || 1;
        return [mean, spread];
      });
      return {
        traces: [{
          type: "heatmap", x: overall.map((_, f) => `feature ${f}`), y: shown.map((i) => plain(names[i])),
          z: shown.map((i) => overall.map(([mean, spread], f) => (features.mean[i][f] - mean) / spread)), zmid: 0,
          colorscale: [[0, "#c04a00"], [0.5, variable("--paper")], [1, "#0072b2"]], colorbar: { thickness: 12, outlinewidth: 0 },
          hovertemplate: "<b>%{y}</b>, %{x}: %{z:.2f} deviations from the mean client<extra></extra>",
        }],
        layout: { xaxis: { type: "category", showgrid: false, showticklabels: width <= 40 }, yaxis: { type: "category", showgrid: false, showticklabels: names.length <= 60 }, height: 420 },
        says: "Mean of each feature at each client, in deviations from the mean client.",
      };
    });
  }
  if (samples) drawSamples(samples);
}

function drawSamples(samples) {
  const [clients, count, height, width, channels] = samples.shape;
  const pixels = atob(samples.pixels), place = byId("data-samples");
  for (let client = 0; client < clients; client += 1) {
    const canvas = document.createElement("canvas");
    canvas.width = count * width;
    canvas.height = height;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${count} training pictures of ${samples.clients[client]}`);
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, height);
    for (let example = 0; example < count; example += 1) {
      for (let y = 0; y < height; y += 1) {
        for (let x = 0; x < width; x += 1) {
          const from = (((client * count + example) * height + y) * width + x) * channels;
          const to = (y * canvas.width + example * width + x) * 4;
          for (let c = 0; c < 3; c += 1) image.data[to + c] = pixels.charCodeAt(from + (channels === 3 ? c : 0));
          image.data[to + 3] = 255;
        }
      }
    }
    context.putImageData(image, 0, 0);
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    caption.textContent = samples.clients[client];
    figure.append(canvas, caption);
    place.append(figure);
  }
}
