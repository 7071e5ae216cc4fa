async () => {
  const list = document.querySelector(".vlist");
  const frame = () => new Promise((go) => requestAnimationFrame(go));
  list.scrollTop = 500;
  for (let i = 0; i < 3; i++) await frame();
  const row = () => [...document.querySelectorAll(".vrow")].find((r) => r.dataset.seq === seen);
  const top = list.getBoundingClientRect().top;
  const first = [...document.querySelectorAll(".vrow")].find((r) => r.getBoundingClientRect().bottom > top);
  const seen = first.dataset.seq;
  const before = first.getBoundingClientRect().top;
  const items = list.dataset.items;
  const until = performance.now() + 20000;
  while (list.dataset.items === items && performance.now() < until) await frame();
  for (let i = 0; i < 5; i++) await frame();
  return { moved: Math.abs(row().getBoundingClientRect().top - before), more: list.dataset.items - items };
}
