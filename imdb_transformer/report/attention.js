// Draws the cells of each attention map for the chosen layer and head, and shows the value under the pointer.
const SIZE = 18;
for (const view of document.querySelectorAll(".attention")) {
  const {words, heads} = JSON.parse(view.querySelector("script").textContent);
  const [layer, head] = view.querySelectorAll("select");
  const [cells, shown] = [view.querySelector("svg"), view.querySelector("output")];
  const rows = () => heads[layer.value - 1][head.value - 1]; // of each word: weights by column
  const draw = () => {
    cells.innerHTML = rows().map((row, i) => {
      const most = Math.max(...Object.values(row));
      return Object.entries(row).map(([column, weight]) =>
        `<rect x="${column * SIZE}" y="${i * SIZE}" width="${SIZE - 1}" height="${SIZE - 1}" ` +
        `fill-opacity="${weight / most}"/>`).join("");
    }).join("");
    shown.textContent = "";
  };
  cells.onpointermove = cells.onpointerdown = (event) => {
    const box = cells.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / SIZE), i = Math.floor((event.clientY - box.top) / SIZE);
    if (!(i in words && column in words)) return;
    const weight = rows()[i][column]?.toFixed(3) ?? "below 0.01";
    shown.textContent = `“${words[i]}” to “${words[column]}”: ${weight}`;
  };
  layer.onchange = head.onchange = draw;
  draw();
}
