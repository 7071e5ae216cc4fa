// Colours of terminals, as runs of text with classes. Everything else a terminal obeys is dropped.

import { shown } from "./text.js";

/** @typedef {{text: string, cls: string, fg?: string, bg?: string}} Run */

// CSI, OSC and other strings up to their end, and two-character escapes. Bounded, so that a
// sequence that never ends cannot swallow the rest of an output.
const SEQUENCE =
  // eslint-disable-next-line no-control-regex
  /\u001b\[([0-9;:?<=>]{0,256})[ -/]{0,8}([@-~])|\u001b[\]PX^_][^\u0007\u001b]{0,4096}(?:\u0007|\u001b\\)|\u001b[ -/]{0,4}[0-~]?/g;

/* Beyond this a page of colours is a bomb: the rest is told without them. */
export const MAX_RUNS = 4000;

const plain = () => ({ bold: false, dim: false, italic: false, under: false, inverse: false, fg: null, bg: null });

/** @param {string} text @returns {Run[]} */
export function runs(text) {
  /** @type {Run[]} */
  const out = [];
  let style = plain();
  let at = 0;
  text = overwritten(text);
  for (const match of text.matchAll(SEQUENCE)) {
    if (out.length >= MAX_RUNS) break;
    add(out, text.slice(at, match.index), style);
    at = match.index + match[0].length;
    if (match[2] === "m") style = styled(style, match[1]);
  }
  add(out, out.length >= MAX_RUNS ? text.slice(at).replace(SEQUENCE, "") : text.slice(at), style);
  return out;
}

/** Text without its sequences. @param {string} text */
export const bare = (text) => text.replace(SEQUENCE, "");

/** Progress bars write over their own line: what stands there at the end is what is shown. */
function overwritten(text) {
  return text.includes("\r") ? text.replace(/\r+\n/g, "\n").replace(/[^\n\r]*\r(?=[^\n\r])/g, "") : text;
}

function add(out, text, style) {
  if (!text) return;
  const run = { text: shown(text), ...look(style) };
  const last = out[out.length - 1];
  if (last && last.cls === run.cls && last.fg === run.fg && last.bg === run.bg) last.text += run.text;
  else out.push(run);
}

function look(style) {
  const [fg, bg] = style.inverse ? [style.bg ?? "bg", style.fg ?? "fg"] : [style.fg, style.bg];
  const cls = ["bold", "dim", "italic", "under"].filter((name) => style[name]).map((name) => `a-${name}`);
  const run = {};
  if (typeof fg === "string") run.fg = fg;
  else if (fg !== null) cls.push(`a-f${fg}`);
  if (typeof bg === "string") run.bg = bg;
  else if (bg !== null) cls.push(`a-b${bg}`);
  if (run.fg === "bg" || run.bg === "fg") {
    cls.push("a-inverse");
    if (run.fg === "bg") delete run.fg;
    if (run.bg === "fg") delete run.bg;
  }
  return { ...run, cls: cls.join(" ") };
}

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "under", 7: "inverse" };
const CLEARS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["under"], 27: ["inverse"] };

function styled(before, params) {
  const codes = params.split(/[;:]/).map(Number);
  let style = { ...before };
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) style = plain();
    else if (FLAGS[code]) style[FLAGS[code]] = true;
    else if (CLEARS[code]) for (const name of CLEARS[code]) style[name] = false;
    else if (code >= 30 && code <= 37) style.fg = code - 30;
    else if (code >= 90 && code <= 97) style.fg = code - 82;
    else if (code >= 40 && code <= 47) style.bg = code - 40;
    else if (code >= 100 && code <= 107) style.bg = code - 92;
    else if (code === 39) style.fg = null;
    else if (code === 49) style.bg = null;
    else if (code === 38 || code === 48) {
      const [colour, used] = extended(codes, i + 1);
      style[code === 38 ? "fg" : "bg"] = colour;
      i += used;
    }
  }
  return style;
}

function extended(codes, i) {
  if (codes[i] === 5) return [indexed(codes[i + 1]), 2];
  if (codes[i] === 2) {
    const [r, g, b] = codes.slice(i + 1, i + 4).map((n) => Math.min(255, n || 0));
    return [`rgb(${r ?? 0},${g ?? 0},${b ?? 0})`, 4];
  }
  return [null, 1];
}

function indexed(n) {
  if (!(n >= 0 && n < 256)) return null;
  if (n < 16) return n;
  if (n >= 232) return `rgb(${Array(3).fill(8 + (n - 232) * 10)})`;
  const level = (v) => (v ? 55 + v * 40 : 0);
  n -= 16;
  return `rgb(${level(Math.floor(n / 36))},${level(Math.floor(n / 6) % 6)},${level(n % 6)})`;
}
