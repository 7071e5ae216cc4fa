// The receipt: green when the store is proven to have everything, red when that is not proven.

import { get } from "../api.js";
import { bytes, count, duration, shown } from "../lib/text.js";
import { brief, whole } from "../lib/usage.js";
import { state } from "../state.js";
import { html, useEffect, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { preview } from "./files.js";
import { useOpen } from "./items.js";
import { Copy, Icon, Spinner } from "./parts.js";

export function Receipt({ item, turn }) {
  const [open, setOpen] = useOpen(item.key);
  const proof = item.proof;
  const failed = turn.failed;
  // of a turn whose beginning is not loaded, the sum is not the turn's
  const usage = turn.whole ? turn.usage : null;
  const spent = usage ? ` · ${brief(usage)}` : "";
  const tone = proof ? (proof.lost ? "warn" : "good") : "bad";
  return html`<section class=${`receipt ${tone}`} data-test="receipt" data-tone=${tone} data-files=${proof?.files ?? null} aria-label="Receipt">
    <button type="button" class="receipt-head" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <${Icon} name=${proof ? "check" : "cross"} />
      ${proof
        ? html`<span><strong>${proof.lost ? "Safe, but for what was lost" : "Safe in the store"}</strong> <span class="receipt-facts">${count(proof.files, "file")} · ${bytes(proof.bytes)} · ${proof.engine} · proven in ${duration(proof.took)}${spent}</span></span>`
        : html`<span><strong>Not durable</strong> <span class="receipt-facts">${failed ? shown(failed.reason) : "this turn ended without a receipt"}${spent}</span></span>`}
      <${Icon} name="chevron" />
    </button>
    ${open && html`<div class="receipt-details">
      <dl>
        ${proof && html`<dt>Manifest</dt><dd><code>${proof.manifest_sha256.slice(0, 16)}…</code> <${Copy} text=${proof.manifest_sha256} label="Copy the manifest's sha256" />
          <a href=${`/sessions/${state.route.sid}/turns/${turn.id}/manifest`} target="_blank" rel="noopener">Open</a></dd>`}
        ${proof?.lost && html`<dt>Lost</dt><dd>${shown(proof.lost)}</dd>`}
        ${proof?.window && html`<dt>Copied</dt><dd>every ${duration(proof.window)} while a turn runs: that much a sudden end may cost</dd>`}
        ${turn.ended && html`<dt>Turn</dt><dd>${turn.harness} on ${turn.provider}, ${duration((Date.parse(turn.ended) - Date.parse(turn.started)) / 1000)}</dd>`}
        ${turn.memory && html`<dt>Memory</dt><dd>${turn.memory.harness}'s own state stored, ${bytes(turn.memory.bytes)}</dd>`}
        ${usage && html`<dt>Models</dt><dd>${whole(usage)}</dd>`}
      </dl>
      ${failed && html`<ul class="unsafe">${Object.entries(failed.files ?? {}).slice(0, 200).map(([path, why]) => html`<li><code>${shown(path)}</code> ${shown(why)}</li>`)}</ul>`}
      ${proof && html`<${Changes} turn=${turn} />`}
    </div>`}
  </section>`;
}

const SIGNS = { added: "+", changed: "~", removed: "−" };

function Changes({ turn }) {
  const [told, setTold] = useState(null);
  useEffect(() => {
    get(`/sessions/${state.route.sid}/turns/${turn.id}/changes`).then(setTold, (error) => setTold({ error }));
  }, [turn.id]);
  if (!told) return html`<${Spinner} label="Changed files" />`;
  if (told.error) return html`<p class="meta">${told.error.message}</p>`;
  const all = ["added", "changed", "removed"].flatMap((how) => told[how].map((each) => ({ ...each, how })));
  if (!all.length) return html`<p class="meta">No file changed in this turn.</p>`;
  return html`<p class="meta">${count(all.length, "file")} changed in this turn${told.cut ? " (the first of more)" : ""}</p>
    <ul class="changes" data-test="changes">${all.slice(0, 100).map((each) => html`<li class=${each.how}>
      <span class="sign" aria-label=${each.how}>${SIGNS[each.how]}</span>
      ${each.how === "removed" ? html`<code>${shown(each.path)}</code>` : html`<button type="button" class="link" onClick=${() => preview(each.path)}>${shown(each.path)}</button>`}
      <span class="meta">${bytes(each.size)}</span></li>`)}</ul>`;
}
