// Lets the reader search, sort and filter the explorer's tables. `explorer_assets` puts this behind DataTables, in a
// function of `DataTable` and `followTheme` (DataTables' own colours, light or dark).
const FILTERED = ["model", "program", "paper", "verdict"];

followTheme();

const number = (cell) => (cell === "–" ? null : Number(cell.replaceAll(",", "")));
const gapsLast = (sign) => (a, b) => (a === null) - (b === null) || sign * (a - b);
const natural = new Intl.Collator("en", { numeric: true }).compare; // Table 2 before Table 10
DataTable.type("text", { detect: () => true, order: { asc: natural, desc: (a, b) => natural(b, a) } });
DataTable.type("number", {
  detect: (cell) => !Number.isNaN(number(cell)),
  order: { pre: number, asc: gapsLast(1), desc: gapsLast(-1) },
});

for (const table of document.querySelectorAll("#explorer-tables table")) {
  const titles = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const filter = (title) => ({ extend: "dropdown", text: `filter by ${title}`, icon: "search", content: ["searchList"] });
  new DataTable(table, {
    order: [],
    pageLength: 12,
    lengthMenu: [12, 50, { label: "all", value: -1 }],
    autoWidth: false,
    columnDefs: titles.flatMap((title, targets) =>
      FILTERED.includes(title) ? [{ targets, columnControl: [filter(title)] }] : []),
    layout: { topStart: "search", topEnd: "pageLength" },
  });
}
