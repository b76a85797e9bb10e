// Each client's own numbers, such as lambda_k, and a method's own numbers, over rounds.
function drawStrengths() {
  const choices = [];
  for (const [label, found] of Object.entries(page.strengths)) {
    for (const [name, series] of Object.entries(found)) choices.push({ text: `${label}: ${name} of each client`, label, name, series });
  }
  for (const [label, found] of Object.entries(page.links)) {
    for (const name of Object.keys(found.matrices)) {
      if (found.joined === 1) choices.push({ text: `${label}: what each client takes from itself (${name})`, label, name, found });
    }
  }
  for (const [name, lines] of Object.entries(page.notes)) choices.push({ text: name, name, lines });
  if (!choices.length) return;
  const select = byId("strength");
  fill(select, choices.map((_, i) => i), choices.map((choice) => choice.text));

  function rows(choice) {
    if (choice.series) {
      const { flat, shape } = unpack(choice.series.values);
      return { rounds: choice.series.rounds, who: names, at: (r, k) => flat[r * shape[1] + k] };
    }
    const { flat, shape } = unpack(choice.found.matrices[choice.name]);
    return { rounds: choice.found.rounds, who: choice.found.clients, at: (r, k) => flat[(r * shape[1] + k) * shape[1] + k] };
  }

  const redraw = plot("strengths", () => {
    const choice = choices[Number(select.value)];
    if (choice.lines) {
      return {
        traces: Object.entries(choice.lines).map(([label, line]) => ({
          x: line.round, y: line.mean, name: plain(label), mode: line.round.length < 3 ? "lines+markers" : "lines", line: { ...style(label), width: 2 },
          hovertemplate: `<b>${plain(label)}</b>, round %{x}: %{y:.4g}<extra></extra>`,
        })),
        layout: { xaxis: { title: { text: "round" } }, yaxis: { title: { text: choice.name } }, height: 360, showlegend: true },
        says: `${choice.name} over rounds.`,
      };
    }
    const { rounds, who, at } = rows(choice), few = who.length <= 12;
    const value = (r, k) => { const found = at(r, k); return Number.isNaN(found) ? null : found; };
    const lines = who.map((client, k) => ({
      x: rounds, y: rounds.map((_, r) => value(r, k)), name: plain(client), mode: rounds.length < 3 ? "lines+markers" : "lines",
      line: few ? { width: 2, color: palette[k % palette.length], dash: dashes[Math.floor(k / palette.length)] } : { width: 1, color: translucent("#0072b2", 0.35) },
      hovertemplate: `<b>${plain(client)}</b>, round %{x}: %{y:.4g}<extra></extra>`, showlegend: few,
    }));
    const quantile = (r, share) => {
      const sorted = who.map((_, k) => value(r, k)).filter((v) => v !== null).sort((a, b) => a - b);
      return sorted.length ? sorted[Math.round(share * (sorted.length - 1))] : null;
    };
    const bands = [[0.1, "lowest tenth"], [0.5, "median"], [0.9, "highest tenth"]].map(([share, name], i) => ({
      x: rounds, y: rounds.map((_, r) => quantile(r, share)), name, mode: "lines", line: { width: i === 1 ? 3 : 1.5, dash: i === 1 ? "solid" : "dash", color: variable("--bad") },
    }));
    return {
      traces: few ? lines : [...(who.length <= 300 ? lines : []), ...bands],
      layout: { xaxis: { title: { text: "round" } }, yaxis: { title: { text: choice.name } }, height: 380, showlegend: true },
      says: `${choice.text} over rounds.`,
    };
  });
  select.addEventListener("change", redraw);
}
