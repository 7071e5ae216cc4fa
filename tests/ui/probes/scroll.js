// Scrolls the transcript back, and counts the rows that exist and those that are made on the way.
async (transcript, steps) => {
  const seen = new WeakSet(); // a row that is only moved is added again, and is not drawn again
  const rows = () => transcript.querySelectorAll("[data-seq]");
  for (const row of rows()) seen.add(row);
  let drawn = 0;
  const watch = new MutationObserver((changes) => {
    for (const row of changes.flatMap((change) => [...change.addedNodes])) {
      if (!row.dataset?.seq || seen.has(row)) continue;
      seen.add(row);
      drawn++;
    }
  });
  watch.observe(transcript, { childList: true, subtree: true });
  const most = { rows: 0, drawn: 0 };
  for (let i = 0; i < steps; i++) {
    const before = drawn;
    transcript.scrollTop -= 400;
    await new Promise((go) => requestAnimationFrame(go));
    most.rows = Math.max(most.rows, rows().length);
    most.drawn = Math.max(most.drawn, drawn - before);
  }
  watch.disconnect();
  return { items: Number(transcript.dataset.items), drawn, most_rows: most.rows, most_drawn: most.drawn };
}
