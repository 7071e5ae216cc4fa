// Texts whose contrast with what is behind them is below 4.5, as WCAG counts it.
() => {
  const parse = (c) => c.match(/[\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (el) => { for (; el; el = el.parentElement) {
    const c = parse(getComputedStyle(el).backgroundColor); if (c.length < 4 || c[3] > 0.99) return c; } return [255, 255, 255]; };
  // for screen readers only
  const clipped = (el) => el && (getComputedStyle(el).clipPath !== "none" || clipped(el.parentElement));
  const out = [];
  for (const el of document.querySelectorAll("body *")) {
    const own = [...el.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !el.checkVisibility({ opacityProperty: true }) || el.closest(":disabled, option") || clipped(el)) continue;
    const [a, b] = [lum(parse(getComputedStyle(el).color)), lum(behind(el))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) out.push(`${ratio.toFixed(2)} ${el.tagName} ${el.textContent.slice(0, 40)}`);
  }
  return out;
}
