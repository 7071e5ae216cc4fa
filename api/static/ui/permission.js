// A permission that is asked for: buttons while it waits, and who answered afterwards.

import { Failure, post } from "../api.js";
import { toolSummary } from "../lib/lifecycle.js";
import { clock, shown } from "../lib/text.js";
import { bar } from "../me.js";
import { state, toast } from "../state.js";
import { html, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Icon } from "./parts.js";

const BY = { page: "in a browser", cli: "on the command line", auto: "by itself: nobody is asked", timeout: "by the time-out", cancel: "by the turn's stop", turn: "by the turn's end" };

export function Permission({ item }) {
  const [busy, setBusy] = useState(false);
  const { answered, event } = item;
  const name = (id) => item.options.find((each) => each.option_id === id || each.optionId === id)?.name ?? id ?? "no answer";
  const allowed = /^allow/.test(answered?.kind ?? item.options.find((each) => (each.option_id ?? each.optionId) === answered?.option_id)?.kind ?? "");
  if (answered || item.over) {
    const by = answered ? BY[answered.by] ?? `by ${answered.by}` : BY.turn;
    return html`<p class="permission-done" data-test="permission-answer" data-allowed=${allowed ? "true" : "false"} data-by=${answered?.by ?? "turn"}><${Icon} name=${allowed ? "check" : "cross"} />
      <span>${allowed ? "Allowed" : "Not allowed"} ${by}${answered && ` at ${clock(answered.at)}`}: ${shown(item.title || event.kind || "a tool")}${answered?.option_id && answered.by !== "auto" ? ` (${shown(String(name(answered.option_id)))})` : ""}</span></p>`;
  }
  const answer = (option) => async () => {
    setBusy(true);
    try {
      await post(`/sessions/${state.route.sid}/permissions/${encodeURIComponent(item.id)}`, { option_id: option.option_id ?? option.optionId });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      toast(error.message, "bad", error.hint);
      setBusy(false);
    }
  };
  const what = toolSummary(event.input);
  return html`<section class="permission" data-test="permission" aria-label="Permission asked" role="group">
    <p class="permission-title"><span class="dot warn"></span><strong>May it do this?</strong> <span>${shown(item.title || "")}</span></p>
    ${what && what !== item.title && html`<pre class="code" tabindex="0"><code>${shown(what.slice(0, 20_000))}</code></pre>`}
    <p class="buttons">${item.options.map((option) => html`
      <button type="button" class=${/^allow_once/.test(option.kind) ? "primary" : ""} data-test="permission-option" data-kind=${option.kind} disabled=${busy} onClick=${answer(option)} ...${bar()}>${shown(String(option.name ?? option.option_id))}</button>`)}</p>
  </section>`;
}
