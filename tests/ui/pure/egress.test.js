import assert from "node:assert/strict";
import { test } from "node:test";
import { egressOf } from "../../../api/static/lib/egress.js";
import { Fold } from "../../../api/static/lib/fold.js";
import { steps } from "../../../api/static/lib/lifecycle.js";

const egress = { type: "egress", turn_id: "t1", at: "2026-01-01T00:00:00Z", host: "pypi.org", port: 443, method: "CONNECT",
  verdict: "allowed", reason: "", connections: 1, bytes_up: 10, bytes_down: 2000 };

test("hosts are told apart by commas and spaces, and go with the list alone", () => {
  assert.deepEqual(egressOf("allow", " a.example,b.example  *.c.example,"), { egress: "allow", egress_hosts: ["a.example", "b.example", "*.c.example"] });
  assert.deepEqual(egressOf("allow", " "), { egress: "allow" });
  assert.deepEqual(egressOf("open", "a.example"), { egress: "open" });
});

test("what was let out is a line, and what was refused a warning with its reason", () => {
  const [out, refused, rest] = steps([egress, { ...egress, verdict: "refused", reason: "off for this session", connections: 3 },
    { ...egress, host: "", port: undefined }]);
  assert.match(out.text, /egress: pypi\.org:443, .* up, .* down/);
  assert.equal(out.tone, "");
  assert.equal(refused.tone, "warn");
  assert.match(refused.detail, /3 connections, off for this session/);
  assert.match(rest.text, /more hosts/);
});

test("a line about egress does not break what is being said", () => {
  const fold = new Fold();
  const at = egress.at;
  let seq = 0;
  for (const event of [
    { type: "resume", rung: "new" }, { type: "message", role: "assistant", text: "one " }, egress, { type: "message", role: "assistant", text: "two" },
    { type: "tool.call", tool_call_id: "c" }, egress,
  ]) fold.push({ at, turn_id: "t1", ...event, seq: ++seq });
  assert.deepEqual(fold.items.map((item) => item.kind), ["line", "assistant", "tool", "line"]);
  assert.equal(fold.items[1].text, "one two");
  assert.deepEqual(fold.items[0].events.map((event) => event.type), ["resume", "egress"]);
});
