// The composer: send; while a turn runs queue, steer or stop. Harness and provider for the next turn.

import { post, request } from "../api.js";
import { runningTurn } from "../lib/fold.js";
import { shown } from "../lib/text.js";
import { bar } from "../me.js";
import { attempt, cancelTurn, refreshQueue, refreshSession, startTurn, state } from "../state.js";
import { html, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Icon, IconButton } from "./parts.js";

const drafts = new Map();

export function Composer({ session, transcript }) {
  const [text, setText] = useState(drafts.get(session.id) ?? "");
  const [chosen, setChosen] = useState({});
  const [busy, setBusy] = useState(false);
  const running = runningTurn(session, transcript.fold);
  const last = session.last_turn;
  const choice = {
    harness: chosen.harness ?? last?.harness ?? session.harness,
    provider: chosen.provider ?? last?.provider ?? session.provider,
    permissions: chosen.permissions ?? session.permissions,
    model: chosen.model ?? "",
    reasoning: chosen.reasoning ?? "",
  };
  const harness = state.capabilities?.harnesses.find((each) => each.name === choice.harness);
  if (harness && !harness.can_ask) choice.permissions = "auto";

  const write = (value) => {
    drafts.set(session.id, value);
    setText(value);
  };
  const asked = () => Object.fromEntries(Object.entries(choice).filter(([, value]) => value));
  const send = async (how) => {
    const prompt = text.trim();
    if (!prompt || busy) return;
    setBusy(true);
    await attempt(async () => {
      if (how === "steer") await steer(session.id, prompt, asked());
      else await startTurn(session.id, prompt, { ...asked(), queue: how === "queue" });
      write("");
    });
    setBusy(false);
  };
  const stop = () => running && attempt(() => cancelTurn(session.id, running));
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(running ? (event.ctrlKey || event.metaKey ? "steer" : "queue") : "send");
  };
  const pick = (name) => (event) => setChosen({ ...chosen, [name]: event.target.value });

  return html`<form class="composer" data-test="composer" onSubmit=${(e) => { e.preventDefault(); send(running ? "queue" : "send"); }} aria-label="Next turn">
    <${Queue} session=${session} />
    <textarea id="prompt" data-test="prompt" rows="2" aria-label="Prompt" placeholder=${bar().title ?? (running ? "Queue the next prompt, or steer this turn" : "What shall the agent do?")}
      value=${text} onInput=${(e) => write(e.target.value)} onKeyDown=${onKeyDown} ...${bar()}></textarea>
    <div class="composer-row">
      <div class="composer-choices">
        <${Select} label="Harness" value=${choice.harness} onChange=${pick("harness")} options=${state.capabilities?.harnesses.map((each) => ({ value: each.name, text: each.title })) ?? [{ value: choice.harness, text: choice.harness }]} />
        <${Select} label="Provider" value=${choice.provider} onChange=${pick("provider")} options=${providers(choice.provider)} />
        <${Select} label="Permissions" value=${choice.permissions} onChange=${pick("permissions")} options=${[
          { value: "auto", text: "Allow all" }, { value: "ask", text: harness?.can_ask === false ? "Ask first (it cannot)" : "Ask first", disabled: harness?.can_ask === false }]} />
        ${harness?.efforts.length > 0 && html`<${Select} label="Reasoning" value=${choice.reasoning} onChange=${pick("reasoning")}
          options=${[{ value: "", text: "Reasoning" }, ...harness.efforts.map((each) => ({ value: each, text: each }))]} />`}
      </div>
      <div class="composer-buttons">
        ${running && html`<button type="button" class="stop" onClick=${stop} title="Stop the turn (Ctrl+.)" ...${bar()}><${Icon} name="stop" /> Stop</button>
          <button type="button" disabled=${!text.trim() || busy} onClick=${() => send("steer")} title="Stop the turn and go on with this (Ctrl+Enter)" ...${bar()}>Steer</button>`}
        <button class="primary" disabled=${!text.trim() || busy} title=${running ? "Runs after this turn (Enter)" : "Enter sends, Shift+Enter is a new line"} ...${bar()}>
          <${Icon} name="send" /> ${running ? "Queue" : "Send"}</button>
      </div>
    </div>
  </form>`;
}

/** Stops the running turn and starts this one; the stream that is answered with is not needed. */
async function steer(sid, prompt, parameters) {
  const data = { inputs: { messages: [{ role: "user", content: prompt }] }, parameters };
  const answer = await request("POST", "/invoke", { body: { session_id: sid, force: true, data } });
  await answer.body.cancel();
  refreshSession();
}

export function providers(current) {
  const all = state.capabilities?.providers ?? [];
  if (!all.length) return [{ value: current, text: current }];
  return all.map((each) => ({ value: each.name, text: each.name, disabled: !each.available, title: each.reason }));
}

export const Select = ({ label, value, onChange, options }) => html`<label class="select"><span class="sr">${label}</span>
  <select value=${value} onChange=${onChange} title=${label}>${options.map((each) => html`<option value=${each.value} disabled=${each.disabled} title=${each.title} selected=${each.value === value}>${each.text}</option>`)}</select></label>`;

function Queue({ session }) {
  const { queued } = state.turns;
  if (!queued.length) return null;
  const drop = (turn) => () => attempt(async () => {
    await post(`/sessions/${session.id}/turns/${turn.id}/cancel`);
    await refreshSession();
    await refreshQueue();
  });
  return html`<ol class="queue" data-test="queue" aria-label="Queued turns">${queued.map((turn) => html`<li>
    <span class="tag">queued</span> <span class="queue-text" dir="auto">${shown(turn.prompt.slice(0, 200))}</span> <span class="meta">${turn.harness}</span>
    <${IconButton} icon="close" label="Take out of the queue" onClick=${drop(turn)} ...${bar()} /></li>`)}</ol>`;
}
