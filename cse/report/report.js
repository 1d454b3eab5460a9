"use strict";
// A column head sorts its table: numbers in descending order, text from a to z; a second click reverses the order.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const table = head.closest("table");
    const column = head.cellIndex;
    const number = head.classList.contains("number");
    const before = head.getAttribute("aria-sort");
    const order = before ? (before === "ascending" ? "descending" : "ascending") : number ? "descending" : "ascending";
    const sign = order === "ascending" ? 1 : -1;
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const rows = Array.from(table.tBodies[0].rows);
    const compare = (a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      if (!number) return sign * x.textContent.localeCompare(y.textContent, "en", { numeric: true });
      const [m, n] = [x, y].map((cell) => parseFloat(cell.textContent.replaceAll(",", "")));
      return isNaN(m) || isNaN(n) ? isNaN(m) - isNaN(n) : sign * (m - n); // missing numbers last
    };
    table.tBodies[0].append(...rows.sort(compare));
  });
}
// The button overrides the system's colour scheme; its label names the scheme it switches to.
const theme = document.getElementById("theme");
const dark = () => document.documentElement.dataset.theme
  ? document.documentElement.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const label = () => {
  theme.textContent = dark() ? "Light colours" : "Dark colours";
  theme.setAttribute("aria-pressed", String(dark()));
};
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  label();
});
label();
