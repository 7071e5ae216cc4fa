import assert from "node:assert/strict";
import { test } from "node:test";
import { highlighted, language } from "../../../api/static/lib/highlight.js";
import { markdown, safeLink } from "../../../api/static/lib/markdown.js";
import { countPatternRuns } from "./work.js";

/** Every element of a tree, and its text. */
function walk(node, out = { tags: [], text: "", props: [] }) {
  if (node == null || node === false) return out;
  if (Array.isArray(node)) node.forEach((each) => walk(each, out));
  else if (typeof node === "object") {
    out.tags.push(node.type);
    out.props.push(node.props);
    walk(node.props.children, out);
  } else out.text += node;
  return out;
}

test("HTML is text, wherever it stands", () => {
  const hostile = "<script>alert(1)</script>\n\nhi <img src=x onerror=alert(1)> **b**\n\n- <svg onload=x>\n\n|a|\n|-|\n|<iframe>|";
  const { tags, text } = walk(markdown(hostile));
  assert.deepEqual(tags.filter((tag) => /script|img|svg|iframe/.test(tag)), []);
  for (const part of ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=x>", "<iframe>"]) assert.ok(text.includes(part), part);
});

test("a link goes to the web or to mail, and nowhere else", () => {
  for (const bad of ["javascript:alert(1)", " JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "/sessions", "//evil.example", "file:///etc"]) {
    assert.equal(safeLink(bad), null, bad);
  }
  assert.equal(safeLink("https://example.org/a"), "https://example.org/a");
  const { props } = walk(markdown("[x](javascript:alert(1)) ![y](https://example.org/i.png)"));
  assert.ok(!props.some((each) => each?.href?.startsWith?.("javascript")));
  assert.ok(!props.some((each) => each?.src));
});

test("properties of elements are ours alone", () => {
  const allowed = new Set(["children", "class", "href", "target", "rel", "start", "data-lang", "data-test", "tabIndex", "title"]);
  const { props } = walk(markdown("# a\n\n1. b\n\n> c\n\n```js\nd\n```\n\n[e](https://f.g 'h') `i`\n\n|j|\n|:-:|\n|k|"));
  for (const each of props) for (const name of Object.keys(each ?? {})) assert.ok(allowed.has(name), name);
});

test("entities are decoded once", () => {
  assert.equal(walk(markdown("a &lt;b&gt; &amp;lt;")).text, "a <b> &lt;");
});

test("nesting without end and lines without end are shown as they are", () => {
  assert.equal(walk(markdown(">".repeat(5000) + " x")).text.includes("x"), true);
  const long = walk(markdown("x".repeat(5_000_000)));
  assert.deepEqual(long.tags, ["pre", "p"]);
  assert.ok(long.text.length < 250_000);
  // a line that is longer than any line of prose is not parsed at all
  for (const line of ["*a **b ".repeat(3000), "_a".repeat(25_000)]) assert.ok(countPatternRuns(() => markdown(line)) < 20);
  for (const line of ["*a **b ".repeat(1500), "[".repeat(15_000), "_a".repeat(5000)]) {
    const times = countPatternRuns(() => assert.equal(walk(markdown(line)).text.length, line.length));
    assert.ok(times < 20 * line.length, `${times} for ${line.length} characters`);
  }
});

test("code is coloured by its language, and is otherwise the same text", () => {
  const code = 'def f(x):\n    return "a"  # b\n';
  const { tags, text } = walk(highlighted(code, language("a/b.py")));
  assert.equal(text, code);
  assert.ok(tags.length > 2);
  assert.equal(language("constructor"), null);
  assert.deepEqual(highlighted("x", null), ["x"]);
});
