// The page: three columns, the dialogs, the keyboard.

import { link } from "./api.js";
import { runningTurn } from "./lib/fold.js";
import { bar, refreshMe } from "./me.js";
import { attempt, cancelTurn, dismiss, navigate, refreshAll, refreshList, state, update, useUpdates } from "./state.js";
import { Conversation, titleOf } from "./ui/conversation.js";
import { Dialogs } from "./ui/dialogs.js";
import { Files } from "./ui/files.js";
import { Icon, IconButton, Spinner, Trouble } from "./ui/parts.js";
import { Sandbox } from "./ui/sandbox.js";
import { Sessions } from "./ui/sessions.js";
import { html, render, useEffect, useState } from "./vendor/preact-11.2.0-htm-3.1.1.js";

const LIST_EVERY = 4000;

function App() {
  const { route, session, pane, preview, demo } = useUpdates();
  useEffect(() => {
    document.title = session ? `${session.running_turn ? "\u25cf " : ""}${titleOf(session)} - Holdfast` : "Holdfast";
  }, [session]);
  return html`<${Offline} />
    <div class="app" data-test="app" data-pane=${pane} data-page=${route.page}>
      <${Sessions} />
      ${route.page === "matrix" ? html`<${Later} load=${() => import("./ui/matrix.js")} key="matrix" />` : route.page === "session" ? html`<${Conversation} />` : html`<${Welcome} />`}
      ${route.page === "session" && html`<aside class="side" aria-label="Sandbox and files">${session && html`<${Sandbox} session=${session} /><${Files} sid=${session.id} key=${session.id} />`}</aside>`}
    </div>
    ${route.page === "session" ? html`<${Tabs} pane=${pane} />` : null}
    ${demo && html`<${Later} load=${() => import("./ui/demo.js")} key="demo" />`}
    <${Dialogs} />
    ${preview && session && html`<${Later} load=${() => import("./ui/preview.js")} key=${`preview ${preview.path}`} />`}
    <${Toasts} />`;
}

/** A part that is fetched when it is first shown. */
function Later({ load }) {
  const [part, setPart] = useState(null);
  const [failed, setFailed] = useState(false);
  useEffect(() => void load().then((made) => setPart(() => made.default ?? made.Preview), () => setFailed(true)), []);
  if (failed) return html`<div class="later"><${Trouble} error=${{ message: "A part of the page could not be loaded.", hint: "" }} again=${() => location.reload()} /></div>`;
  return part ? html`<${part} />` : html`<div class="later"><${Spinner} label="Loading" /></div>`;
}

const Offline = () => !link.up && html`<div class="offline" data-test="offline" role="alert"><span class="spinner" aria-hidden="true"></span>
  <span><strong>The api does not answer.</strong> What runs goes on without this page; it comes back by itself.</span></div>`;

const Welcome = () => html`<main class="welcome" data-test="welcome">
  <img src="/static/icon.svg" alt="" width="56" height="56" />
  <h1>Sessions that hold fast</h1>
  <p>Kill the sandbox at any moment, carry on in another one, with another harness: the files and the conversation are still there, with proof. Every turn ends with a receipt.</p>
  <p class="buttons center">
    <button type="button" class="primary" data-test="show-me" onClick=${() => update({ demo: true })} ...${bar()}><${Icon} name="play" /> Show me</button>
    <button type="button" class="wide-only" onClick=${() => update({ dialog: { kind: "new" } })} ...${bar()}><${Icon} name="plus" /> New session</button>
    <a class="button" href="#/matrix"><${Icon} name="grid" /> Matrix</a></p>
</main>`;

const TABS = [["sessions", "Sessions", "list"], ["conversation", "Conversation", "terminal"], ["files", "Files", "folder"]];
const Tabs = ({ pane }) => html`<nav class="tabs" aria-label="Panes">${TABS.map(([name, text, icon]) => html`
  <button type="button" aria-pressed=${pane === name} onClick=${() => update({ pane: name })}><${Icon} name=${icon} />${text}</button>`)}</nav>`;

const Toasts = () => html`<div class="toasts" data-test="toasts" role="status" aria-live="polite">${state.toasts.map((each) => html`<div key=${each.id} class=${`toast ${each.tone}`}>
  <span>${each.text} ${each.hint && html`<span class="meta">${each.hint}</span>`}</span><${IconButton} icon="close" label="Dismiss" onClick=${() => dismiss(each.id)} /></div>`)}</div>`;

function onKey(event) {
  if (event.key === "." && (event.ctrlKey || event.metaKey)) {
    const turn = runningTurn(state.session, state.transcript?.fold);
    if (turn && !bar().disabled) attempt(() => cancelTurn(state.session.id, turn));
    return event.preventDefault();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || state.dialog || state.preview) return;
  if (event.target.closest?.("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const focus = (selector) => requestAnimationFrame(() => document.querySelector(selector)?.focus());
  const acts = {
    n: () => bar().disabled || update({ dialog: { kind: "new" } }),
    "/": () => { update({ pane: "sessions" }); focus("#search"); },
    c: () => { update({ pane: "conversation" }); focus("#prompt"); },
    f: () => { update({ pane: "files" }); focus(".rows button, .files button"); },
    "?": () => update({ dialog: { kind: "help" } }),
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
}

document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", navigate);
setInterval(() => document.hidden || !link.up || refreshList(), LIST_EVERY);
document.addEventListener("visibilitychange", () => document.hidden || refreshList());
render(html`<${App} />`, document.getElementById("app"));
refreshMe();
refreshAll();
navigate();
