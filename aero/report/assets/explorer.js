// Lets the reader search, sort and filter the explorer's tables. Follows DataTables in one script; loads nothing.
const FILTERED = ["model", "program", "paper", "verdict"];

followTheme(); // DataTables' own colours, light or dark

const number = (cell) => (cell === "–" ? null : Number(cell.replaceAll(",", "")));
const gapsLast = (sign) => (a, b) => (a === null) - (b === null) || sign * (a - b);
DataTable.type("number", {
  detect: { allOf: (cell) => cell === "–" || !Number.isNaN(number(cell)), oneOf: (cell) => cell !== "–" },
  order: { pre: number, asc: gapsLast(1), desc: gapsLast(-1) },
});

for (const table of document.querySelectorAll("#explorer-tables table")) {
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  new DataTable(table, {
    order: [],
    pageLength: 12,
    autoWidth: false,
    columnDefs: [{
      targets: FILTERED.map((title) => titles.indexOf(title)).filter((index) => index >= 0),
      columnControl: [["searchList"]],
    }],
    layout: { topStart: "search", topEnd: null, bottomStart: "info", bottomEnd: "paging" },
  });
}
