// What the page knows, in one place, and the actions that change it.

import { Failure, get, link, patch, post, query, remove } from "./api.js";
import { Transcript } from "./transcript.js";
import { useEffect, useState } from "./vendor/preact-11.2.0-htm-3.1.1.js";

export const state = {
  route: { page: "home", sid: null, seq: null },
  me: null, // whose login this is: name and role
  capabilities: null,
  capabilitiesError: null,
  sessions: [],
  more: null, // the cursor of the next page
  listState: "loading", // loading, ready, failed
  listError: null,
  filter: { q: "", state: "", archived: "false" },
  session: null,
  sessionError: null,
  transcript: null,
  turns: { queued: [] },
  sandbox: null,
  pane: "conversation", // what a narrow screen shows: sessions, conversation, files
  dialog: null,
  toasts: [],
  preview: null,
  filesStamp: 0, // grows when files may have changed
};

const listeners = new Set();
let scheduled = false;

/** Change the state; the page follows in the next frame at the latest. */
export function update(change) {
  if (change) Object.assign(state, change);
  if (scheduled) return;
  scheduled = true;
  queueMicrotask(() => {
    scheduled = false;
    for (const listener of listeners) listener();
  });
}

/** Draw again when the state changes. */
export function useUpdates() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((n) => n + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return state;
}

link.listeners.add(() => {
  update();
  if (link.up) refreshAll();
});

// ---- Telling -------------------------------------------------------------------------------------

let toastId = 0;

/** @param {string} text @param {"info"|"bad"} tone */
export function toast(text, tone = "info", hint = "") {
  const id = ++toastId;
  update({ toasts: [...state.toasts.slice(-3), { id, text, tone, hint }] });
  setTimeout(() => dismiss(id), tone === "bad" ? 12000 : 5000);
}

export const dismiss = (id) => update({ toasts: state.toasts.filter((each) => each.id !== id) });

/** Run an action of the user; what goes wrong is told. @returns {Promise<any>} undefined after a failure */
export async function attempt(action) {
  try {
    return await action();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    toast(error.message, "bad", error.hint);
  }
}

// ---- Where we are --------------------------------------------------------------------------------

