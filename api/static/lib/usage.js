// What models were used, added up and in words.

import { count } from "./text.js";

/** @typedef {{requests: number, input_tokens: number, output_tokens: number, cached_tokens: number, cost: number|null, unpriced: number, estimated: number}} Totals */

/** @param {Totals|null} totals @param {Record<string, any>} event @returns {Totals} */
export function plus(totals, event) {
  const priced = event.cost != null;
  return {
    requests: (totals?.requests ?? 0) + 1,
    input_tokens: (totals?.input_tokens ?? 0) + (event.input_tokens ?? 0),
    output_tokens: (totals?.output_tokens ?? 0) + (event.output_tokens ?? 0),
    cached_tokens: (totals?.cached_tokens ?? 0) + (event.cached_tokens ?? 0),
    cost: priced ? (totals?.cost ?? 0) + event.cost : totals?.cost ?? null,
    unpriced: (totals?.unpriced ?? 0) + (priced ? 0 : 1),
    estimated: (totals?.estimated ?? 0) + (event.estimated ? 1 : 0),
  };
}

/** Tokens, as short as they can be told. @param {number} n */
export function tokens(n) {
  if (n < 1000) return count(n, "token");
  const [value, unit] = n < 999_500 ? [n / 1000, "k"] : [n / 1e6, "M"];
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)}${unit} tokens`;
}

/** Dollars; small ones are seen too. @param {number} n */
export const dollars = (n) => `$${n === 0 || n >= 0.995 ? n.toFixed(2) : n.toFixed(n < 0.01 ? 4 : 3)}`;

/** What it cost, as far as that is known. @param {Totals} totals */
export function cost(totals) {
  if (totals.cost == null) return "no price known";
  return totals.unpriced ? `${dollars(totals.cost)} and ${count(totals.unpriced, "request")} without a price` : dollars(totals.cost);
}

/** In few words: for a line that says more than this. @param {Totals} totals */
export const brief = (totals) => `${tokens(totals.input_tokens + totals.output_tokens)}${totals.cost == null ? "" : ` · ${dollars(totals.cost)}`}`;

/** All of it. @param {Totals} totals */
export function whole(totals) {
  const cached = totals.cached_tokens ? ` (${totals.cached_tokens.toLocaleString("en")} cached)` : "";
  const estimated = totals.estimated ? `, ${totals.estimated.toLocaleString("en")} estimated` : "";
  return `${totals.input_tokens.toLocaleString("en")} tokens in${cached}, ${totals.output_tokens.toLocaleString("en")} out, ${count(totals.requests, "request")}${estimated}, ${cost(totals)}`;
}

/** What a session has used of its budget. @returns {{word: string, text: string, tone: string}} */
export function used(session) {
  const { usage, budget } = session;
  const all = usage.input_tokens + usage.output_tokens;
  if (!budget) return { word: tokens(all), text: cost(usage), tone: "" };
  const parts = [];
  let share = 0;
  if (budget.tokens != null) {
    parts.push(`of ${tokens(budget.tokens)}`);
    share = all / budget.tokens;
  }
  if (budget.cost != null) {
    parts.push(`${dollars(usage.cost ?? 0)} of ${dollars(budget.cost)}`);
    share = Math.max(share, (usage.cost ?? 0) / budget.cost);
  }
  return { word: tokens(all), text: parts.join(" · "), tone: share >= 1 ? "bad" : share >= 0.8 ? "warn" : "" };
}
