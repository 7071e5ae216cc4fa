import assert from "node:assert/strict";
import { test } from "node:test";
import { Heights } from "../../../api/static/lib/heights.js";
import { difference, safety, toolSummary } from "../../../api/static/lib/lifecycle.js";
import { csvRows, hexRows, isText, kindOf } from "../../../api/static/lib/previews.js";
import { bytes, clip, duration, inUrl, inWorkspace, shown } from "../../../api/static/lib/text.js";

test("orders of the writing direction, controls and halves of characters are seen", () => {
  assert.equal(shown("a\u202eb"), "a⟨U+202E⟩b");
  assert.equal(shown("a\u0000\u0007\u007f"), "a␀␇␡");
  assert.equal(shown("a\ud800b"), "a\ufffdb");
  assert.equal(shown("\u05e9\u05dc\u05d5\u05dd\ttab\n"), "\u05e9\u05dc\u05d5\u05dd\ttab\n");
});

test("a clip has whole lines and says what is left", () => {
  assert.deepEqual(clip("a\nb\nc", 2, 100), { head: "a\nb", left: 2 });
  assert.deepEqual(clip("abc", 2, 2), { head: "ab", left: 1 });
  assert.deepEqual(clip("abc", 2, 100), { head: "abc", left: 0 });
});

test("sizes and times are short", () => {
  assert.deepEqual([bytes(0), bytes(999), bytes(1500), bytes(25e6)], ["0 B", "999 B", "1.5 KB", "25 MB"]);
  assert.deepEqual([duration(0.02), duration(2.34), duration(75), duration(7300)], ["20 ms", "2.3 s", "1 min 15 s", "2 h 1 min"]);
});

test("paths are told from the workspace, and travel in a URL whole", () => {
  assert.equal(inWorkspace("/session/workspace/a/b"), "a/b");
  assert.equal(inUrl("a b/ü?#%"), "a%20b/%C3%BC%3F%23%25");
});

test("rows are found by their offset, measured or not", () => {
  const heights = new Heights(10);
  heights.reset([...Array(1000).keys()]);
  assert.equal(heights.total, 10_000);
  heights.measure(3, 110);
  assert.equal(heights.offset(4), 140);
  assert.deepEqual([heights.at(0), heights.at(35), heights.at(139), heights.at(140), heights.at(1e9)], [0, 3, 3, 4, 999]);
  heights.reset([...Array(1001).keys()].map((i) => i - 1));
  assert.equal(heights.offset(5), 150);
});

test("text and bytes are told apart, also when a character is cut", () => {
  assert.equal(isText(new TextEncoder().encode("grün").slice(0, 3)), true);
  assert.equal(isText(new Uint8Array([0x61, 0xff, 0x62])), false);
  assert.equal(isText(new Uint8Array([0x61, 0])), false);
  assert.deepEqual(["a.PNG", "b.pdf", "c.md", "d.csv", "e"].map(kindOf), ["image", "pdf", "markdown", "csv", "bytes"]);
});

test("hex shows every byte", () => {
  assert.deepEqual(hexRows(new TextEncoder().encode("Hello, world! 1234"))[1], ["00000010", `33 34${" ".repeat(18)}  ${" ".repeat(23)}`, "34"]);
});

test("CSV keeps quotes, commas and newlines in cells", () => {
  assert.deepEqual(csvRows('a,b\n"x,""y""\nz",2\n', 10), [["a", "b"], ['x,"y"\nz', "2"]]);
  assert.deepEqual(csvRows("a\tb\n1\t2", 10), [["a", "b"], ["1", "2"]]);
});

test("only a receipt is called safe", () => {
  assert.equal(safety({ durable: true }, null).tone, "good");
  assert.equal(safety({ durable: true }, { id: "t" }).tone, "warn");
  assert.equal(safety({ durable: true, running_turn: "t" }, null).tone, "warn");
  assert.equal(safety({ durable: false }, null).tone, "bad");
  assert.equal(safety({ durable: null }, null).tone, "");
});

test("a tool is summed up by its command or its path", () => {
  assert.equal(toolSummary({ command: ["bash", "-lc", "ls -la"] }), "ls -la");
  assert.equal(toolSummary({ file_path: "/a" }), "/a");
  assert.equal(toolSummary(null), "");
});

test("a difference has only what differs, and two lines around it", () => {
  assert.equal(difference("a\nb\nc\nd", "a\nb\nX\nd"), " a\n b\n-c\n+X\n d");
  assert.equal(difference(null, "new"), "+new");
});
