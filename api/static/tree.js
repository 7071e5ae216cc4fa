// The tree of a session's files: folders loaded when they are opened, page by page.

import { get, query } from "./api.js";

const PAGE = 1000;

export class Tree {
  /** @param {string} sid @param {boolean} live @param {() => void} changed */
  constructor(sid, live, changed) {
    this.sid = sid;
    this.live = live;
    this.changed = changed;
    /** @type {Map<string, {entries: any[], cursor: string|null, state: string, error: any, removed: string[]}>} */
    this.folders = new Map();
    this.open = new Set([""]);
    this.load("");
  }

  async load(path, more = false) {
    const before = this.folders.get(path);
    if (before?.state === "loading") return void (before[more ? "onward" : "again"] = true);
    const folder = before ?? { entries: [], cursor: null, error: null, removed: [] };
    this.folders.set(path, folder);
    folder.state = "loading";
    this.changed();
    try {
      // as far as it was read before, so that a reader far down stays there
      const wanted = more ? 0 : folder.entries.length;
      let entries = more ? folder.entries : [];
      let removed = more ? folder.removed : [];
      let cursor = more ? folder.cursor : null;
      do {
        const page = await get(`/sessions/${this.sid}/${this.live ? "live" : "files"}${query({ path, limit: PAGE, cursor })}`);
        entries = entries.concat(page.entries);
        removed = removed.concat(page.removed ?? []);
        cursor = page.next_cursor;
      } while (cursor && entries.length < wanted);
      Object.assign(folder, { entries, removed, cursor });
      folder.state = "ready";
      folder.error = null;
    } catch (error) {
      folder.state = "failed";
      folder.error = error;
      if (error.status === 404 && path) this.open.delete(path);
    }
    this.changed();
    // What was asked for meanwhile; nobody asks again.
    const { again, onward } = folder;
    folder.again = folder.onward = false;
    if (again) await this.load(path);
    if (onward && folder.state === "ready" && folder.cursor) await this.load(path, true);
  }

  toggle(path) {
    if (this.open.delete(path)) return this.changed();
    this.open.add(path);
    return this.load(path);
  }

  /** Read again what is open, from the top: a folder that is gone is not asked for. */
  async refresh(path = "") {
    await this.load(path);
    const folder = this.folders.get(path);
    const prefix = path ? `${path}/` : "";
    const below = [...this.open].filter((each) => each && each.startsWith(prefix) && !each.slice(prefix.length).includes("/"));
    for (const each of below) {
      const there = folder.cursor || folder.entries.some((entry) => entry.path === each && entry.kind === "directory");
      if (there) await this.refresh(each);
      else for (const open of [...this.open]) if (open === each || open.startsWith(`${each}/`)) this.open.delete(open);
    }
    this.changed();
  }

  /** What is in sight of the tree, as rows. */
  rows() {
    const out = [];
    const walk = (path, depth) => {
      const folder = this.folders.get(path);
      if (!folder) return;
      for (const entry of sorted(folder.entries)) {
        out.push({ kind: "entry", key: entry.path, depth, entry });
        if (entry.kind === "directory" && this.open.has(entry.path)) walk(entry.path, depth + 1);
      }
      for (const gone of folder.removed) out.push({ kind: "removed", key: `-${gone}`, depth, path: gone });
      if (folder.error) out.push({ kind: "failed", key: `!${path}`, depth, path, error: folder.error });
      else if (folder.cursor) out.push({ kind: "more", key: `+${path}`, depth, path });
      else if (folder.state === "loading" && !folder.entries.length) out.push({ kind: "loading", key: `…${path}`, depth });
      else if (!folder.entries.length && !folder.removed.length && path) out.push({ kind: "empty", key: `0${path}`, depth });
    };
    walk("", 0);
    return out;
  }
}

const order = new WeakMap();

/** Folders first. Kept, because a folder may have very many names. */
function sorted(entries) {
  let made = order.get(entries);
  if (!made) {
    made = entries.toSorted((a, b) => (b.kind === "directory") - (a.kind === "directory") || (a.name < b.name ? -1 : 1));
    order.set(entries, made);
  }
  return made;
}
