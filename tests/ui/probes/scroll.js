// Scrolls the transcript back, and counts the rows that exist and those that are made on the way.
async (transcript, steps) => {
  const made = new Map();
  const rows = () => transcript.querySelectorAll("[data-seq]").length;
  let drawn = 0;
  const watch = new MutationObserver((changes) => {
    for (const row of changes.flatMap((change) => [...change.addedNodes]).filter((node) => node.dataset?.seq)) {
      made.set(row.dataset.seq, (made.get(row.dataset.seq) ?? 0) + 1);
      drawn++;
    }
  });
  watch.observe(transcript, { childList: true, subtree: true });
  const most = { rows: 0, drawn: 0 };
  for (let i = 0; i < steps; i++) {
    const before = drawn;
    transcript.scrollTop -= 400;
    await new Promise((go) => requestAnimationFrame(go));
    most.rows = Math.max(most.rows, rows());
    most.drawn = Math.max(most.drawn, drawn - before);
  }
  watch.disconnect();
  return { items: Number(transcript.dataset.items), most_rows: most.rows, most_drawn: most.drawn, drawn, redrawn: drawn - made.size };
}
