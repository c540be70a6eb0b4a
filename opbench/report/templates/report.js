"use strict";
// Sorting: a click or Enter on a heading orders the table's rows; a missing value always goes last.
for (const button of document.querySelectorAll("table.sortable button.sort")) {
  button.addEventListener("click", () => {
    const heading = button.closest("th");
    const column = [...heading.parentNode.children].indexOf(heading);
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const body = heading.closest("table").tBodies[0];
    const key = (row) => {
      const cell = row.children[column];
      return cell.dataset.sort !== undefined ? cell.dataset.sort : cell.textContent.trim();
    };
    const missing = (text) => text === "" || text === "–";
    const compare = (a, b) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      const numeric = a !== "" && b !== "" && !isNaN(a) && !isNaN(b);
      const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
      return descending ? -order : order;
    };
    body.append(...[...body.rows].map((row) => [key(row), row]).sort((a, b) => compare(a[0], b[0])).map((pair) => pair[1]));
  });
}
// A point of a chart says its numbers when it is pointed at or focused; without scripts its <title> does.
const tip = document.getElementById("tip");
for (const point of document.querySelectorAll(".chart .point")) {
  const title = point.querySelector("title");
  if (title) title.remove();
  const show = () => {
    const box = point.getBoundingClientRect();
    tip.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    tip.style.left = Math.max(8, Math.min(box.right + 10, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(8, box.top - tip.offsetHeight - 8) + "px";
  };
  const hide = () => { tip.hidden = true; };
  point.addEventListener("mouseenter", show);
  point.addEventListener("focus", show);
  point.addEventListener("mouseleave", hide);
  point.addEventListener("blur", hide);
}
