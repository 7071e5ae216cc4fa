import assert from "node:assert/strict";
import { test } from "node:test";
import { Fold } from "../../../api/static/lib/fold.js";
import { steps } from "../../../api/static/lib/lifecycle.js";
import { brief, cost, dollars, plus, tokens, used, whole } from "../../../api/static/lib/usage.js";

const ONE = { input_tokens: 1200, output_tokens: 30, cached_tokens: 200, cost: 0.0125 };
const NONE = { requests: 0, input_tokens: 0, output_tokens: 0, cached_tokens: 0, cost: null, unpriced: 0, estimated: 0 };

test("every request of a turn counts, and a price that nobody knows is none", () => {
  const fold = new Fold();
  for (const event of [ONE, { ...ONE, cost: undefined, estimated: true }]) fold.push({ type: "usage", turn_id: "t", seq: 1, at: "", ...event });
  const { usage } = fold.turns.get("t");
  assert.deepEqual(usage, { requests: 2, input_tokens: 2400, output_tokens: 60, cached_tokens: 400, cost: 0.0125, unpriced: 1, estimated: 1 });
  assert.equal(cost(usage), "$0.013 and 1 request without a price");
  assert.equal(whole(usage), "2,400 tokens in (400 cached), 60 out, 2 requests, 1 estimated, $0.013 and 1 request without a price");
  assert.equal(brief(plus(null, { input_tokens: 5 })), "5 tokens");
  assert.equal(cost(plus(null, { input_tokens: 5 })), "no price known");
});

test("tokens and dollars are short, and small ones are seen", () => {
  assert.deepEqual([1, 999, 1230, 45_600, 999_600, 2_340_000].map(tokens), ["1 token", "999 tokens", "1.2k tokens", "46k tokens", "1.0M tokens", "2.3M tokens"]);
  assert.deepEqual([0, 0.0004, 0.0234, 0.996, 12.3].map(dollars), ["$0.00", "$0.0004", "$0.023", "$1.00", "$12.30"]);
});

test("a budget that runs out is seen before and after", () => {
  const of = (all, budget) => used({ usage: { ...NONE, input_tokens: all, cost: all / 1000 }, budget });
  assert.deepEqual(of(100, null), { word: "100 tokens", text: "$0.100", tone: "" });
  assert.deepEqual(of(100, { tokens: 1000 }), { word: "100 tokens", text: "of 1.0k tokens", tone: "" });
  assert.equal(of(800, { tokens: 1000 }).tone, "warn");
  assert.deepEqual(of(1000, { tokens: 10_000, cost: 1 }), { word: "1.0k tokens", text: "of 10k tokens · $1.00 of $1.00", tone: "bad" });
});

test("a request that failed is told where it happened", () => {
  const fold = new Fold();
  fold.push({ type: "model.failed", turn_id: "t", seq: 1, at: "", status: 529, message: "overloaded", model: "m" });
  fold.push({ type: "model.failed", turn_id: "t", seq: 2, at: "", message: "restarted" });
  assert.deepEqual(steps(fold.items[0].events).map((step) => [step.text, step.tone]),
    [["the model API failed (529): overloaded", "warn"], ["the model API failed: restarted", "warn"]]);
});
