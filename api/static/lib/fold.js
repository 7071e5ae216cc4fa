// Events become items: what a reader sees of them. One pass, in order of `seq`.

import { inWorkspace } from "./text.js";
import { plus } from "./usage.js";

/**
 * @typedef {Record<string, any> & {seq: number, type: string, at: string}} Event
 * @typedef {{id: string, harness: string, provider: string, model?: string, started: string,
 *   ended: string|null, state: string, whole: boolean, receipt: Event|null, usage: import("./usage.js").Totals|null,
 *   memory: Event|null, paths: Set<string>, open: Set<Item>}} TurnView
 * @typedef {{kind: string, key: number, version: number, turn: TurnView|null} & Record<string, any>} Item
 */

const LINES = new Set([
  "sandbox.creating", "sandbox.ready", "sandbox.attached", "sandbox.gone", "sandbox.destroyed", "mount.ready",
  "mount.lost", "mount.restored", "workspace.restored", "workspace.verified", "workspace.swept", "run.adopted", "run.gap", "resume", "state.failed",
  "model.failed", "quota",
]);

export class Fold {
  constructor() {
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<string, TurnView>} */
    this.turns = new Map();
    /** @type {Map<string, Item>} */
    this.tools = new Map();
    /** @type {Map<string, Item>} */
    this.permissions = new Map();
    /** @type {TurnView|null} the turn that is running */
    this.running = null;
  }

  /** @param {Event} event */
  push(event) {
    const turn = this.turnOf(event);
    if (LINES.has(event.type)) return this.line(event, turn);
    const handler = HANDLERS[event.type];
    if (handler) handler(this, event, turn);
  }

  get last() {
    return this.items[this.items.length - 1];
  }

  add(kind, event, turn, fields) {
    const item = { kind, key: event.seq, version: 0, turn, at: event.at, ...fields };
    this.items.push(item);
    return item;
  }

  /** @returns {TurnView|null} */
  turnOf(event) {
    if (!event.turn_id) return null;
    let turn = this.turns.get(event.turn_id);
    if (!turn) {
      turn = {
        id: event.turn_id, harness: "", provider: "", started: event.at, ended: null, state: "running",
        whole: event.type === "turn.started", receipt: null, usage: null, memory: null, paths: new Set(),
        open: new Set(),
      };
      this.turns.set(event.turn_id, turn);
    }
    return turn;
  }

  line(event, turn) {
    const last = this.last;
    if (last?.kind === "line" && last.turn === turn) {
      last.events.push(event);
      last.version++;
    } else this.add("line", event, turn, { events: [event] });
  }

  text(kind, event, turn) {
    const last = this.last;
    if (last?.kind === kind && last.turn === turn) {
      last.text += event.text;
      last.until = event.at;
      last.version++;
    } else this.add(kind, event, turn, { text: event.text, until: event.at });
  }

  /** The card of a tool; of one whose call is further up than what is loaded, a card of its own. */
  tool(event, turn) {
    const id = `${event.turn_id}/${event.tool_call_id}`;
    let item = this.tools.get(id);
    if (!item) {
      const fields = { title: "", tool: "other", input: null, output: "", status: "pending", paths: [], diffs: [], until: null };
      item = this.add("tool", event, turn, fields);
      this.tools.set(id, item);
      turn?.open.add(item);
    }
    item.version++;
    return item;
  }

  /** The turn is over: what it left open is over too. */
  end(event, turn, state) {
    turn.state = state;
    turn.ended = event.at;
    if (this.running === turn) this.running = null;
    for (const item of turn.open) {
      if (item.kind === "tool") item.status = "cut off";
      else item.over = true;
      item.version++;
    }
    turn.open.clear();
    if (state !== "completed") this.add("end", event, turn, { state, error: event.error ?? null, reason: event.reason ?? "" });
    // of a turn whose beginning is not loaded, the end alone proves nothing
    if (turn.receipt) this.receiptItem(turn).version++;
    else if (turn.whole || turn.failed) this.add("receipt", event, turn, { proof: null });
  }

  receiptItem(turn) {
    return this.items.findLast((item) => item.kind === "receipt" && item.turn === turn);
  }
}

