// A plain page: sessions on the left, the chosen one's transcript, live, on the right.
// Everything an agent says goes through textContent.

const $ = (id) => document.getElementById(id);
/** @type {{id: string, title: string}|null} */
let session = null;
let turn = null;
let source = null;
let lastText = null;

async function call(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: body ? { "Content-Type": "application/json" } : {},
    body: body ? JSON.stringify(body) : undefined,
  });
  const json = await answer.json();
  if (!answer.ok) throw new Error(`${json.error.message} ${json.error.hint}`);
  return json;
}

/** Run something for the user; what goes wrong is shown, not thrown. */
function attempt(action) {
  return async (event) => {
    event?.preventDefault();
    $("trouble").hidden = true;
    try {
      await action(event);
    } catch (error) {
      $("trouble").textContent = error.message;
      $("trouble").hidden = false;
    }
  };
}

function mark(text) {
  const span = document.createElement("span");
  span.className = "bad";
  span.textContent = text;
  return span;
}

async function listSessions() {
  const { sessions } = await call("GET", "/sessions?limit=100");
  $("sessions").replaceChildren(...sessions.map((item) => {
    const button = document.createElement("button");
    button.textContent = item.title || `${item.harness}, ${new Date(item.created_at).toLocaleString()}`;
    if (item.durable === false) button.append(mark(" ✗ not durable"));
    if (item.queued) button.append(` · ${item.queued} queued`);
    if (item.id === session?.id) button.setAttribute("aria-current", "true");
    button.onclick = attempt(() => choose(item));
    const row = document.createElement("li");
    row.append(button);
    return row;
  }));
}

async function choose(item) {
  source?.close();
  session = item;
  lastText = null;
  setTurn(null);
  $("title").textContent = `${item.title || "Untitled"} · ${item.harness} · ${item.provider}`;
  $("transcript").replaceChildren();
  $("prompt").hidden = false;
  // the browser comes back by itself with Last-Event-ID after a broken connection
  source = new EventSource(`/sessions/${item.id}/events?follow=true`);
  source.onmessage = (message) => show(JSON.parse(message.data));
  await listSessions();
}

function setTurn(id) {
  turn = id;
  $("send").disabled = id !== null;
  $("cancel").disabled = id === null;
}

/** The event as one line of text, and how it looks. */
function describe(event) {
  switch (event.type) {
    case "message": return [event.text, event.role];
    case "thought": return [event.text, "detail"];
    case "tool.call": return [`▸ ${event.title || event.kind}`, "detail"];
    case "tool.result": return [(event.output || event.status).slice(0, 4000), "detail"];
    case "receipt": return [`✓ stored: ${event.files} files, ${event.bytes} bytes (${event.engine})`, "good"];
    case "receipt.failed": return [notDurable(event), "bad"];
    case "turn.failed":
    case "turn.interrupted": return [`${event.type}: ${event.error.message} ${event.error.hint ?? ""}`, "bad"];
    case "resume": return [`resume: ${event.rung}${event.carried ? `, with ${event.carried}` : ""}`, "detail"];
    case "mount.lost": return [`workspace lost: ${event.reason}`, "bad"];
    case "run.adopted": return [`the turn goes on: ${event.reason}`, "detail"];
    case "state.failed": return [`the memory of ${event.harness} was not stored: ${event.reason}`, "detail"];
    case "workspace.swept": return [`removed ${event.paths.join(", ")}: ${event.reason}`, "detail"];
    case "tool.update": case "usage": case "raw": case "plan": case "state.captured": return null;
    default: return [event.type, "detail"];
  }
}

/** What is not proven to be in the store, with the reason for each file. */
function notDurable(event) {
  const files = Object.entries(event.files ?? {}).map(([path, reason]) => `\n  ${path}: ${reason}`);
  return `✗ not durable (${event.engine}): ${event.reason}${files.join("")}`;
}

function show(event) {
  if (event.type === "turn.started") setTurn(event.turn_id);
  else if (event.type.startsWith("turn.")) setTurn(null);
  const described = describe(event);
  if (described === null) return;
  const [text, look] = described;
  const list = $("transcript");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 50;
  if (look === "assistant" && lastText !== null) {
    lastText.textContent += text;
  } else {
    const line = document.createElement("li");
    line.className = look;
    line.textContent = text;
    list.append(line);
    lastText = look === "assistant" ? line : null;
  }
  if (atEnd) list.scrollTop = list.scrollHeight;
}

$("new").onsubmit = attempt(async () => {
  await choose(await call("POST", "/sessions", { harness: $("harness").value }));
});

$("prompt").onsubmit = attempt(async () => {
  await call("POST", `/sessions/${session.id}/turns`, { prompt: $("text").value });
  $("text").value = "";
});

$("text").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("prompt").requestSubmit();
};

$("cancel").onclick = attempt(() => call("POST", `/sessions/${session.id}/turns/${turn}/cancel`));

await attempt(async () => {
  const { harnesses, default_harness } = await call("GET", "/capabilities");
  $("harness").replaceChildren(...harnesses.map((harness) => {
    const option = document.createElement("option");
    option.value = harness.name;
    option.textContent = harness.title;
    option.selected = harness.name === default_harness;
    return option;
  }));
})();
await attempt(listSessions)();
