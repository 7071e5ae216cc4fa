// Dialogs: a new session, what a delete removes, all sandboxes, the keyboard.

import { get, post } from "../api.js";
import { egressOf } from "../lib/egress.js";
import { ago, bytes, clock, count, shown } from "../lib/text.js";
import { bar } from "../me.js";
import { attempt, createSession, deleteSession, go, refreshCapabilities, refreshSandbox, state, toast, update } from "../state.js";
import { html, useEffect, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { BudgetDialog, BudgetFields, budgetOf } from "./budget.js";
import { titleOf } from "./conversation.js";
import { EgressDialog, EgressFields } from "./egress.js";
import { Dialog, Empty, Spinner, Trouble } from "./parts.js";

export function Dialogs() {
  const kind = state.dialog?.kind;
  if (kind === "new") return html`<${NewSession} />`;
  if (kind === "egress") return html`<${EgressDialog} session=${state.dialog.session} />`;
  if (kind === "delete") return html`<${Delete} session=${state.dialog.session} />`;
  if (kind === "sandboxes") return html`<${Sandboxes} />`;
  if (kind === "budget") return html`<${BudgetDialog} session=${state.dialog.session} />`;
  if (kind === "help") return html`<${Help} />`;
  if (kind === "ask") return html`<${Ask} ...${state.dialog} />`;
  if (kind === "confirm") return html`<${Confirm} ...${state.dialog} />`;
  return null;
}

const close = () => update({ dialog: null });

function NewSession() {
  const { capabilities } = state;
  const [form, setForm] = useState({ title: "", model: "", reasoning: "", permissions: "auto", durability: "mount", egress: "off", hosts: "" });
  const [budget, setBudget] = useState({ tokens: "", cost: "" });
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => void refreshCapabilities(), []); // a provider may have come or gone
  if (!capabilities) {
    return html`<${Dialog} title="New session">${state.capabilitiesError ? html`<${Trouble} error=${state.capabilitiesError} again=${refreshCapabilities} />`
      : html`<p><${Spinner} label="Asking what this stack can run" /></p>`}<//>`;
  }
  const chosen = form.harness ?? capabilities.default_harness;
  const harness = capabilities.harnesses.find((each) => each.name === chosen);
  const provider = form.provider ?? capabilities.default_provider;
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const permissions = harness?.can_ask ? form.permissions : "auto";
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    const { hosts, egress, ...rest } = form;
    const reach = engine?.network === "provider" ? {} : egressOf(egress, hosts);
    const given = { ...rest, ...reach, harness: chosen, provider, permissions, budget: budgetOf(budget) };
    try {
      await createSession(Object.fromEntries(Object.entries(given).filter(([, value]) => value)));
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const engine = capabilities.providers.find((each) => each.name === provider);
  return html`<${Dialog} title="New session"><form class="form" onSubmit=${submit}>
    <label>Title<input name="title" placeholder="Named by its first prompt" maxlength="200" value=${form.title} onInput=${set("title")} autofocus /></label>
    <fieldset><legend>Harness</legend><div class="cards">${capabilities.harnesses.map((each) => html`
      <label class="card"><input type="radio" name="harness" value=${each.name} checked=${each.name === chosen} onChange=${set("harness")} />
        <span><b>${each.title}</b><span class="meta">${each.can_ask ? "can ask for permission" : "cannot ask for permission"}</span></span></label>`)}</div></fieldset>
    <fieldset><legend>Provider</legend><div class="cards">${capabilities.providers.map((each) => html`
      <label class=${`card ${each.available ? "" : "off"}`}><input type="radio" name="provider" value=${each.name} disabled=${!each.available} checked=${each.name === provider} onChange=${set("provider")} />
        <span><b>${each.title}</b><span class="meta">${each.available ? `workspace by ${each.engine ?? "the engine of the day"}` : each.reason}</span></span></label>`)}</div></fieldset>
    <div class="form-row">
      <label>Permissions<select value=${permissions} onChange=${set("permissions")}>
        <option value="auto">Allow all, on record</option><option value="ask" disabled=${!harness?.can_ask}>${harness?.can_ask ? "Ask me first" : `Ask me first: ${harness?.title} cannot ask`}</option></select></label>
      <label>Durability<select value=${form.durability} onChange=${set("durability")}>
        <option value="mount">${engine?.engine === "checkpoint" ? "As this provider can" : "Mounted from the store"}</option><option value="checkpoint">Copied to the store</option></select></label>
      <label>Reasoning<select value=${form.reasoning} onChange=${set("reasoning")}><option value="">Default</option>
        ${harness?.efforts.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
      <label>Model<input name="model" list="models" maxlength="200" value=${form.model} onInput=${set("model")} placeholder="Default" />
        <datalist id="models">${harness?.models.map((each) => html`<option value=${each} />`)}</datalist></label>
    </div>
    ${engine?.network !== "provider" && html`<${EgressFields} form=${form} set=${set} />`}
    <${BudgetFields} value=${budget} set=${setBudget} />
    ${engine && html`<p class="meta">${kept(engine, form.durability)}${engine.network === "provider" ? " What the sandbox may reach is the provider's to say." : ""}</p>`}
    ${error && html`<${Trouble} error=${error} />`}
    <footer><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${busy}>Create</button></footer>
  </form><//>`;
}

/** How the workspace is kept, in a sentence. */
function kept(provider, durability) {
  if (durability === "checkpoint" || provider.engine === "checkpoint") {
    const why = durability === "checkpoint" || !provider.engine_why ? "" : ` (${provider.engine_why})`;
    return `The workspace is on the sandbox's own disk and copied to the store every few seconds and at each turn's end: a sudden end may cost the last of them${why}.`;
  }
  return `The workspace is mounted from the store by ${provider.engine ?? "its engine"}${provider.engine_why ? `: ${provider.engine_why}` : ""}.`;
}

function Delete({ session }) {
  const [contents, setContents] = useState(null);
  const [busy, setBusy] = useState(false);
  useEffect(() => void get(`/sessions/${session.id}/contents`).then(setContents, (error) => setContents({ error })), []);
  const act = async () => {
    setBusy(true);
    await attempt(async () => {
      await deleteSession(session.id);
      close();
      toast("The session is deleted.");
    });
    setBusy(false);
  };
  return html`<${Dialog} title="Delete this session?">
    <p><strong dir="auto">${shown(titleOf(session))}</strong></p>
    ${!contents ? html`<${Spinner} label="Counting" />` : contents.error ? html`<${Trouble} error=${contents.error} />` : html`<p>This removes for good:</p>
      <ul class="plain-list">
        <li>${count(contents.files ?? 0, "file")}, ${bytes(contents.bytes ?? 0)}</li>
        <li>${count(contents.turns, "turn")} with ${count(contents.events, "event")}</li>
        <li>${count(contents.state_objects, "object")} of the harnesses' memory and of receipts</li>
        ${contents.sandboxes > 0 && html`<li>${count(contents.sandboxes, "sandbox", "sandboxes")}</li>`}
        ${contents.running_turn && html`<li class="tone-bad">a turn that is running</li>`}
      </ul>`}
    <footer><button type="button" onClick=${close}>Keep it</button><button type="button" class="danger" disabled=${busy || !contents} onClick=${act}>Delete</button></footer>
  <//>`;
}

function Sandboxes() {
  const [told, setTold] = useState(null);
  const load = () => Promise.all([get("/sandboxes"), get("/leaks")]).then(
    ([{ sandboxes }, { leaks }]) => setTold({ sandboxes, leaks }), (error) => setTold({ error }));
  useEffect(() => {
    load();
    const timer = setInterval(load, 3000);
    return () => clearInterval(timer);
  }, []);
  const act = (what, box) => () => attempt(async () => {
    await post(`/sessions/${box.session_id}/${what}`);
    await load();
    refreshSandbox();
  });
  return html`<${Dialog} title="Sandboxes" wide>
    ${!told ? html`<${Spinner} label="Asking the providers" />` : told.error ? html`<${Trouble} error=${told.error} again=${load} />` : html`
    ${!told.sandboxes.length && html`<${Empty} title="No sandbox is running"><p>One is started when a turn needs it.</p><//>`}
    ${told.sandboxes.length > 0 && html`<div class="table" data-test="wide" tabindex="0"><table><thead><tr><th>Session</th><th>Provider</th><th>State</th><th>Since</th><th>Memory</th><th>Warm until</th><th></th></tr></thead>
      <tbody>${told.sandboxes.map((box) => html`<tr><td><button class="link" onClick=${() => go(`#/s/${box.session_id}`)}>${shown(box.title || box.session_id.slice(-8))}</button></td><td>${box.provider}</td>
        <td>${box.in_use ? html`<span class="tone-warn">in a turn</span>` : box.state}</td><td>${ago(box.created_at)}</td><td>${bytes(box.memory)}</td>
        <td>${box.warm_until ? clock(box.warm_until) : ""}</td>
        <td class="buttons"><button onClick=${act("kill", box)} ...${bar()}>Kill</button><button disabled=${box.in_use} onClick=${act("destroy", box)} ...${bar()}>Destroy</button></td></tr>`)}</tbody></table></div>`}
    <p class=${told.leaks.length ? "tone-bad" : "meta"} data-test="leaks" data-count=${told.leaks.length}>${told.leaks.length ? `${count(told.leaks.length, "leak")}: sandboxes that nothing answers for` : "No leaks: nothing lives that nothing answers for."}</p>
    ${told.leaks.length > 0 && html`<ul class="plain-list">${told.leaks.map((leak) => html`<li>${leak.provider} <code>${leak.sandbox_id}</code>: ${leak.reason}</li>`)}</ul>`}`}
  <//>`;
}

const KEYS = [["n", "New session"], ["/", "Search"], ["Enter", "Send, or queue while a turn runs"], ["Shift + Enter", "New line"], ["Ctrl + Enter", "Steer: stop the turn, go on with this"],
  ["Ctrl + .", "Stop the turn"], ["c", "To the prompt"], ["f", "Files"], ["?", "This help"], ["Esc", "Close"]];

const Help = () => html`<${Dialog} title="Keyboard and help">
  <dl class="keys">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
  <h3>What the colours mean</h3>
  <ul class="plain-list"><li><span class="dot good"></span> Green: a receipt proves that the store has everything.</li>
    <li><span class="dot warn"></span> Amber: a turn runs, or waits for you; what it has done is not proven yet.</li>
    <li><span class="dot bad"></span> Red: not durable, or failed. The line says what and why.</li></ul>
<//>`;

/** One line of text, asked for. */
function Ask({ title, label, value, act }) {
  const [text, setText] = useState(value);
  const submit = (event) => {
    event.preventDefault();
    attempt(async () => {
      await act(text.trim());
      close();
    });
  };
  return html`<${Dialog} title=${title}><form class="form" onSubmit=${submit}>
    <label>${label}<input value=${text} onInput=${(e) => setText(e.target.value)} autofocus /></label>
    <footer><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${!text.trim() || text === value}>OK</button></footer></form><//>`;
}

function Confirm({ title, text, label, act }) {
  const yes = () => attempt(async () => {
    await act();
    close();
  });
  return html`<${Dialog} title=${shown(title)}><p>${text}</p>
    <footer><button type="button" onClick=${close}>Cancel</button><button type="button" class="danger" onClick=${yes}>${label}</button></footer><//>`;
}
