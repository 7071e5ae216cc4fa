async (steps) => {
  const list = document.querySelector(".vlist");
  const frames = [];
  let last = performance.now();
  const frame = () => new Promise((go) => requestAnimationFrame(go));
  for (let i = 0; i < steps; i++) {
    list.scrollTop -= 400;
    await frame();
    frames.push(performance.now() - last);
    last = performance.now();
  }
  frames.sort((a, b) => a - b);
  return { items: Number(list.dataset.items), p95: frames[Math.floor(frames.length * 0.95)] };
}
