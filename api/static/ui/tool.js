// A tool call as a card: what was called, how long, what came out.

import { html, useMemo } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { bare, runs } from "../lib/ansi.js";
import { highlighted, language } from "../lib/highlight.js";
import { difference, toolSummary } from "../lib/lifecycle.js";
import { bytes, clip, count, duration, inWorkspace, shown } from "../lib/text.js";
import { preview } from "./files.js";
import { useOpen } from "./items.js";
import { Copy, Elapsed, Icon } from "./parts.js";

const ICONS = { execute: "terminal", edit: "pencil", read: "eye", search: "search", delete: "trash", fetch: "link", think: "bulb" };
const FOLDED = { lines: 10, chars: 2500 };
const STEP = 64 * 1024;

export function Tool({ item }) {
  const summary = useMemo(() => inWorkspace(toolSummary(item.input)), [item.input]);
  const command = item.input && typeof item.input === "object" && (item.input.command ?? item.input.cmd) != null;
  const title = bare(item.title || item.tool).replace(/^`|`$/g, "").replace(/\/(session\/)?workspace\//g, "");
  const [open, setOpen] = useOpen(`${item.key}/in`, false);
  const running = !item.until && item.turn?.state === "running";
  const failed = item.status === "failed";
  const icon = command ? "terminal" : ICONS[item.tool] ?? "zap";
  const same = summary && title.includes(summary);
  return html`<section class=${`tool ${failed ? "failed" : ""} ${running ? "running" : ""}`} data-test="tool" data-state=${running ? "running" : item.status} aria-label=${`Tool: ${shown(title.slice(0, 200))}`}>
    <button type="button" class="tool-head" data-test="tool-input" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <${Icon} name=${icon} />
      ${!(command && same) && html`<span class="tool-title">${shown(title.slice(0, 120))}</span>`}
      ${summary && (!same || command) && html`<code class="tool-line" dir="ltr">${shown(clip(summary, 1, 300).head)}</code>`}
      <span class="tool-state">${running ? html`<span class="spinner" aria-hidden="true"></span><span class="sr">running</span> <${Elapsed} since=${item.at} />`
        : html`${item.until ? html`<span class="num">${duration((Date.parse(item.until) - Date.parse(item.at)) / 1000)}</span>` : item.status}${failed && html`<span class="tag bad">failed</span>`}`}</span>
    </button>
    ${open && html`<${Input} item=${item} command=${command} />`}
    ${item.diffs.map((diff) => html`<${Diff} diff=${diff} />`)}
    <${Output} item=${item} />
    ${item.paths.length > 0 && html`<p class="tool-files">${item.paths.slice(0, 20).map((path) => html`<button type="button" class="chip" onClick=${() => preview(path)}><${Icon} name="file" />${shown(path)}</button>`)}</p>`}
  </section>`;
}

function Input({ item, command }) {
  const input = item.input;
  if (input == null) return null;
  if (command && typeof (input.command ?? input.cmd) === "string") {
    return html`<pre class="code" tabindex="0"><code>${highlighted(shown((input.command ?? input.cmd).slice(0, STEP)), "shell")}</code></pre>`;
  }
  const path = toolSummary(input);
  const content = input.content ?? input.new_string ?? input.newText;
  if (typeof content === "string" && path) {
    return html`<pre class="code" tabindex="0"><code>${highlighted(shown(content.slice(0, STEP)), language(path))}</code></pre>`;
  }
  const text = typeof input === "string" ? input : JSON.stringify(input, null, 2);
  return html`<pre class="code" tabindex="0"><code>${highlighted(shown(text.slice(0, STEP)), typeof input === "string" ? null : "json")}</code></pre>`;
}

function Diff({ diff }) {
  if (!diff || typeof diff !== "object") return null;
  const text = clip(difference(diff.oldText ?? diff.old_text ?? null, diff.newText ?? diff.new_text ?? ""), 60, 8000).head;
  return html`<pre class="code diff" tabindex="0"><code>${shown(text).split("\n").map((line) => html`<span class=${line[0] === "+" ? "ins" : line[0] === "-" ? "del" : ""}>${line}${"\n"}</span>`)}</code></pre>`;
}

/** Long output is folded; unfolded it grows step by step, so that a flood never stops the page. */
function Output({ item }) {
  const [size, setSize] = useOpen(`${item.key}/out`, 0);
  const text = item.output;
  const { head, left } = useMemo(() => clip(text, size ? Infinity : FOLDED.lines, size || FOLDED.chars), [text, size]);
  const coloured = useMemo(() => runs(head), [head]);
  if (!text) return null;
  const rest = left > 0 ? lineCount(text, head.length) : "";
  return html`<div class="output" data-test="tool-output">
    <pre tabindex="0" dir="auto" aria-label="Output">${coloured.map((run) => run.cls || run.fg || run.bg
      ? html`<span class=${run.cls} style=${run.fg || run.bg ? { color: run.fg ?? "", backgroundColor: run.bg ?? "" } : null}>${run.text}</span>` : run.text)}</pre>
    ${(left > 0 || size > 0) && html`<p class="output-more">
      ${left > 0 && html`<button type="button" class="link" onClick=${() => setSize((size || 0) + STEP)}>${size ? "Show more" : "Show output"} <span class="meta">${rest}</span></button>`}
      ${size > 0 && html`<button type="button" class="link" onClick=${() => setSize(0)}>Fold</button>`}
      <${Copy} text=${text} label="Copy output" />
    </p>`}
  </div>`;
}

function lineCount(text, from) {
  const rest = text.length - from;
  if (rest > 200_000) return `${bytes(rest)} more`;
  let lines = 0;
  for (let at = text.indexOf("\n", from + 1); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  return lines > 1 ? `${count(lines, "more line")}` : `${bytes(rest)} more`;
}
