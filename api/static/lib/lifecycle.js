// What happens under a conversation, told in a few words each.

import { bytes, count, duration } from "./text.js";

/** @typedef {{text: string, tone: ""|"good"|"warn"|"bad", detail: string, at: string, event: any}} Step */

const RUNGS = {
  new: "new conversation",
  warm: "went on in the same process",
  native: "resumed natively",
  repaired: "resumed natively, after a repair",
  handoff: "handed over with a briefing",
};

const took = (s) => (s > 0 ? ` in ${duration(s)}` : "");

const STEPS = {
  "sandbox.ready": (e) => [`new sandbox on ${e.provider}${took(e.took)}${e.network === "provider" ? ", with the provider's network" : ""}`, "", e.sandbox_id],
  "sandbox.attached": (e) => [`same sandbox on ${e.provider}`, "", e.sandbox_id],
  "sandbox.gone": (e) => [`sandbox gone: ${e.reason || "it does not exist any more"}`, "warn", e.sandbox_id],
  "sandbox.destroyed": (e) => [`sandbox destroyed`, "", [e.sandbox_id, e.proof].filter(Boolean).join(": ")],
  "mount.ready": (e) => [`mounted by ${e.engine}${took(e.took)}`, "", e.why],
  "mount.lost": (e) => [`mount lost: ${e.reason}`, "bad", e.engine],
  "mount.restored": (e) => [`mounted again by ${e.engine}${took(e.took)}`, "", ""],
  "workspace.restored": (e) => {
    const parts = ["symlinks", "modes", "mtimes", "directories"].filter((name) => e[name]).map((name) => `${e[name]} ${name}`);
    const problems = Object.entries(e.problems ?? {}).map(([path, why]) => `${path}: ${why}`);
    return [`put back ${parts.join(", ") || "nothing"}`, problems.length ? "warn" : "", problems.join("\n")];
  },
  "workspace.verified": (e) => e.files === e.of
    ? [`${count(e.of, "file")} verified`, "good", "in the store, as the last receipt says"]
    : [`${e.files} of ${count(e.of, "file")} as in the last receipt`, "warn", `changed since: ${e.changed.join(", ")}`],
  "workspace.swept": (e) => [`swept ${count(e.paths.length, "stale lock")}`, "", `${e.paths.join(", ")} ${e.reason}`],
  "run.gap": (e) => [`the sidecar lost ${count(e.lines, "line")} of the turn's journal`, "warn", e.reason],
  "run.adopted": (e) => ["the turn goes on with a new sidecar", "warn", e.reason],
  resume: (e) => [
    `${RUNGS[e.rung] ?? e.rung}`, "",
    [e.carried && `carried: ${e.carried}`, e.dropped && `left out: ${e.dropped}`,
      Object.entries(e.steps ?? {}).map(([name, s]) => `${name} ${duration(s)}`).join(", ")].filter(Boolean).join("\n"),
  ],
  egress: (e) => {
    const where = e.port ? `${e.host}:${e.port}` : e.host || "more hosts";
    const detail = [e.method, count(e.connections, "connection"), e.reason].filter(Boolean).join(", ");
    if (e.verdict === "refused") return [`egress refused: ${where}`, "warn", detail];
    return [`egress: ${where}, ${bytes(e.bytes_up)} up, ${bytes(e.bytes_down)} down`, "", detail];
  },
  "model.failed": (e) => [`the model API failed${e.status ? ` (${e.status})` : ""}: ${e.message}`, "warn", e.model],
  quota: (e) => ["over the quota: the next turn is refused", "warn", e.message],
  "state.failed": (e) => [`the memory of ${e.harness} was not stored`, "warn", e.reason],
};

/** The steps of a thin line; what is only beginning counts while nothing follows it. @returns {Step[]} */
export function steps(events) {
  const out = [];
  events.forEach((event, i) => {
    if (event.type === "sandbox.creating") {
      const later = events.slice(i + 1).some((each) => each.type.startsWith("sandbox."));
      if (!later) out.push({ text: `starting a sandbox on ${event.provider}`, tone: "warn", detail: "", at: event.at, event });
      return;
    }
    const [text, tone, detail] = STEPS[event.type](event);
    out.push({ text, tone, detail: detail ?? "", at: event.at, event });
  });
  return out;
}

/** What is safe, in one word and one sentence, for the strip that is always in sight. */
export function safety(session, running) {
  if (!session) return { tone: "", word: "", text: "" };
  const files = session.files != null ? `${count(session.files, "file")} in the store` : "";
  if (running || session.running_turn) {
    return { tone: "warn", word: "Not yet safe", text: files ? `a turn runs; ${files} before it` : "a turn runs" };
  }
  if (session.durable === true) return { tone: "good", word: "Safe", text: files || "proven by a receipt" };
  if (session.durable === false) return { tone: "bad", word: "Not durable", text: "the last turn has no receipt" };
  return { tone: "", word: "Nothing yet", text: "no turn has run" };
}

const COMMAND = ["command", "cmd", "script"];
const PATH = ["file_path", "filePath", "path", "filename", "pattern", "query", "url"];

/** What a tool was called with, as a line: a command, or a path. */
export function toolSummary(input) {
  if (!input || typeof input !== "object") return typeof input === "string" ? input : "";
  for (const name of COMMAND) {
    const value = input[name];
    if (typeof value === "string") return value;
    if (Array.isArray(value)) return value.slice(value[0]?.endsWith?.("sh") ? 2 : 0).join(" ");
  }
  for (const name of PATH) if (typeof input[name] === "string") return input[name];
  return "";
}

/** Lines taken out and put in, between what both have at the beginning and at the end. */
export function difference(before, after) {
  const [a, b] = [(before ?? "").split("\n"), (after ?? "").split("\n")];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const context = (lines, from, to) => lines.slice(from, to).map((line) => ` ${line}`);
  return [
    ...context(a, Math.max(0, start - 2), start),
    ...(before == null ? [] : a.slice(start, a.length - end).map((line) => `-${line}`)),
    ...b.slice(start, b.length - end).map((line) => `+${line}`),
    ...context(a, a.length - end, Math.min(a.length, a.length - end + 2)),
  ].join("\n");
}
