// The list of sessions: search, filter, and what each is doing.

import { ago, bytes, count, shown } from "../lib/text.js";
import { bar, reason } from "../me.js";
import { attempt, go, loadMoreSessions, refreshList, state, update } from "../state.js";
import { html, useRef } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { titleOf } from "./conversation.js";
import { Empty, Icon, IconButton, Trouble } from "./parts.js";

const STATES = {
  running: ["warn", "running"],
  waiting: ["warn", "waits for your permission"],
  not_durable: ["bad", "not durable"],
  idle: ["", ""],
};
const FILTERS = [["", "All"], ["running", "Running"], ["waiting", "Waiting"], ["not_durable", "Not durable"], ["archived", "Archived"]];

let typing = null;

function filter(change) {
  update({ filter: { ...state.filter, ...change } });
  clearTimeout(typing);
  typing = setTimeout(refreshList, "q" in change ? 180 : 0);
}

export function Sessions() {
  const { sessions, listState, listError, filter: wanted } = state;
  const current = wanted.archived === "true" ? "archived" : wanted.state;
  const pick = (name) => filter(name === "archived" ? { state: "", archived: "true" } : { state: name, archived: "false" });
  return html`<nav class="sessions" aria-label="Sessions">
    <div class="brand"><a href="#/" class="logo" data-test="home"><img src="/static/icon.svg" alt="" width="22" height="22" /> Holdfast</a>
      <span class="brand-buttons">
        <a class="icon-button" href="#/matrix" aria-label="Matrix" title="Matrix: every harness on every provider"><${Icon} name="grid" /></a>
        <${IconButton} icon="box" label="Sandboxes" onClick=${() => update({ dialog: { kind: "sandboxes" } })} />
        <${IconButton} icon="help" label="Keyboard and help" onClick=${() => update({ dialog: { kind: "help" } })} />
      </span></div>
    <button type="button" class="primary new" data-test="new-session" onClick=${() => update({ dialog: { kind: "new" } })} ...${bar()}><${Icon} name="plus" /> New session <kbd>n</kbd></button>
    <label class="search"><${Icon} name="search" /><span class="sr">Search titles and transcripts</span>
      <input id="search" data-test="search" type="search" placeholder="Search everything said" value=${wanted.q} onInput=${(e) => filter({ q: e.target.value })} /><kbd>/</kbd></label>
    <div class="filters" role="group" aria-label="Filter">${FILTERS.map(([name, text]) => html`
      <button type="button" aria-pressed=${current === name} onClick=${() => pick(name)}>${text}</button>`)}</div>
    <${List} sessions=${sessions} listState=${listState} listError=${listError} wanted=${wanted} />
    ${state.me && html`<p class="who" data-test="login" data-name=${state.me.name} data-role=${state.me.role} title=${bar().title ?? null}>Logged in as ${state.me.name}${bar().disabled ? html`. <span>${reason()}</span>` : ` (${state.me.role})`}</p>`}
  </nav>`;
}

function List({ sessions, listState, listError, wanted }) {
  const box = useRef(null);
  if (listState === "failed" && !sessions.length) return html`<${Trouble} error=${listError} again=${refreshList} />`;
  if (listState === "loading") return html`<div class="skeleton" role="status" aria-label="Loading">${[80, 60, 70].map((w) => html`<i class=${`w${w}`}></i>`)}</div>`;
  if (!sessions.length) {
    return wanted.q || wanted.state || wanted.archived === "true"
      ? html`<${Empty} title="Nothing found" test="nothing-found"><p>${wanted.q ? "No title and no transcript has all of these words." : "No session is like that now."}</p><//>`
      : html`<${Empty} title="No sessions yet"><p>Make one, or let Holdfast show you what it does.</p><//>`;
  }
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = [...box.current.querySelectorAll("a")];
    all[all.indexOf(document.activeElement) + step]?.focus();
    event.preventDefault();
  };
  return html`<ul class="session-list" ref=${box} onKeyDown=${move}>
    ${sessions.map((session) => html`<${Entry} key=${session.id} session=${session} />`)}
    ${state.more && html`<li><button type="button" class="link" onClick=${() => attempt(loadMoreSessions)}>Show more</button></li>`}
  </ul>`;
}

function Entry({ session }) {
  const [tone, text] = STATES[session.state ?? (session.running_turn ? "running" : session.durable === false ? "not_durable" : "idle")];
  const turn = session.last_turn;
  const open = state.route.sid === session.id;
  const match = session.match;
  const dot = tone || (session.durable ? "good" : "");
  return html`<li><a href=${match ? `#/s/${session.id}/e/${match.seq}` : `#/s/${session.id}`} aria-current=${open ? "true" : null} onClick=${() => open && go(match ? `#/s/${session.id}/e/${match.seq}` : `#/s/${session.id}`)}>
    <span class="entry-top"><span class=${`dot ${dot} ${tone === "warn" ? "pulse" : ""}`} title=${text || (session.durable ? "safe" : "")}></span>
      <span class="entry-title" dir="auto">${shown(titleOf(session))}</span><time class="num" datetime=${session.updated_at}>${ago(session.updated_at)}</time></span>
    ${match && html`<span class="entry-match" dir="auto">${marked(shown(match.text), state.filter.q)}</span>`}
    <span class="entry-more">${turn?.harness ?? session.harness} · ${turn?.provider ?? session.provider}${session.model ? ` · ${session.model}` : ""}${text ? html` · <span class=${`tone-${tone}`}>${text}</span>` : ""}${session.queued ? ` · ${session.queued} queued` : ""}
      <span class="entry-size">${session.last_seq > 0 && count(session.last_seq, "event")}${session.bytes != null ? ` · ${bytes(session.bytes)}` : ""}</span></span>
  </a></li>`;
}

/** The words that were searched for stand out in what was found. */
function marked(text, q) {
  const words = q.trim().split(/\s+/).filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!words.length) return text;
  return text.split(new RegExp(`(${words.join("|")})`, "i")).map((part, i) => (i % 2 ? html`<mark>${part}</mark>` : part));
}
