import assert from "node:assert/strict";
import { test } from "node:test";
import { MAX_RUNS, bare, runs } from "../../../api/static/lib/ansi.js";
import { countPatternRuns } from "./work.js";

const ESC = "\u001b";

test("colours become classes and the codes are gone", () => {
  assert.deepEqual(runs(`${ESC}[31mred${ESC}[0m plain ${ESC}[1;92mgreen`), [
    { text: "red", cls: "a-f1" }, { text: " plain ", cls: "" }, { text: "green", cls: "a-bold a-f10" },
  ]);
});

test("colours of 256 and of 16 million become colours", () => {
  assert.equal(runs(`${ESC}[38;5;196mx`)[0].fg, "rgb(255,0,0)");
  assert.equal(runs(`${ESC}[48;2;1;2;999mx`)[0].bg, "rgb(1,2,255)");
  assert.equal(runs(`${ESC}[38;5;2mx`)[0].cls, "a-f2");
});

test("what moves the cursor, sets titles or clears the screen is dropped", () => {
  assert.equal(bare(`a${ESC}[2J${ESC}[1;1Hb${ESC}]0;title\u0007c${ESC}(Bd`), "abcd");
});

test("a sequence without an end does not swallow the rest", () => {
  const text = `${ESC}]0;${"x".repeat(10_000)} the rest`;
  assert.ok(runs(text).map((run) => run.text).join("").endsWith("the rest"));
});

test("a bomb of colours stays bounded and keeps its text", () => {
  const out = runs(Array.from({ length: 50_000 }, (_, i) => `${ESC}[3${i % 8}m${i % 10}`).join(""));
  assert.ok(out.length <= MAX_RUNS + 1);
  assert.equal(out.map((run) => run.text).join("").length, 50_000);
});

test("a line that was written over shows what stands there at the end", () => {
  assert.equal(runs("10%\r50%\r100%\ndone\r\n")[0].text, "100%\ndone\n");
});

test("a megabyte of escapes is looked at once", () => {
  let out;
  assert.ok(countPatternRuns(() => (out = runs(`${ESC}[`.repeat(500_000)))) <= 500_010);
  assert.deepEqual(out, []);
  // longer than any sequence: its beginning is dropped, and the rest is text
  const parameters = "1;".repeat(500_000);
  assert.ok(countPatternRuns(() => (out = runs(`${ESC}[${parameters}m`))) <= 10);
  assert.deepEqual(out.map((run) => run.text), [`${parameters}m`]);
});
