() => [...document.querySelectorAll("button, a[href], input, select, textarea")]
  .filter((el) => el.checkVisibility())
  .filter((el) => !(el.getAttribute("aria-label") || el.title || el.textContent.trim()
    || el.labels?.length || (el.placeholder && el.getAttribute("aria-label"))))
  .map((el) => el.outerHTML.slice(0, 120))