/** The id of the turn that is running. The stream knows of a turn before the session is read again. */
export function runningTurn(session, fold) {
  const told = session?.running_turn;
  return fold?.running?.id ?? (told && !fold?.turns.get(told)?.ended ? told : null);
}

const HANDLERS = {
  "turn.started": (fold, event, turn) => {
    Object.assign(turn, {
      harness: event.harness, provider: event.provider, model: event.model, reasoning: event.reasoning,
      permissions: event.permissions, started: event.at, whole: true,
    });
    fold.running = turn;
  },
  "turn.completed": (fold, event, turn) => fold.end(event, turn, "completed"),
  "turn.failed": (fold, event, turn) => fold.end(event, turn, "failed"),
  "turn.cancelled": (fold, event, turn) => fold.end(event, turn, "cancelled"),
  "turn.interrupted": (fold, event, turn) => fold.end(event, turn, "interrupted"),
  message: (fold, event, turn) =>
    event.role === "user"
      ? fold.add("user", event, turn, { text: event.text })
      : fold.text("assistant", event, turn),
  thought: (fold, event, turn) => fold.text("thought", event, turn),
  "tool.call": (fold, event, turn) => {
    const item = fold.tool(event, turn);
    item.title = event.title || item.title;
    item.tool = event.kind;
    item.input = event.input ?? item.input;
    touch(item, turn, event.paths);
  },
  "tool.update": (fold, event, turn) => {
    const item = fold.tool(event, turn);
    if (event.title) item.title = event.title;
    if (event.status) item.status = event.status;
    if (event.input != null) item.input = event.input;
    if (event.output != null) item.output = event.output;
    if (event.output_delta != null) item.output += event.output_delta;
  },
  "tool.result": (fold, event, turn) => {
    const item = fold.tool(event, turn);
    item.status = event.status;
    item.until = event.at;
    turn?.open.delete(item);
    item.output = event.output || item.output;
    item.diffs = event.diffs ?? [];
    touch(item, turn, event.paths);
  },
  plan: (fold, event, turn) => {
    const before = fold.items.findLast((item) => item.kind === "plan" && item.turn === turn);
    if (before) {
      before.entries = event.entries;
      before.version++;
    } else fold.add("plan", event, turn, { entries: event.entries });
  },
  "permission.asked": (fold, event, turn) => {
    const fields = { id: event.permission_id, title: event.title, options: event.options ?? [], event, answered: null, over: false };
    const item = fold.add("permission", event, turn, fields);
    fold.permissions.set(event.permission_id, item);
    turn?.open.add(item);
  },
  "permission.answered": (fold, event, turn) => {
    const item = fold.permissions.get(event.permission_id);
    if (!item) return;
    item.answered = event;
    turn?.open.delete(item);
    item.version++;
  },
  egress: (fold, event, turn) => {
    // never in the middle of what is being said
    const before = ["assistant", "thought"].includes(fold.last?.kind)
      && fold.items.findLast((item) => item.kind === "line" && item.turn === turn);
    if (!before) return fold.line(event, turn);
    before.events.push(event);
    before.version++;
  },
  usage: (fold, event, turn) => {
    if (turn) turn.usage = plus(turn.usage, event);
  },
  "state.captured": (fold, event, turn) => {
    if (turn) turn.memory = event;
  },
  receipt: (fold, event, turn) => {
    turn.receipt = event;
    fold.add("receipt", event, turn, { proof: event });
  },
  "receipt.failed": (fold, event, turn) => {
    turn.failed = event;
  },
};

function touch(item, turn, paths) {
  for (const path of paths ?? []) {
    const name = inWorkspace(path);
    if (!item.paths.includes(name)) item.paths.push(name);
    turn?.paths.add(name);
  }
}
