// What agents print, made fit to be shown: any character is seen, none acts on the page.

/* Orders of the writing direction can make text read as something else than it is. */
const BIDI = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** The text with controls made visible, and halves of characters replaced. @param {string} text */
export function shown(text) {
  return text
    .replace(/\r\n/g, "\n")
    .toWellFormed()
    .replace(CONTROL, (c) => (c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\u2421"))
    .replace(BIDI, (c) => `\u27e8U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

/**
 * The beginning of a text: at most so many lines and characters, and how much is left out.
 * @param {string} text @param {number} lines @param {number} chars
 */
export function clip(text, lines, chars) {
  let end = -1;
  for (let n = 0; n < lines; n++) {
    end = text.indexOf("\n", end + 1);
    if (end < 0) break;
  }
  const cut = Math.min(end < 0 ? text.length : end, chars);
  return { head: text.slice(0, cut), left: text.length - cut };
}

const UNITS = ["B", "KB", "MB", "GB", "TB"];

/** @param {number|null|undefined} n */
export function bytes(n) {
  if (n == null) return "";
  let unit = 0;
  while (n >= 1000 && unit < UNITS.length - 1) {
    n /= 1000;
    unit++;
  }
  return `${unit && n < 10 ? n.toFixed(1) : Math.round(n)} ${UNITS[unit]}`;
}

/** Seconds, as short as they can be told. @param {number} s */
export function duration(s) {
  if (!(s >= 0)) return "";
  if (s < 0.95) return `${Math.max(1, Math.round(s * 1000))} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** How long ago. @param {string|null} at @param {number} now */
export function ago(at, now = Date.now()) {
  if (!at) return "";
  const s = (now - Date.parse(at)) / 1000;
  if (s < 45) return "now";
  if (s < 3600) return `${Math.max(1, Math.round(s / 60))} min`;
  if (s < 86400) return `${Math.round(s / 3600)} h`;
  if (s < 86400 * 30) return `${Math.round(s / 86400)} d`;
  return new Date(at).toLocaleDateString();
}

/** @param {string} at */
export const clock = (at) =>
  new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** @param {number} n @param {string} one @param {string} [many] */
export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** A path of the workspace, told by a harness as the sandbox sees it. @param {string} path */
export const inWorkspace = (path) => path.replace(/^\/(session\/)?workspace\//, "").replace(/^\.\//, "");

/** Each segment for a URL; slashes stay. @param {string} path */
export const inUrl = (path) => path.split("/").map(encodeURIComponent).join("/");
