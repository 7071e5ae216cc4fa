// Scrolls the file list to its end, again and again, until all its rows are known.
(wanted) => {
  const rows = document.querySelector(".rows");
  rows.scrollTop = rows.scrollHeight;
  return Number(rows.dataset.count) === wanted;
}
