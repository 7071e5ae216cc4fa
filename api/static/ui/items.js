// The rows of a conversation.

import { html, useMemo, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { steps } from "../lib/lifecycle.js";
import { markdown } from "../lib/markdown.js";
import { clip, clock, shown } from "../lib/text.js";
import { state } from "../state.js";
import { Copy, Icon } from "./parts.js";
import { Permission } from "./permission.js";
import { Receipt } from "./receipt.js";
import { Tool } from "./tool.js";

/** Whether something is unfolded; remembered while the row is out of sight. */
export function useOpen(key, initial = false) {
  const opened = (state.transcript.opened ??= new Map());
  const [open, set] = useState(opened.get(key) ?? initial);
  return [open, (value) => {
    opened.set(key, value);
    set(value);
  }];
}

const KINDS = { user: User, assistant: Assistant, thought: Thought, tool: Tool, plan: Plan, permission: Permission, line: Line, receipt: Receipt, end: End };

/** A row is drawn anew only when its item or its turn has changed. */
export function Row({ item }) {
  return useMemo(() => html`<${KINDS[item.kind]} item=${item} turn=${item.turn} />`, [item, item.version, item.turn?.state, item.turn?.harness]);
}

function User({ item, turn }) {
  const { head, left } = clip(item.text, 40, 6000);
  const [open, setOpen] = useOpen(item.key);
  const how = turn?.harness ? `${turn.harness} on ${turn.provider}` : "";
  return html`<article class="user" data-test="message" data-role="user" aria-label="You">
    <div class="user-text" dir="auto">${shown(open ? item.text : head)}${left > 0 && html`<button type="button" class="link" onClick=${() => setOpen(!open)}>${open ? "Show less" : "Show all"}</button>`}</div>
    <p class="meta"><time datetime=${item.at}>${clock(item.at)}</time>${how && html`<span data-test="message-agent" data-harness=${turn.harness} data-provider=${turn.provider}> · ${how}</span>`}${turn?.model && ` · ${turn.model}`}${turn?.permissions === "ask" && " · asks first"}</p>
  </article>`;
}

function Assistant({ item }) {
  const body = useMemo(() => markdown(item.text), [item.text]);
  return html`<article class="assistant" data-test="message" data-role="assistant" aria-label="Assistant">
    <div class="md" dir="auto">${body}</div>
    <div class="hover"><${Copy} text=${item.text} label="Copy message" /></div>
  </article>`;
}

function Thought({ item }) {
  const [open, setOpen] = useOpen(item.key);
  const line = clip(item.text.trim(), 1, 90);
  return html`<div class="thought" data-test="thought">
    <button type="button" class="fold" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <${Icon} name="bulb" /><span class="fold-title">Thought</span>${!open && html`<span class="fold-line" dir="auto">${shown(line.head)}${line.left > 0 ? "…" : ""}</span>`}
    </button>
    ${open && html`<div class="thought-text" dir="auto">${shown(item.text.slice(0, 100_000))}</div>`}
  </div>`;
}

const MARKS = { completed: "☑", in_progress: "◐", pending: "☐" };

function Plan({ item }) {
  const done = item.entries.filter((entry) => entry?.status === "completed").length;
  return html`<section class="plan" aria-label="Plan">
    <p class="plan-title"><${Icon} name="list" /> Plan <span class="num">${done} of ${item.entries.length}</span></p>
    <ol>${item.entries.slice(0, 200).map((entry) => html`<li class=${`plan-${entry?.status}`}><span aria-label=${entry?.status}>${MARKS[entry?.status] ?? "☐"}</span> ${shown(String(entry?.content ?? ""))}</li>`)}</ol>
  </section>`;
}

function Line({ item }) {
  const [open, setOpen] = useOpen(item.key);
  const all = steps(item.events);
  if (!all.length) return null;
  return html`<div class="line">
    <button type="button" class="line-steps" aria-expanded=${open} title="Details" onClick=${() => setOpen(!open)}>
      ${all.map((step, i) => html`${i > 0 && html`<span class="sep" aria-hidden="true">·</span>`}<span class=${`step ${step.tone}`} data-test="step" data-type=${step.event.type} data-provider=${step.event.provider ?? null} data-rung=${step.event.rung ?? null}>${shown(step.text)}</span> `)}
    </button>
    ${open && html`<dl class="line-details">${all.map((step) => html`<dt><time>${clock(step.at)}</time> ${shown(step.text)}</dt>${step.detail && html`<dd>${shown(step.detail)}</dd>`}`)}</dl>`}
  </div>`;
}

const ENDS = { failed: "The turn failed", interrupted: "The turn was interrupted", cancelled: "The turn was stopped" };

function End({ item }) {
  const why = item.error ? item.error.message : item.reason;
  return html`<div class=${`end ${item.state === "cancelled" ? "warn" : "bad"}`} role="note" data-test="turn-end" data-state=${item.state}>
    <${Icon} name=${item.state === "cancelled" ? "stop" : "cross"} />
    <p><strong>${ENDS[item.state]}${why ? ":" : "."}</strong> ${shown(why ?? "")} <span class="meta">${shown(item.error?.hint ?? "")}</span></p>
  </div>`;
}
