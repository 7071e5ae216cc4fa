// The matrix: every harness on every provider, proven now, in the browser.

import { get, post } from "../api.js";
import { ago, count, duration, shown } from "../lib/text.js";
import { bar } from "../me.js";
import { attempt, go, state } from "../state.js";
import { html, useEffect, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Empty, Icon, Spinner, Trouble } from "./parts.js";

const LOOK = { passed: ["good", "check", "Passed"], failed: ["bad", "cross", "Failed"], running: ["warn", "zap", "Running"], waiting: ["", "dots", "Waits"], skipped: ["", "dots", "Skipped"] };

export default function Matrix() {
  const [runs, setRuns] = useState(null);
  const [run, setRun] = useState(null);
  const [error, setError] = useState(null);
  const [cell, setCell] = useState(null);
  const wanted = state.route.run;
  const list = () => get("/matrix/runs?limit=20").then(({ runs: all }) => setRuns(all), setError);
  const show = (id) => get(`/matrix/runs/${id}`).then(setRun, setError);
  useEffect(() => void list(), []);
  const id = wanted ?? runs?.[0]?.id;
  useEffect(() => {
    if (id) show(id);
    else setRun(null);
  }, [id]);
  useEffect(() => {
    if (run?.state !== "running") return;
    const timer = setTimeout(() => show(run.id).then(list), 1000);
    return () => clearTimeout(timer);
  }, [run]);
  const start = () => attempt(async () => {
    const made = await post("/matrix/runs", chosen());
    setRun(made);
    await list();
    go(`#/matrix/${made.id}`);
  });
  const busy = run?.state === "running";
  const [left, setLeft] = useState(new Set());
  const { harnesses = [], providers = [] } = state.capabilities ?? {};
  const can = { harnesses: harnesses.map((each) => each.name), providers: providers.filter((each) => each.available).map((each) => each.name) };
  const chosen = () => Object.fromEntries(Object.entries(can).map(([kind, names]) => [kind, names.filter((name) => !left.has(name))]));
  const toggle = (name) => () => setLeft(new Set(left.has(name) ? [...left].filter((each) => each !== name) : [...left, name]));
  return html`<main class="matrix" aria-label="Matrix">
    <header class="page-head"><div><h1>Matrix</h1>
      <p>For each cell the agent writes random bytes, an independent client compares the store with what the sandbox sees, the sandbox is killed, and another one reads them back.</p></div>
      ${busy ? html`<button type="button" onClick=${() => attempt(() => post(`/matrix/runs/${run.id}/cancel`).then(setRun))} ...${bar()}><${Icon} name="stop" /> Stop</button>`
        : html`<button type="button" class="primary" data-test="run-matrix" onClick=${start} ...${bar()}><${Icon} name="play" /> Run the matrix</button>`}</header>
    ${!busy && html`<p class="matrix-choice">${Object.entries(can).map(([kind, names]) => html`<span role="group" aria-label=${kind}>${names.map((name) => html`
      <label><input type="checkbox" checked=${!left.has(name)} onChange=${toggle(name)} /> ${name}</label>`)}</span>`)}
      ${providers.filter((each) => !each.available).map((each) => html`<span class="meta" title=${each.reason}>${each.name}: ${each.reason}</span>`)}</p>`}
    ${error && html`<${Trouble} error=${error} again=${() => { setError(null); list(); }} />`}
    ${!runs && !error && html`<${Spinner} label="Loading" />`}
    ${runs && !run && !runs.length && html`<${Empty} title="No run yet" test="no-runs"><p>It runs every harness on every provider that can run here, with real sandboxes.</p><//>`}
    ${run && html`<${Grid} run=${run} cell=${cell} pick=${setCell} />`}
    ${runs?.length > 0 && html`<section class="runs"><h2>Runs</h2><ul class="plain-list">${runs.map((each) => html`<li data-test="matrix-run" data-passed=${each.passed} data-failed=${each.failed}><a href=${`#/matrix/${each.id}`} aria-current=${each.id === run?.id ? "true" : null}>
      ${new Date(each.created_at).toLocaleString()}</a> <span class=${each.failed ? "tone-bad" : each.state === "completed" ? "tone-good" : "meta"}>${each.state === "running" ? "running" : `${each.passed} passed${each.failed ? `, ${each.failed} failed` : ""}${each.skipped ? `, ${each.skipped} skipped` : ""}`}</span> <span class="meta">${ago(each.created_at)}</span></li>`)}</ul></section>`}
  </main>`;
}

function Grid({ run, cell, pick }) {
  const of = (harness, provider) => run.cells?.find((each) => each.harness === harness && each.provider === provider);
  const shownCell = cell && of(cell.harness, cell.provider);
  return html`<p class="matrix-sum" role="status">${run.state === "running" ? html`<span class="dot warn pulse"></span> Running: ` : ""}${count(run.passed, "cell")} passed, ${run.failed} failed, ${run.skipped} skipped${run.error ? `. ${shown(run.error.message ?? String(run.error))}` : ""}</p>
    <div class="table" data-test="wide" tabindex="0"><table class="grid"><thead><tr><th></th>${run.harnesses.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${run.providers.map((provider) => html`<tr><th scope="row">${provider}</th>${run.harnesses.map((harness) => {
      const each = of(harness, provider);
      const [tone, icon, word] = LOOK[each?.state ?? "waiting"];
      return html`<td><button type="button" class=${`cell ${tone}`} data-test="cell" data-state=${each?.state ?? "waiting"} aria-pressed=${shownCell === each && !!each} disabled=${!each} onClick=${() => pick(each)}>
        ${each?.state === "running" ? html`<span class="spinner" aria-hidden="true"></span>` : html`<${Icon} name=${icon} />`}<span>${word}</span><span class="num meta">${each?.took ? duration(each.took) : each?.state === "running" ? each.step ?? "" : ""}</span></button></td>`;
    })}</tr>`)}</tbody></table></div>
    ${shownCell && html`<section class="cell-details" data-test="cell-details" data-harness=${shownCell.harness} data-provider=${shownCell.provider} aria-label="Cell"><h2>${shownCell.harness} on ${shownCell.provider}</h2>
      ${shownCell.reason && html`<p class=${shownCell.state === "failed" ? "tone-bad" : ""}>${shown(shownCell.reason)}</p>`}
      <ol class="cell-steps">${shownCell.steps.map((step) => html`<li data-test="cell-step"><span>${step.name}</span><span class="num meta">${duration(step.took)}</span></li>`)}</ol>
      ${shownCell.session_id && shownCell.state === "running" && html`<p><a href=${`#/s/${shownCell.session_id}`}>Its session</a></p>`}</section>`}`;
}
