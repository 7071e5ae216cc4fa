// "Show me": a session that loses its sandbox and goes on with another harness, narrated.

import { get, lines, post } from "../api.js";
import { bytes, count, shown } from "../lib/text.js";
import { createSession, state, startTurn, update } from "../state.js";
import { html, useEffect, useRef, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Icon, IconButton, Spinner } from "./parts.js";

const TURN_WITHIN = 180_000;
const first = "write \"The tide comes in, the tide goes out.\\n\" to notes/tide.md then run: head -c 4096 /dev/urandom > random.bin && sha256sum random.bin\nremember the harbour is called Sele";
const second = "run: sha256sum random.bin && cat notes/tide.md\nrecall";

/** Which harnesses and providers the demo uses: two of each where there are two. */
export function cast({ harnesses, providers }) {
  const can = providers.filter((each) => each.available).map((each) => each.name);
  const names = harnesses.map((each) => each.name);
  const one = names.includes("pi") ? "pi" : names[0];
  // the two that start quickest
  const other = names.find((name) => name === "codex") ?? names.find((name) => name !== one) ?? one;
  return { one, other, here: can[0], there: can[1] ?? can[0] };
}

export default function Demo() {
  const [steps, setSteps] = useState([]);
  const [over, setOver] = useState(false);
  useEffect(() => {
    let gone = false;
    const say = (text, tone = "", detail = "") => !gone && setSteps((all) => [...all.map((each) => ({ ...each, now: false })), { text, tone, detail, now: true }]);
    play(say, () => gone).catch((error) => say(error.message, "bad", error.hint)).finally(() => {
      setSteps((all) => all.map((each) => ({ ...each, now: false })));
      setOver(true);
    });
    return () => void (gone = true);
  }, []);
  const box = useRef(null);
  useEffect(() => box.current.scrollTo({ top: box.current.scrollHeight }), [steps.length, over]);
  return html`<aside class="demo" data-test="demo" data-state=${over ? "over" : "playing"} ref=${box} aria-label="Demo"><header><h2><${Icon} name="play" /> Show me</h2>
      <${IconButton} icon="close" label="Close the demo" onClick=${() => update({ demo: false })} /></header>
    <ol role="log" aria-live="polite">${steps.map((step) => html`<li class=${step.tone} data-test="demo-step" data-tone=${step.tone}>${step.now && !over ? html`<span class="spinner" aria-hidden="true"></span>` : html`<${Icon} name=${step.tone === "bad" ? "cross" : "check"} />`}
      <span>${shown(step.text)}${step.detail && html`<span class="meta">${shown(step.detail)}</span>`}</span></li>`)}
      ${!steps.length && html`<li><${Spinner} label="Beginning" /></li>`}</ol></aside>`;
}

async function play(say, gone) {
  const { one, other, here, there } = cast(state.capabilities ?? (await get("/capabilities")));
  say(`A new session: ${one} in a sandbox on ${here}.`);
  const session = await createSession({ title: "Show me", harness: one, provider: here });
  say(`${one} writes two files, one of random bytes, and is told something to remember.`);
  const before = await turn(session.id, first, { harness: one, provider: here }, gone);
  proof(say, "The receipt", before);
  if (!before.receipt || gone()) return;
  const sum = await printed(before);
  say("The sandbox is killed now: SIGKILL, nothing is saved first.", "warn");
  await post(`/sessions/${session.id}/kill`);
  say(`Dead. Now ${other} goes on, in a new sandbox on ${there}: it must find the same bytes, and know what was said.`);
  const after = await turn(session.id, second, { harness: other, provider: there }, gone);
  proof(say, "The receipt after", after);
  const again = await printed(after);
  const told = await said(after);
  say(sum && sum === again ? "The random bytes are the same." : "The bytes differ.", sum && sum === again ? "good" : "bad", again);
  const knows = told.includes("Sele");
  say(knows ? `${other} knows what ${one} was told: the harbour is called Sele.` : `${other} was not told of the harbour.`, knows ? "good" : "bad");
  say("That is all. Ask it something, or look at the files.", "good");
}

function proof(say, what, turn) {
  if (turn.receipt) say(`${what}: ${count(turn.receipt.files, "file")}, ${bytes(turn.receipt.bytes)} proven to be in the store.`, "good", turn.receipt.manifest_sha256);
  else say(`${what} is missing: ${turn.error?.message ?? turn.not_durable?.reason ?? turn.state}`, "bad");
}

async function turn(sid, prompt, choices, gone) {
  const { id } = await startTurn(sid, prompt, choices);
  for (const until = Date.now() + TURN_WITHIN; Date.now() < until && !gone(); ) {
    const now = await get(`/sessions/${sid}/turns/${id}`).catch((error) => {
      if (!error.retryable) throw error; // the turn goes on without this page
    });
    if (now && now.state !== "running" && now.state !== "queued") return now;
    await new Promise((go) => setTimeout(go, 400));
  }
  throw new Error(gone() ? "The demo was closed." : "The turn takes longer than three minutes.");
}

const eventsOf = (turn) => lines(`/sessions/${turn.session_id}/events?after=${turn.first_seq - 1}&limit=${turn.last_seq - turn.first_seq + 1}`);
const printed = async (turn) => (await eventsOf(turn)).map((event) => event.output ?? "").join("\n").match(/[0-9a-f]{64}/)?.[0] ?? "";
const said = async (turn) => (await eventsOf(turn)).filter((event) => event.type === "message" && event.role === "assistant").map((event) => event.text).join("");
