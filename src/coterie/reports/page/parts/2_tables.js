// Tables sort by the numbers behind their cells; what is undefined stays at the end.
function sortable(table) {
  const body = table.tBodies[0];
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = head.querySelector("button");
    if (!button) continue;
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") !== "descending";
      for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const sign = falling ? -1 : 1;
      const key = (row) => {
        const { value } = row.cells[column].dataset;
        if (value === undefined) return row.cells[column].textContent;
        return value === "" ? null : Number(value);
      };
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return typeof a === "number" ? sign * (a - b) : sign * String(a).localeCompare(String(b), "en", { numeric: true });
      });
      body.append(...rows.map(([, row]) => row));
    });
  }
}

// heads: texts. rows: arrays of texts or [text, number, class].
function tableOf(caption, heads, rows) {
  const table = document.createElement("table");
  table.createCaption().textContent = caption;
  const line = table.createTHead().insertRow();
  for (const text of heads) {
    const head = document.createElement("th");
    head.scope = "col";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    head.append(button);
    line.append(head);
  }
  const body = table.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    for (const [place, content] of cells.entries()) {
      const [text, value, kind] = Array.isArray(content) ? content : [content];
      let cell = row.insertCell();
      if (place === 0) {
        const head = document.createElement("th");
        head.scope = "row";
        cell.replaceWith(head);
        cell = head;
      }
      cell.textContent = text;
      if (value !== undefined) cell.dataset.value = value === null ? "" : value;
      if (kind) cell.className = kind;
    }
  }
  sortable(table);
  return table;
}
