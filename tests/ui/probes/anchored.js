// Scrolls up until an earlier page arrives, and tells by how much what was in sight moved with it.
async () => {
  const list = document.querySelector(".vlist");
  const frame = () => new Promise((go) => requestAnimationFrame(go));
  const places = () => new Map([...document.querySelectorAll(".vrow")].map((row) => [row.dataset.seq, row.getBoundingClientRect().top]));
  list.scrollTop = 900;
  for (let i = 0; i < 5; i++) await frame();
  list.scrollTop = 450;
  const [before, items] = [places(), list.dataset.items];
  for (const until = performance.now() + 20_000; performance.now() < until && list.dataset.items === items; ) await frame();
  for (let i = 0; i < 5; i++) await frame();
  const after = places();
  const moves = [...before].filter(([seq]) => after.has(seq)).map(([seq, top]) => Math.abs(after.get(seq) - top));
  return { more: list.dataset.items - items, seen: moves.length, moved: Math.max(...moves) };
}
