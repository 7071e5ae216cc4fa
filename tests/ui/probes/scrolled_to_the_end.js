// Scrolls the file list to its end, again and again, until all its rows are known.
({ rows, wanted }) => {
  const list = document.querySelector(rows);
  list.scrollTop = list.scrollHeight;
  return Number(list.dataset.count) === wanted;
}
