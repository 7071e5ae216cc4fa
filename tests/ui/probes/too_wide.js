// What reaches beyond the right edge; what is clipped, for screen readers only, is not seen there.
({ width, scrolling }) => {
  const clipped = (el) => el && (getComputedStyle(el).clipPath !== "none" || clipped(el.parentElement));
  return [...document.querySelectorAll("body *")]
    .filter((el) => el.checkVisibility() && el.getBoundingClientRect().right > width + 1 && !el.closest(scrolling) && !clipped(el))
    .map((el) => el.outerHTML.slice(0, 120));
}
