// Where each row of the transcript is, once the layout has come to rest.
async (transcript) => {
  for (let i = 0; i < 5; i++) await new Promise((go) => requestAnimationFrame(go));
  const rows = [...transcript.querySelectorAll("[data-seq]")].map((row) => [row.dataset.seq, row.getBoundingClientRect().top]);
  return { items: Number(transcript.dataset.items), places: Object.fromEntries(rows) };
}