export function readRoute(hash) {
  const parts = hash.replace(/^#\/?/, "").split("/");
  if (parts[0] === "s" && parts[1]) return { page: "session", sid: parts[1], seq: Number(parts[3]) || null };
  if (parts[0] === "matrix") return { page: "matrix", sid: null, seq: null, run: parts[1] ?? null };
  return { page: "home", sid: null, seq: null };
}

export const go = (hash) => {
  if (location.hash === hash) navigate();
  else location.hash = hash;
};

export function navigate() {
  const route = readRoute(location.hash);
  const before = state.route;
  update({ route, dialog: null, pane: route.page === "home" ? "sessions" : "conversation" });
  if (route.page !== "session") {
    leave();
  } else if (route.sid !== before.sid || !state.transcript) {
    open(route);
  } else if (route.seq) {
    state.transcript.openAt(route.seq);
  }
}

function leave() {
  state.transcript?.close();
  update({ transcript: null, session: null, sandbox: null, preview: null });
}

async function open(route) {
  leave();
  const known = state.sessions.find((each) => each.id === route.sid) ?? null;
  const transcript = new Transcript(route.sid, (arrived) => onEvents(transcript, arrived));
  update({ transcript, session: known, sessionError: null, turns: { queued: [] } });
  try {
    const asked = get(`/sessions/${route.sid}`).then((session) => {
      if (state.transcript === transcript) update({ session });
      return session;
    });
    if (route.seq) await transcript.openAt(route.seq);
    // what came after the list was read is told by the stream
    else await transcript.openAtEnd((known ?? (await asked)).last_seq);
    await asked;
    if (state.transcript !== transcript) return;
    refreshSandbox();
    refreshQueue();
  } catch (error) {
    if (state.transcript !== transcript) return;
    transcript.state = "failed";
    transcript.error = error;
    update({ sessionError: error });
  }
}

const MATTERS = /^(turn\.|receipt|permission\.|sandbox\.)/;

function onEvents(transcript, arrived) {
  if (state.transcript !== transcript) return;
  if (arrived?.some((event) => MATTERS.test(event.type))) {
    refreshSession();
    refreshSandbox();
    refreshQueue();
    refreshList();
  }
  if (arrived?.some((event) => /^(receipt|tool\.result|turn\.)/.test(event.type))) state.filesStamp++;
  update();
}

// ---- Reading -------------------------------------------------------------------------------------

/** At most one request of a kind at a time; a call meanwhile means once more after it. */
function single(action) {
  let running = false;
  let again = false;
  return async () => {
    if (running) {
      again = true;
      return;
    }
    running = true;
    do {
      again = false;
      try {
        await action();
      } catch (error) {
        if (!(error instanceof Failure)) throw error;
        if (action.failed) action.failed(error);
      }
    } while (again);
    running = false;
  };
}

async function listSessions() {
  const { q, state: wanted, archived } = state.filter;
  const asked = JSON.stringify(state.filter);
  const pages = Math.max(1, Math.ceil(state.sessions.length / 50));
  const page = await get(`/sessions${query({ limit: Math.min(200, pages * 50), q: q.trim(), state: wanted, archived })}`);
  if (asked !== JSON.stringify(state.filter)) return refreshList();
  update({ sessions: page.sessions, more: page.next_cursor, listState: "ready", listError: null });
}
listSessions.failed = (error) => {
  if (state.listState !== "ready" || error.status) update({ listState: "failed", listError: error });
};
export const refreshList = single(listSessions);

async function readSession() {
  const sid = state.route.sid;
  if (!sid) return;
  const session = await get(`/sessions/${sid}`);
  if (state.route.sid === sid) update({ session });
}
readSession.failed = (error) => {
  if (error.status !== 404) return;
  state.transcript?.close(); // deleted elsewhere: its stream would be asked for again and again
  update({ sessionError: error });
};
export const refreshSession = single(readSession);

export const refreshSandbox = single(async () => {
  const sid = state.route.sid;
  if (!sid) return;
  const { sandboxes } = await get("/sandboxes");
  if (state.route.sid === sid) update({ sandbox: sandboxes.find((each) => each.session_id === sid) ?? null });
});

export const refreshQueue = single(async () => {
  const session = state.session;
  if (!session) return;
  if (!session.queued && !state.turns.queued.length) return;
  const queued = [];
  let cursor = null; // those that wait come behind all that ran
  do {
    const page = await get(`/sessions/${session.id}/turns${query({ limit: 200, cursor })}`);
    queued.push(...page.turns.filter((turn) => turn.state === "queued"));
    cursor = page.next_cursor;
  } while (cursor);
  if (state.session?.id === session.id) update({ turns: { queued } });
});

async function readCapabilities() {
  update({ capabilities: await get("/capabilities"), capabilitiesError: null });
}
readCapabilities.failed = (capabilitiesError) => update({ capabilitiesError });
export const refreshCapabilities = single(readCapabilities);

export function refreshAll() {
  refreshCapabilities();
  refreshList();
  refreshSession();
  refreshSandbox();
  if (state.transcript?.state === "failed") navigateAgain();
}

function navigateAgain() {
  state.transcript?.close();
  update({ transcript: null });
  navigate();
}
export { navigateAgain as reload };

export async function loadMoreSessions() {
  const { q, state: wanted, archived } = state.filter;
  const page = await get(`/sessions${query({ limit: 50, cursor: state.more, q: q.trim(), state: wanted, archived })}`);
  const known = new Set(state.sessions.map((each) => each.id));
  update({ sessions: [...state.sessions, ...page.sessions.filter((each) => !known.has(each.id))], more: page.next_cursor });
}

// ---- Doing ---------------------------------------------------------------------------------------

export async function createSession(choices) {
  const session = await post("/sessions", choices);
  update({ sessions: [session, ...state.sessions] });
  go(`#/s/${session.id}`);
  refreshList();
  return session;
}

export async function patchSession(sid, change) {
  const session = await patch(`/sessions/${sid}`, change);
  if (state.session?.id === sid) update({ session });
  await refreshList();
}

export async function deleteSession(sid) {
  if (state.route.sid === sid) state.transcript?.close(); // its stream ends with the session
  try {
    await remove(`/sessions/${sid}`);
  } catch (error) {
    if (state.route.sid === sid) navigateAgain();
    throw error;
  }
  if (state.route.sid === sid) go("#/");
  update({ sessions: state.sessions.filter((each) => each.id !== sid) });
  await refreshList();
}

export async function startTurn(sid, prompt, { queue = false, ...choices } = {}) {
  const turn = await post(`/sessions/${sid}/turns`, { prompt, queue, ...choices });
  refreshSession().then(refreshQueue);
  refreshList();
  return turn;
}

export const cancelTurn = (sid, tid) => post(`/sessions/${sid}/turns/${tid}/cancel`);
