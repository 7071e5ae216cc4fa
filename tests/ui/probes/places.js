// Waits until the transcript has more than so many items, and tells where each row in sight is.
async (items) => {
  const list = document.querySelector(".vlist");
  const frame = () => new Promise((go) => requestAnimationFrame(go));
  for (const until = performance.now() + 20_000; performance.now() < until && list.dataset.items <= items; ) await frame();
  for (let i = 0; i < 5; i++) await frame();
  const rows = [...document.querySelectorAll(".vrow")].map((row) => [row.dataset.seq, row.getBoundingClientRect().top]);
  return { items: Number(list.dataset.items), places: Object.fromEntries(rows) };
}
