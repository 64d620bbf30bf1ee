"use strict";
// The contents are the page's own headings. Every table of class "find" gets a box to search in, a choice for each column marked data-choose,
// and heads that sort. Without this script a table is whole, in its own order.

for (const nav of document.querySelectorAll("nav")) list(nav);
for (const table of document.querySelectorAll("table.find")) equip(table);

function list(nav) {
  for (const section of document.querySelectorAll("section[id]")) {
    const link = made("a");
    link.href = `#${section.id}`;
    link.textContent = section.querySelector("h2").textContent;
    nav.append(link);
  }
  nav.hidden = false;
}

function equip(table) {
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells];
  if (rows.length < 2) return;

  const bar = made("div", "finder");
  const box = made("input");
  box.type = "search";
  bar.append(labelled("Find", box));
  const choices = heads.flatMap((head, column) => ("choose" in head.dataset ? [choice(column)] : []));
  const told = made("output");
  bar.append(told);
  (table.closest(".wide") ?? table).before(bar);

  bar.addEventListener("input", show);
  bar.append(orders());
  heads.forEach((head, column) => sortable(head, column));
  show();

  function choice(column) {
    const list = made("select");
    list.append(new Option("any", ""));
    for (const text of [...new Set(rows.map((row) => shown(row, column)))].sort())
      if (text) list.append(new Option(text, text));
    bar.append(labelled(heads[column].textContent, list));
    return { column, list };
  }

  function show() {
    const wanted = box.value.trim().toLowerCase();
    for (const row of rows)
      row.hidden =
        !row.textContent.toLowerCase().includes(wanted) ||
        choices.some(({ column, list }) => list.value && list.value !== shown(row, column));
    told.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  }

  function sortable(head, column) {
    const button = made("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(column, head.ariaSort === "ascending"));
  }

  function orders() { // on a narrow screen, where the heads are not shown
    const list = made("select");
    list.append(new Option("as it was", ""));
    heads.forEach((head, column) => {
      for (const [down, mark] of ["▲", "▼"].entries())
        list.append(new Option(`${head.textContent} ${mark}`, `${column} ${down}`));
    });
    list.addEventListener("change", () => sort(...list.value.split(" ").map(Number)));
    const label = labelled("order", list);
    label.className = "order";
    return label;
  }

  function sort(column, down) {
    for (const head of heads) head.ariaSort = null;
    const sorted = [...rows];
    if (down !== undefined) {
      heads[column].ariaSort = down ? "descending" : "ascending";
      sorted.sort((a, b) => compared(a.cells[column], b.cells[column]));
    }
    table.tBodies[0].append(...(down ? sorted.reverse() : sorted));
  }
}

function compared(a, b) {
  const [x, y] = [a, b].map((cell) => cell.dataset.value);
  if (x === undefined && y === undefined) return a.textContent.localeCompare(b.textContent);
  return Number(x ?? Infinity) - Number(y ?? Infinity); // what is not known comes last
}

function shown(row, column) {
  return row.cells[column].textContent.trim();
}

function labelled(text, control) {
  const label = made("label");
  label.append(`${text} `, control);
  return label;
}

function made(name, css) {
  const element = document.createElement(name);
  if (css) element.className = css;
  return element;
}
