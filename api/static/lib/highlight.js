// Source code as coloured spans.

import { configs, tokenize } from "../vendor/sugar-high-2.4.1.js";
import { h } from "../vendor/preact-11.2.0-htm-3.1.1.js";

const ALIASES = {
  js: "javascript", jsx: "javascript", mjs: "javascript", cjs: "javascript", ts: "typescript", tsx: "typescript",
  py: "python", sh: "shell", bash: "shell", zsh: "shell", console: "shell", rs: "rust", rb: "ruby", yml: "yaml",
  htm: "html", xml: "html", svg: "html", h: "c", cc: "c", cpp: "c", hpp: "c", golang: "go", patch: "diff",
  jsonc: "json", jsonl: "json", scss: "css", makefile: "shell", dockerfile: "shell", kt: "java", lock: "toml",
};
// identifier, keyword, string, class, property, entity, jsx text, sign, comment, break, space
const CLASSES = [null, "keyword", "string", "class", "property", "entity", "string", "sign", "comment", null, null];
/* Colours are for reading; more than this nobody reads at once, and it would hold up the page. */
export const MAX_CHARS = 60_000;
const MAX_LINE = 5_000;

/** The language of a fence or of a file's name, if it is one that can be coloured. */
export function language(name) {
  const key = (name ?? "").toLowerCase().split(/[\s{]/)[0].split("/").pop().split(".").pop();
  return Object.hasOwn(configs, key) ? key : Object.hasOwn(ALIASES, key) ? ALIASES[key] : null;
}

/** Text and spans for a piece of code. @param {string} code @param {string|null} lang */
export function highlighted(code, lang) {
  if (!lang || code.length > MAX_CHARS || code.split("\n").some((line) => line.length > MAX_LINE)) return [code];
  const out = [];
  for (const [type, value] of tokenize(code, configs[lang])) {
    const name = CLASSES[type];
    if (name) out.push(h("span", { class: `h-${name}` }, value));
    else if (typeof out[out.length - 1] === "string") out[out.length - 1] += value;
    else out.push(value);
  }
  return out;
}
