// Markdown as elements. HTML in it is text like any other, and a link goes only where a link may.

import { Lexer } from "../vendor/marked-lexer-18.2.0.js";
import { h } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { bare } from "./ansi.js";
import { highlighted, language } from "./highlight.js";
import { bytes, shown } from "./text.js";

/* A longer text is shown as it is: what takes a parser that long is not prose. */
export const MAX_CHARS = 60_000;
const MAX_PLAIN = 200_000;
const MAX_LINE = 20_000;
const MAX_DEPTH = 24;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", "#39": "'" };

/** @param {string} text */
export function markdown(text) {
  text = shown(bare(text)); // of a terminal's colours, prose has none
  if (text.length > MAX_CHARS || text.split("\n").some((line) => line.length > MAX_LINE)) return plain(text);
  try {
    return blocks(new Lexer({ gfm: true, breaks: true }).lex(text), 0);
  } catch {
    return plain(text); // a nesting that the parser cannot follow
  }
}

function plain(text) {
  const left = text.length - MAX_PLAIN;
  return [
    h("pre", { class: "plain", tabIndex: 0 }, text.slice(0, MAX_PLAIN)),
    left > 0 && h("p", { class: "meta" }, `${bytes(left)} more; copy the message to have all of it.`),
  ];
}

/** Where a link may lead; null for anything that could act. @param {string} href */
export function safeLink(href) {
  return /^(https?:\/\/|mailto:)/i.test(href.trim()) ? href.trim() : null;
}

/** A block of code with its language and a button's place. */
export const codeBlock = (code, lang) =>
  h("pre", { class: "code", "data-lang": lang ?? "", tabIndex: 0 }, h("code", null, highlighted(code, lang)));

function blocks(tokens, depth) {
  if (depth > MAX_DEPTH) return tokens.map((token) => token.raw);
  return tokens.map((token) => block(token, depth + 1));
}

function block(token, depth) {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // the page has headings of its own: those of a message stand below them
      return h(`h${Math.min(6, token.depth + 2)}`, null, inline(token.tokens, depth));
    case "code":
      return codeBlock(token.text, language(token.lang));
    case "blockquote":
      return h("blockquote", null, blocks(token.tokens, depth));
    case "list":
      return h(token.ordered ? "ol" : "ul", token.ordered && token.start !== 1 ? { start: Number(token.start) } : null,
        token.items.map((item) => h("li", item.task ? { class: "task" } : null, blocks(item.tokens, depth))));
    case "checkbox":
      return h("span", { class: "check" }, token.checked ? "\u2611 " : "\u2610 ");
    case "hr":
      return h("hr");
    case "table":
      return table(token, depth);
    case "paragraph":
      return h("p", null, inline(token.tokens, depth));
    case "text":
      return token.tokens ? h("span", null, inline(token.tokens, depth)) : decoded(token.text);
    default:
      return h("p", { class: "raw" }, token.raw); // HTML among them
  }
}

function table(token, depth) {
  const cell = (tag) => (each, i) =>
    h(tag, { class: token.align[i] ? `to-${token.align[i]}` : null }, inline(each.tokens, depth));
  return h("div", { class: "table", "data-test": "wide", tabIndex: 0 }, h("table", null,
    h("thead", null, h("tr", null, token.header.map(cell("th")))),
    h("tbody", null, token.rows.map((row) => h("tr", null, row.map(cell("td")))))));
}

function inline(tokens, depth) {
  if (depth > MAX_DEPTH) return tokens.map((token) => token.raw);
  return tokens.map((token) => span(token, depth + 1));
}

function span(token, depth) {
  switch (token.type) {
    case "strong":
      return h("strong", null, inline(token.tokens, depth));
    case "em":
      return h("em", null, inline(token.tokens, depth));
    case "del":
      return h("del", null, inline(token.tokens, depth));
    case "codespan":
      return h("code", null, token.text);
    case "br":
      return h("br");
    case "link":
      return link(token.href, inline(token.tokens, depth));
    case "image":
      // not fetched: it would tell its host who reads this
      return link(token.href, [`image: ${token.text || token.href}`]);
    case "escape":
      return token.text;
    case "text":
      return token.tokens ? inline(token.tokens, depth) : decoded(token.text);
    default:
      return token.raw;
  }
}

function link(href, children) {
  const to = safeLink(href);
  if (!to) return h("span", { class: "nolink", title: href }, children);
  return h("a", { href: to, target: "_blank", rel: "noopener noreferrer nofollow" }, children);
}

const decoded = (text) => text.replace(/&(amp|lt|gt|quot|apos|nbsp|#39);/g, (_, name) => ENTITIES[name]);
