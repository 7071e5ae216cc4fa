// The sandbox of the session: what runs where, since when, and the buttons to end it on purpose.

import { post } from "../api.js";
import { runningTurn } from "../lib/fold.js";
import { ago, bytes, clock } from "../lib/text.js";
import { bar } from "../me.js";
import { attempt, refreshList, refreshSandbox, refreshSession, state, toast, update } from "../state.js";
import { html, useEffect, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Icon } from "./parts.js";

export function Sandbox({ session }) {
  const box = state.sandbox;
  const [busy, setBusy] = useState("");
  const running = runningTurn(session, state.transcript?.fold);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || refreshSandbox(), 5000);
    return () => clearInterval(timer);
  }, [session.id]);
  const act = (what, done) => async () => {
    setBusy(what);
    await attempt(async () => {
      await post(`/sessions/${session.id}/${what}`);
      toast(done);
    });
    setBusy("");
    refreshSandbox();
    refreshSession();
    refreshList();
  };
  const kill = act("kill", "Killed with SIGKILL. The files and the conversation are still there: send the next prompt.");
  const destroy = act("destroy", "The sandbox is ended. The next turn starts a new one.");
  return html`<section class="sandbox" data-test="sandbox" data-state=${box ? "there" : "none"} aria-label="Sandbox">
    <header><h2>Sandbox</h2>${box && html`<span class="tag">${running ? "in a turn" : box.state}</span>`}</header>
    ${box ? html`<dl class="facts">
        <dt>Provider</dt><dd>${box.provider}</dd>
        <dt>Since</dt><dd>${clock(box.created_at)} <span class="meta">${ago(box.created_at)}</span></dd>
        ${box.memory != null && html`<dt>Memory</dt><dd data-test="sandbox-memory">${bytes(box.memory)}</dd>`}
        ${box.engine && html`<dt>Workspace</dt><dd>${box.engine}</dd>`}
        ${box.warm_until && !running && html`<dt>Warm until</dt><dd data-test="sandbox-warm-until">${clock(box.warm_until)}</dd>`}
      </dl>
      <p class="buttons">
        <button type="button" class="danger" data-test="kill" disabled=${busy} onClick=${kill} title="SIGKILL, on purpose: everything in the sandbox is gone at once" ...${bar()}><${Icon} name="zap" /> Kill it and watch</button>
        <button type="button" data-test="destroy" disabled=${busy || running} onClick=${destroy} ...${bar()}>Destroy</button>
      </p>`
      : html`<p class="meta">No sandbox is running. The next turn starts one, with the files from the store${session.last_seq ? " and the conversation as it was" : ""}.</p>`}
    <p class="sandbox-all"><button type="button" class="link" data-test="all-sandboxes" onClick=${() => update({ dialog: { kind: "sandboxes" } })}>All sandboxes, and leaks</button></p>
  </section>`;
}
