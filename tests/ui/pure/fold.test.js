import assert from "node:assert/strict";
import { test } from "node:test";
import { Fold, runningTurn } from "../../../api/static/lib/fold.js";
import { steps } from "../../../api/static/lib/lifecycle.js";
import { countReads } from "./work.js";

const AT = "2026-01-01T00:00:00Z";
let seq = 0;
const event = (type, fields = {}) => ({ seq: ++seq, type, at: AT, turn_id: "t1", ...fields });

function folded(...events) {
  const fold = new Fold();
  for (const each of events) fold.push(each);
  return fold;
}

const kinds = (fold) => fold.items.map((item) => item.kind);

test("deltas of one answer become one message", () => {
  const fold = folded(event("turn.started", { harness: "pi", provider: "local" }), event("message", { role: "assistant", text: "a" }),
    event("message", { role: "assistant", text: "b" }));
  assert.deepEqual(fold.items.map((item) => item.text), ["ab"]);
  assert.equal(fold.running.harness, "pi");
});

test("a tool's call, updates and result are one card", () => {
  const call = { tool_call_id: "c" };
  const fold = folded(event("tool.call", { ...call, title: "bash", kind: "execute", input: { command: "ls" } }),
    event("tool.update", { ...call, output_delta: "a" }), event("tool.update", { ...call, output_delta: "b" }),
    event("tool.result", { ...call, status: "completed", output: "", paths: ["/workspace/x.txt"] }));
  assert.equal(fold.items.length, 1);
  assert.equal(fold.items[0].output, "ab");
  assert.deepEqual(fold.items[0].paths, ["x.txt"]);
});

test("a result whose call is not loaded has a card of its own", () => {
  assert.deepEqual(kinds(folded(event("tool.result", { tool_call_id: "q", status: "completed", output: "x" }))), ["tool"]);
});

test("the same tool id in two turns is two tools", () => {
  const fold = folded(event("tool.call", { tool_call_id: "c" }), event("tool.call", { tool_call_id: "c", turn_id: "t2" }));
  assert.equal(fold.items.length, 2);
});

test("a turn that ends with a receipt is green, and without one is red", () => {
  const good = folded(event("turn.started"), event("receipt", { files: 1 }), event("turn.completed"));
  assert.ok(good.items.at(-1).proof);
  const bad = folded(event("turn.started"), event("turn.completed"));
  assert.deepEqual(kinds(bad), ["receipt"]);
  assert.equal(bad.items[0].proof, null);
  const told = folded(event("turn.started"), event("receipt.failed", { reason: "x" }), event("turn.failed", { error: { message: "m" } }));
  assert.deepEqual(kinds(told), ["end", "receipt"]);
});

test("the end of a turn whose beginning is not loaded accuses nobody", () => {
  assert.deepEqual(kinds(folded(event("turn.completed"))), []);
});

test("a tool that was open when its turn ended is shown as cut off", () => {
  const fold = folded(event("turn.started"), event("tool.call", { tool_call_id: "c" }), event("turn.interrupted", { error: { message: "gone" } }));
  assert.equal(fold.items[0].status, "cut off");
});

test("a permission knows its answer, and cannot be answered after the turn", () => {
  const asked = event("permission.asked", { permission_id: "p", options: [] });
  assert.equal(folded(asked, event("permission.answered", { permission_id: "p", by: "page" })).items[0].answered.by, "page");
  assert.equal(folded(event("turn.started"), asked, event("turn.cancelled")).items[0].over, true);
});

test("what happens below is one thin line, told in words", () => {
  const fold = folded(event("sandbox.gone", { provider: "local", sandbox_id: "a", reason: "killed" }), event("sandbox.creating", { provider: "docker" }),
    event("mount.ready", { engine: "weed", took: 0.2 }), event("sandbox.ready", { provider: "docker", sandbox_id: "b", took: 1 }), event("resume", { rung: "native" }));
  assert.deepEqual(kinds(fold), ["line"]);
  assert.deepEqual(steps(fold.items[0].events).map((step) => step.text),
    ["sandbox gone: killed", "mounted by weed in 200 ms", "new sandbox on docker in 1.0 s", "resumed natively"]);
});

test("lines that the sidecar lost are told", () => {
  const fold = folded(event("run.gap", { lines: 3, reason: "told twice or not at all" }));
  assert.deepEqual(steps(fold.items[0].events).map((step) => [step.text, step.tone]),
    [["the sidecar lost 3 lines of the turn's journal", "warn"]]);
});

test("an event of a kind we do not know changes nothing", () => {
  assert.deepEqual(kinds(folded(event("raw", { data: 1 }), event("from.the.future"))), []);
});

test("each of 100,000 events is folded without going through those before it", () => {
  const fold = new Fold();
  const items = countReads();
  fold.items = items.array;
  for (let i = 0; i < 100_000; i++) {
    const tool_call_id = `c${i >> 2}`;
    fold.push(event(["tool.call", "tool.update", "tool.result", "message"][i % 4], { tool_call_id, role: "assistant", text: "x", status: "completed", output: "y" }));
  }
  assert.ok(items.reads <= 200_000, `${items.reads} reads`);
  assert.equal(fold.items.length, 50_000);
});

test("every way to go on with a conversation has its words", () => {
  const words = { new: "new conversation", warm: "went on in the same process", native: "resumed natively",
    repaired: "resumed natively, after a repair", handoff: "handed over with a briefing" };
  for (const [rung, text] of Object.entries(words)) assert.equal(steps([event("resume", { rung })])[0].text, text);
});

test("the turn that runs is the stream's, whatever the session said before", () => {
  const steered = folded(event("turn.started"), event("turn.cancelled"), event("turn.started", { turn_id: "t2" }));
  assert.equal(runningTurn({ running_turn: "t1" }, steered), "t2");
  assert.equal(runningTurn({ running_turn: "t1" }, folded(event("turn.started"), event("turn.cancelled"))), null);
  assert.equal(runningTurn({ running_turn: "t2" }, folded(event("turn.started"), event("turn.cancelled"))), "t2");
  assert.equal(runningTurn({ running_turn: null }, undefined), null);
});
