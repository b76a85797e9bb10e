// Who is better or worse off than alone, by client.
const MANY = 150;

function drawGains() {
  const compared = others.filter((label) => page.gains[label] && page.gains[label].gain.some((gain) => gain !== null));
  if (!compared.length) return;
  const system = byId("gain-system"), against = byId("gain-against");
  fill(system, compared);
  const facts = [["n", "test examples"]];
  if (page.clients.similarity_mean) facts.push(["similarity", "similarity of its data to the others'"]);
  for (const [key, column] of Object.entries(page.clients.columns || {})) {
    if (column.every((value) => value === null || typeof value === "number")) facts.push([`column:${key}`, key]);
  }
  fill(against, facts.map(([key]) => key), facts.map(([, text]) => text));

  const described = page.described || { gains: page.gains };

  function hover(label, found, i) {
    return `<b>${plain(names[found.client[i]])}</b>, n = ${number(found.n[i], Number.isInteger(found.n[i]) ? 0 : 1)}<br>` +
      `${plain(label)} ${number(found.value[i], 4)}, alone ${number(found.alone[i], 4)}<br>` +
      `gain ${signed(found.gain[i], gainDigits)} ${gainUnit}` +
      (found.seeds[i] > 1 ? ` ± ${number(found.gain_std[i], gainDigits)} over ${found.seeds[i]} seeds` : "");
  }

  const bars = plot("gain-bars", () => {
    const label = system.value, found = page.gains[label];
    const order = found.gain.map((_, i) => i).filter((i) => found.gain[i] !== null)
      .sort((a, b) => found.gain[b] - found.gain[a]);
    const y = order.map((i) => found.gain[i]), harmed = y.filter((gain) => gain < 0).length;
    const many = order.length > MANY;
    const shared = { y, hovertext: order.map((i) => hover(label, found, i)), hoverinfo: "text", name: plain(label) };
    const trace = many
      ? { ...shared, x: y.map((_, i) => i + 1), type: "scatter", mode: "lines", fill: "tozeroy", line: { color: variable("--good"), width: 1.5 } }
      : {
        ...shared, x: order.map((i) => plain(names[found.client[i]])), type: "bar",
        marker: {
          color: y.map((gain) => variable(gain < 0 ? "--bad" : "--good")),
          pattern: { shape: y.map((gain) => (gain < 0 ? "/" : "")), fgcolor: variable("--paper"), size: 6 },
        },
      };
    byId("gain-count").textContent = `${label}: ${harmed} of ${order.length} clients are worse off than alone (on average over seeds).`;
    return {
      traces: [trace],
      layout: {
        xaxis: many ? { title: { text: "clients, by gain" } } : { type: "category", showticklabels: order.length <= 60, title: { text: "client" } },
        yaxis: { title: { text: `gain over training alone, ${gainUnit}` } }, height: 360, bargap: 0.15, showlegend: false,
      },
      says: `Gain of each client with ${label}, sorted. ${harmed} of ${order.length} are worse off than alone.`,
    };
  });

  const scatter = plot("gain-scatter", () => {
    const fact = against.value;
    const value = (found, i) => {
      const client = found.client[i];
      if (fact === "n") return found.n[i];
      if (fact === "similarity") return page.clients.similarity_mean[client];
      return page.clients.columns[fact.slice(7)][client];
    };
    const text = facts.find(([key]) => key === fact)[1];
    return {
      traces: compared.map((label) => {
        const found = described.gains[label] || { gain: [] }, { color } = style(label);
        return {
          x: found.gain.map((_, i) => value(found, i)), y: found.gain, name: plain(label), mode: "markers",
          type: names.length > 2000 ? "scattergl" : "scatter", marker: { color, size: 8, opacity: 0.75 },
          visible: label === system.value ? true : "legendonly",
          hovertext: found.gain.map((_, i) => hover(label, found, i)), hoverinfo: "text",
        };
      }),
      layout: { xaxis: { title: { text: text } }, yaxis: { title: { text: `gain, ${gainUnit}` } }, height: 380, showlegend: true },
      says: `Gain of each client against ${text}, for ${compared.join(", ")}.`,
    };
  });
  system.addEventListener("change", () => { bars(); scatter(); });
  against.addEventListener("change", scatter);

  const numbers = byId("gain-numbers");
  numbers.addEventListener("toggle", () => {
    const place = numbers.querySelector(".scroll");
    if (!numbers.open || place.children.length) return;
    const first = page.gains[compared[0]];
    const rows = new Map(first.client.map((client, i) => [client, { n: first.n[i], alone: first.alone[i], gain: {} }]));
    for (const label of compared) {
      const found = page.gains[label];
      found.client.forEach((client, i) => {
        if (rows.has(client)) rows.get(client).gain[label] = found.gain[i];
      });
    }
    place.append(tableOf(
      `Gain over training alone, ${gainUnit}; mean over seeds`, ["client", "n", "alone", ...compared],
      [...rows].map(([client, row]) => [
        names[client], [number(row.n, Number.isInteger(row.n) ? 0 : 1), row.n], [number(row.alone, 4), row.alone],
        ...compared.map((label) => {
          const gain = row.gain[label] ?? null;
          return [signed(gain, gainDigits), gain, gain !== null && gain < 0 ? "harmed" : ""];
        }),
      ]),
    ));
  });
}
