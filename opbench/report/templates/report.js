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
// On a narrow screen a row of a wide table becomes a block, each figure below its column's name (report.css).
for (const table of document.querySelectorAll("table:not(.failures)")) {
  const heads = table.tHead ? [...table.tHead.rows[0].cells] : [];
  if (heads.length < 4 || table.closest(".listing")) continue;
  const words = heads.map((head) => (head.querySelector("button") || head).firstChild?.textContent.trim() || "");
  const labels = words.map((word, index) => {
    if (words.indexOf(word) === words.lastIndexOf(word)) return word;
    const unit = heads[index].querySelector("small")?.textContent; // of two such as "sectors"
    return unit ? `${word} ${unit}` : `${words[index - 1]}, ${word}`;
  });
  table.classList.add("stacked");
  table.setAttribute("role", "table"); // what a display of its own would take from it
  for (const row of table.tBodies[0].rows) {
    row.setAttribute("role", "row");
    for (const [index, cell] of [...row.cells].entries()) {
      cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
      if (cell.tagName === "TD" && labels[index]) cell.dataset.label = labels[index];
    }
  }
}
// A row of links that is wider than the screen says that there are more.
for (const row of document.querySelectorAll("nav")) {
  const mark = () => row.classList.toggle("more", row.scrollLeft + row.clientWidth < row.scrollWidth - 4);
  row.addEventListener("scroll", mark, { passive: true });
  addEventListener("resize", mark);
  mark();
}
// A command is copied whole; where a page may not write the clipboard, it is selected for Ctrl-C.
for (const command of document.querySelectorAll(".commands pre")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    const text = command.querySelector("code").textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(command.querySelector("code"));
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 2000);
  });
  command.before(button);
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
// Filter: every word must occur in the operator, problem, variant or config; what has no match is hidden.
const filter = document.getElementById("filter");
if (filter) {
  filter.hidden = false;
  const input = filter.querySelector("input");
  const status = filter.querySelector("[role=status]");
  const noun = document.querySelector("section.operator") ? "problem" : "table";
  const articles = [...document.querySelectorAll("article[data-name]")];
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (text) => words.every((word) => text.toLowerCase().includes(word));
    let cases = 0;
    for (const article of articles) {
      const rows = [...article.querySelectorAll("tr[data-name]")];
      for (const row of rows) row.hidden = !matches(article.dataset.name + " " + row.dataset.name);
      const left = rows.filter((row) => !row.hidden && !row.closest("details:not(.searched), .counters")).length;
      for (const table of article.querySelectorAll(".scroll")) {
        const own = [...table.querySelectorAll("tr[data-name]")];
        table.hidden = own.length > 0 && own.every((row) => row.hidden);
      }
      for (const listing of article.querySelectorAll("details[data-name]")) listing.hidden = !matches(article.dataset.name + " " + listing.dataset.name);
      for (const table of article.querySelectorAll("details.searched")) table.open = words.length > 0 ? left > 0 : table.hasAttribute("data-open");
      article.hidden = words.length > 0 && !rows.some((row) => !row.hidden);
      cases += left;
      for (const row of document.querySelectorAll(`tr[data-anchor="${article.id}"]`)) row.hidden = article.hidden;
    }
    for (const section of document.querySelectorAll("section.operator")) {
      section.hidden = [...section.querySelectorAll("article")].every((article) => article.hidden);
      const link = [...document.querySelectorAll("nav a")].find((a) => a.hash === "#" + section.id);
      if (link) link.hidden = section.hidden;
    }
    const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
    const shown = articles.filter((article) => !article.hidden).length;
    status.textContent = words.length ? `${count(cases, "row")} of ${count(shown, noun)}` : "";
    history.replaceState(null, "", words.length ? "#filter=" + encodeURIComponent(input.value) : location.pathname + location.search);
  };
  input.addEventListener("input", apply);
  const follow = () => {
    if (!location.hash.startsWith("#filter=")) return;
    const asked = location.hash.slice(8);
    try {
      input.value = decodeURIComponent(asked);
    } catch {
      input.value = asked; // typed by hand, such as "100%"
    }
    apply();
  };
  addEventListener("hashchange", follow); // a link of the contents, such as "only SLOWER"
  follow();
}
