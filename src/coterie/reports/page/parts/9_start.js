// The plotting library comes compressed; the tables can be read and sorted before it is there.
async function inflated(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function dark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

async function start() {
  for (const table of document.querySelectorAll("table")) sortable(table);
  const script = document.createElement("script");
  script.textContent = await inflated("library");
  document.head.append(script);
  for (const draw of [drawCurves, drawGains, drawLinks, drawData, drawStrengths, drawClient]) draw();
  const again = () => drawn.forEach((draw) => draw());
  const button = byId("theme");
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  name();
  button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); again(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); again(); });
  let before;
  addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme; document.documentElement.dataset.theme = "light"; again(); });
  addEventListener("afterprint", () => {
    if (before) document.documentElement.dataset.theme = before; else delete document.documentElement.dataset.theme;
    again();
  });
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  byId("trouble").textContent = `The plots cannot be drawn by this browser (${error.message}); the tables are complete.`;
  byId("trouble").hidden = false;
  throw error;
});
