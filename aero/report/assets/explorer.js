// Draws the explorer: two tables that can be searched, filtered and sorted. Loads nothing.
"use strict";
const data = JSON.parse(document.getElementById("explorer-data").textContent);
const SHOWN = 12;

function element(name, parent, properties = {}) {
  return parent.appendChild(Object.assign(document.createElement(name), properties));
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);  // gaps last
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

// A table of `lines` with a search box, a choice for each column in `choices`, and headers that sort.
function table(root, columns, lines, choices) {
  let sorted = null, ascending = true, limit = SHOWN;
  const form = element("div", root, { className: "explorer-form" });
  const search = element("input", form, { type: "search", placeholder: "search" });
  search.setAttribute("aria-label", "search");
  const selects = choices.map((column) => {
    const select = element("select", form);
    select.setAttribute("aria-label", column);
    element("option", select, { value: "", textContent: `any ${column}` });
    for (const value of [...new Set(lines.map((line) => line[column]))].sort()) {
      element("option", select, { value, textContent: value });
    }
    return [column, select];
  });
  const count = element("span", form, { className: "explorer-count" });
  count.setAttribute("aria-live", "polite");
  const grid = element("table", element("div", root, { className: "scroll" }), { className: "data" });
  const header = element("tr", element("thead", grid));
  const body = element("tbody", grid);
  const more = element("button", root, { type: "button", textContent: "show all" });

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/);
    const found = lines.filter((line) => {
      const text = columns.map((column) => line[column]).join(" ").toLowerCase();
      return words.every((word) => text.includes(word)) && selects.every(([c, s]) => !s.value || line[c] === s.value);
    });
    if (sorted) found.sort((a, b) => compare(a[sorted], b[sorted]) * (ascending ? 1 : -1));
    count.textContent = ` ${found.length} of ${lines.length}`;
    more.hidden = found.length <= limit;
    body.replaceChildren();
    for (const line of found.slice(0, limit)) {
      const row = element("tr", body);
      for (const column of columns) element("td", row, { textContent: line[column] ?? "–" });
    }
  }

  for (const column of columns) {
    const cell = element("th", header);
    const button = element("button", cell, { type: "button", textContent: column });
    button.addEventListener("click", () => {
      ascending = sorted === column ? !ascending : true;
      sorted = column;
      for (const other of header.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      draw();
    });
  }
  search.addEventListener("input", draw);
  for (const [, select] of selects) select.addEventListener("change", draw);
  more.addEventListener("click", () => { limit = Infinity; draw(); });
  draw();
}

const root = document.getElementById("explorer-tables");
table(element("div", root), data.row_columns, data.rows, ["model", "program"]);
element("h3", root, { textContent: "Find a claim" });
table(element("div", root), data.claim_columns, data.claims, ["paper", "verdict"]);
