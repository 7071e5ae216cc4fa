// The conversation: what it is called, where it runs, what is safe; its rows; the composer.

import { link } from "../api.js";
import { safety } from "../lib/lifecycle.js";
import { ago, count, shown } from "../lib/text.js";
import { used, whole } from "../lib/usage.js";
import { bar } from "../me.js";
import { attempt, go, patchSession, reload, state, update } from "../state.js";
import { html, useRef, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Composer } from "./composer.js";
import { Row } from "./items.js";
import { VirtualList } from "./list.js";
import { Empty, Icon, Menu, Spinner, Trouble } from "./parts.js";

export function Conversation() {
  const { session, transcript, sessionError } = state;
  if (sessionError) {
    return html`<main class="conversation"><${Trouble} error=${sessionError} again=${sessionError.status === 404 ? null : reload} />
      <p class="center"><a href="#/" data-test="all-sessions">All sessions</a></p></main>`;
  }
  if (!session || !transcript) return html`<main class="conversation"><${Skeleton} /></main>`;
  return html`<main class="conversation" aria-label="Conversation">
    <${Head} session=${session} transcript=${transcript} />
    <${Body} session=${session} transcript=${transcript} key=${session.id} />
    <${Composer} session=${session} transcript=${transcript} key=${`c${session.id}`} />
  </main>`;
}

const Skeleton = () => html`<div class="skeleton" role="status" aria-label="Loading">
  ${[60, 90, 75, 40].map((width) => html`<i class=${`w${width}`}></i>`)}</div>`;

export const titleOf = (session) => session.title || "Untitled session";

function Head({ session, transcript }) {
  const [name, setName] = useState(null);
  const save = (event) => {
    event.preventDefault();
    const title = name.trim();
    setName(null);
    if (title !== session.title) attempt(() => patchSession(session.id, { title }));
  };
  return html`<header class="head">
    <div class="head-title">
      ${name === null
        ? html`<h1 dir="auto" data-test="session-title" title=${bar().title ?? "Rename"} onDblClick=${() => bar().disabled || setName(session.title)}>${shown(titleOf(session))}</h1>`
        : html`<form onSubmit=${save}><input aria-label="Title" maxlength="200" value=${name} autofocus ref=${(el) => el && document.activeElement !== el && el.focus()}
            onInput=${(e) => setName(e.target.value)} onBlur=${save} onKeyDown=${(e) => e.key === "Escape" && setName(null)} /></form>`}
      <${Menu} label="Session menu" items=${[
        { icon: "pencil", text: "Rename", act: () => setName(session.title) },
        { icon: "zap", text: "Budget…", act: () => update({ dialog: { kind: "budget", session } }) },
        { icon: "archive", text: session.archived ? "Bring back" : "Archive", act: () => attempt(() => patchSession(session.id, { archived: !session.archived })) },
        { icon: "link", text: "Egress…", act: () => update({ dialog: { kind: "egress", session } }) },
        { icon: "trash", text: "Delete…", danger: true, act: () => update({ dialog: { kind: "delete", session } }) },
      ]} />
    </div>
    <${Strip} session=${session} transcript=${transcript} />
  </header>`;
}

/** Always in sight: where it runs, whether it is live, what is safe. */
function Strip({ session, transcript }) {
  const { sandbox } = state;
  const running = transcript.fold.running ?? null;
  const turn = running ?? session.last_turn;
  const safe = safety(session, running);
  const live = !link.up ? ["bad", "Offline", "the api does not answer", "offline"]
    : transcript.atEnd && !transcript.live ? ["warn", "Connecting", "", "connecting"]
    : session.waiting ? ["warn", "Waiting for you", count(session.waiting, "permission"), "waiting"]
    : running ? ["warn", "Working", running.harness, "working"]
    : ["calm", "Live", "every event as it happens", "live"];
  return html`<dl class="strip">
    <div data-test="place" data-provider=${sandbox?.provider ?? ""} data-egress=${session.egress ?? null}><dt>Runs on</dt><dd><span class=${`dot ${sandbox ? "calm" : ""}`}></span><b>${sandbox ? sandbox.provider : "no sandbox"}</b>
      <span class="strip-more">${sandbox ? `${turn?.harness ?? session.harness} · since ${ago(sandbox.created_at) || "now"}` : `next: ${turn?.harness ?? session.harness} on ${turn?.provider ?? session.provider}`}${session.egress && session.egress !== "off" ? ` · egress ${session.egress}` : ""}</span></dd></div>
    <div data-test="liveness" data-state=${live[3]}><dt>State</dt><dd role="status"><span class=${`dot ${live[0]} ${running && link.up ? "pulse" : ""}`}></span><b>${live[1]}</b> <span class="strip-more">${live[2]}</span></dd></div>
    <div class=${`safe ${safe.tone}`} data-test="safety" data-tone=${safe.tone}><dt>Files</dt><dd><span class=${`dot ${safe.tone}`}></span><b>${safe.word}</b> <span class="strip-more">${safe.text}</span></dd></div>
    ${(session.usage.requests > 0 || session.budget) && html`<${Used} session=${session} />`}
  </dl>`;
}

function Used({ session }) {
  const { word, text, tone } = used(session);
  return html`<div class="used" data-test="usage" data-tone=${tone}><dt>Models</dt><dd title=${whole(session.usage)}><span class=${`dot ${tone}`}></span><b class=${tone && `tone-${tone}`}>${word}</b> <span class="strip-more">${text}</span></dd></div>`;
}

function Body({ session, transcript }) {
  const list = useRef(null);
  if (transcript.state === "failed") return html`<div class="body"><${Trouble} error=${transcript.error} again=${reload} /></div>`;
  if (transcript.state === "loading" && !transcript.events.length) return html`<div class="body"><${Skeleton} /></div>`;
  const { items } = transcript.fold;
  if (!items.length && transcript.atEnd) return html`<div class="body"><${Start} session=${session} /></div>`;
  const target = state.route.seq;
  const latest = () => {
    if (transcript.atEnd && !target) {
      const el = list.current.querySelector(".vlist");
      el.scrollTop = el.scrollHeight;
    } else if (target) go(`#/s/${session.id}`), transcript.openAtEnd(session.last_seq);
    else transcript.openAtEnd(session.last_seq);
  };
  return html`<div class="body" ref=${list}>
    ${transcript.busy && html`<p class="paging"><${Spinner} label="Loading" /></p>`}
    <${VirtualList} items=${items} stamp=${transcript.generation} row=${(item) => html`<${Row} item=${item} />`} label="Transcript"
      older=${() => transcript.older()} newer=${() => transcript.newer()} target=${target} follows=${transcript.atEnd} />
    <button type="button" class="latest" data-test="latest" onClick=${latest}><${Icon} name="down" /> Latest</button>
  </div>`;
}

const EXAMPLES = [
  ["Write and check a file", "write hello to hello.txt then run: sha256sum hello.txt"],
  ["Remember something", "remember the launch code is 42"],
  ["Run for a while", "wait 20 seconds then say done"],
];

function Start({ session }) {
  const fill = (text) => () => {
    const box = document.querySelector("#prompt");
    box.value = text;
    box.dispatchEvent(new Event("input", { bubbles: true }));
    box.focus();
  };
  return html`<${Empty} title="What shall the agent do?">
    <p>${session.harness} runs in a sandbox on ${session.provider}. Its files are kept in the store: each turn ends with a receipt that proves it.</p>
    <p class="buttons center">${EXAMPLES.map(([name, text]) => html`<button type="button" onClick=${fill(text)} ...${bar()}>${name}</button>`)}</p>
  <//>`;
}
