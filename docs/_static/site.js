// On a narrow screen, the cells of a row stand below each other, each after the head of its column.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.querySelectorAll("thead tr")];
    table.classList.add("stacked");
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.children].forEach((cell, number) => {
        const heads = rows.map((one) => one.children[number]?.textContent.trim() ?? "");
        if (cell.textContent.trim()) cell.dataset.head = `${heads.find(Boolean) ?? ""}: `;
      });
    }
  }
});
