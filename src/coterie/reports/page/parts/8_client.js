// One client: what it gained, from whom, and what it sent.
function drawClient() {
  const chosen = byId("client");
  if (!chosen) return;
  const list = byId("client-names");
  list.replaceChildren(...names.map((name) => new Option(name, name)));
  const hash = decodeURIComponent(location.hash.replace(/^#client=/, ""));
  chosen.value = location.hash.startsWith("#client=") && names.includes(hash) ? hash : names[0];
  const current = () => Math.max(0, names.indexOf(chosen.value));
  const system = byId("client-system");
  const linked = Object.keys(page.links).filter((label) => page.links[label].joined === 1);
  fill(system, linked);
  system.closest("label").hidden = !linked.length;
  byId("client-from").closest("figure").hidden = !linked.length;

  function rows(k) {
    return page.labels.flatMap((label) => {
      const found = page.gains[label], place = found ? found.client.indexOf(k) : -1;
      if (place < 0) return [];
      const way = (name) => page.traffic[label]?.[name]?.[k] ?? null;
      return [{ label, place, found, up: way("up"), down: way("down"), peer: way("peer") }];
    });
  }

  function tell() {
    const k = current(), mine = rows(k);
    const best = mine.filter(({ label, found, place }) => label !== page.about.reference && found.gain[place] !== null)
      .sort((a, b) => b.found.gain[b.place] - a.found.gain[a.place])[0];
    byId("client-says").textContent = best
      ? `${names[k]} is best off with ${best.label}: ${number(best.found.value[best.place], 4)} on ${number(best.found.n[best.place], 0)} test examples, ` +
        `alone ${number(best.found.alone[best.place], 4)}, a gain of ${signed(best.found.gain[best.place], gainDigits)} ${gainUnit}` +
        (best.up === null ? "." : `. It sent ${size(best.up)} and received ${size(best.down)}.`)
      : `${names[k]} has no results to compare yet.`;
    const peers = mine.some((row) => row.peer);
    byId("client-table").replaceChildren(tableOf(
      `${names[k]}, means over seeds`,
      ["System", page.about.metric, "alone", `gain, ${gainUnit}`, "sent", "received", ...(peers ? ["peers"] : [])],
      mine.map(({ label, found, place, up, down, peer }) => [
        label, [number(found.value[place], 4), found.value[place]], [number(found.alone[place], 4), found.alone[place]],
        [signed(found.gain[place], gainDigits), found.gain[place], found.gain[place] < 0 ? "harmed" : ""],
        [size(up), up], [size(down), down], ...(peers ? [[size(peer), peer]] : []),
      ]),
    ));
    const failed = page.failures.rows.filter((row) => row.client === names[k]);
    byId("client-failures").textContent = failed.length
      ? `Failures: ${failed.slice(0, 5).map((row) => `${row.label}, round ${row.round}: ${row.reason}`).join("; ")}` : "";
  }

  const curve = plot("client-curve", () => {
    const k = current();
    const traces = page.labels.filter((label) => page.own_curves[label]).map((label) => {
      const { rounds, values } = page.own_curves[label], { flat, shape } = unpack(values);
      return {
        x: rounds, y: rounds.map((_, r) => { const v = flat[r * shape[1] + k]; return Number.isNaN(v) ? null : v; }),
        name: plain(label), mode: rounds.length < 3 ? "lines+markers" : "lines", line: { ...style(label), width: 2 }, hovertemplate: `<b>${plain(label)}</b>, round %{x}: %{y:.4f}<extra></extra>`,
      };
    });
    byId("client-curve").closest("figure").hidden = !traces.length;
    return {
      traces, layout: { xaxis: { title: { text: "round" } }, yaxis: { title: { text: `test ${page.about.metric}` } }, height: 340, showlegend: true },
      says: `Test ${page.about.metric} of ${names[k]} over rounds.`,
    };
  });

  const from = plot("client-from", () => {
    const k = current(), found = page.links[system.value];
    if (!found) return null;
    const name = Object.keys(found.matrices).at(-1), { flat, shape } = unpack(found.matrices[name]);
    const row = found.clients.indexOf(names[k]), start = ((shape[0] - 1) * shape[1] + row) * shape[1];
    const sources = row < 0 ? [] : found.clients.map((client, j) => [client, flat[start + j]])
      .filter(([, value]) => !Number.isNaN(value) && value !== 0).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 10).reverse();
    byId("client-from-note").textContent = row < 0
      ? `${names[k]} did not take part with seed ${found.seed}.`
      : `From whom ${names[k]} takes most with ${system.value} (${name}, seed ${found.seed}, round ${found.rounds.at(-1)}).`;
    return {
      traces: [{
        type: "bar", orientation: "h", y: sources.map(([client]) => plain(client) + (client === names[k] ? " (itself)" : "")), x: sources.map(([, value]) => value),
        marker: { color: variable("--good") }, hovertemplate: "<b>%{y}</b>: %{x:.4g}<extra></extra>",
      }],
      layout: { yaxis: { type: "category" }, xaxis: { title: { text: name } }, height: 340, showlegend: false },
      says: `From whom ${names[k]} learns most with ${system.value}.`,
    };
  });

  const update = () => { tell(); curve(); from(); };
  chosen.addEventListener("change", () => {
    if (names.includes(chosen.value)) { chosen.setCustomValidity(""); update(); } else {
      chosen.setCustomValidity("There is no client of this name.");
      chosen.reportValidity();
    }
  });
  system.addEventListener("change", from);
  tell();
}
