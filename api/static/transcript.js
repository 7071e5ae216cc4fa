// A window on a session's transcript: opened at its end or at any event, grown in both
// directions page by page, and followed live while it reaches the end.

import { lines, lost, query } from "./api.js";
import { Fold } from "./lib/fold.js";

const FIRST = 200;
const PAGE = 500;
/* More is not kept: the far end is let go of, and loaded again when somebody scrolls there. */
const KEPT = 20_000;
/* A hidden tab gives its connection back: browsers have six for a host, over all tabs. */
const HIDDEN_FOR = 30_000;

export class Transcript {
  /** @param {string} sid @param {() => void} changed */
  constructor(sid, changed) {
    this.sid = sid;
    this.changed = changed;
    this.events = [];
    this.fold = new Fold();
    this.state = "loading"; // loading, ready, failed
    this.error = null;
    this.live = false; // whether the stream is connected
    this.atEnd = false; // whether the window reaches the transcript's end
    this.busy = false;
    this.inbox = [];
    this.generation = 0; // grows when items are made anew
    this.onVisible = () => this.visibility();
    document.addEventListener("visibilitychange", this.onVisible);
  }

  get first() {
    return this.events[0]?.seq ?? 1;
  }

  get last() {
    return this.events[this.events.length - 1]?.seq ?? this.base;
  }

  get atStart() {
    return this.events.length === 0 || this.first <= 1;
  }

  /** Open at the end. @param {number} lastSeq */
  openAtEnd(lastSeq) {
    return this.load(async () => {
      this.base = lastSeq;
      const events = lastSeq ? await this.page({ before: lastSeq + 1, limit: FIRST }) : [];
      return { events, atEnd: true };
    });
  }

  /** Open around an event. */
  openAt(seq) {
    return this.load(async () => {
      this.base = Math.max(0, seq - 100);
      const events = await this.page({ after: this.base, limit: PAGE });
      return { events, atEnd: events.length < PAGE };
    });
  }

  async load(how) {
    this.hangUp();
    const mine = ++this.generation;
    this.state = "loading";
    this.changed();
    try {
      const { events, atEnd } = await how();
      if (mine !== this.generation) return;
      this.set(events);
      this.atEnd = atEnd;
      this.state = "ready";
      if (atEnd) this.follow();
    } catch (error) {
      if (mine !== this.generation) return;
      this.state = "failed";
      this.error = error;
    }
    this.changed();
  }

  page(asked) {
    return lines(`/sessions/${this.sid}/events${query(asked)}`);
  }

  set(events) {
    this.events = events;
    this.fold = new Fold();
    for (const event of events) this.fold.push(event);
    this.generation++;
  }

  async older() {
    await this.grow(async () => {
      if (this.atStart) return;
      const page = await this.page({ before: this.first, limit: PAGE });
      let events = page.concat(this.events);
      if (events.length > KEPT) {
        events = events.slice(0, KEPT);
        this.atEnd = false;
        this.hangUp();
      }
      this.set(events);
    });
  }

  async newer() {
    await this.grow(async () => {
      if (this.atEnd) return;
      const page = await this.page({ after: this.last, limit: PAGE });
      this.set(this.events.concat(page).slice(-KEPT));
      this.atEnd = page.length < PAGE;
      if (this.atEnd) this.follow();
    });
  }

  async grow(how) {
    if (this.busy || this.state !== "ready") return;
    this.busy = true;
    const mine = this.generation;
    try {
      await how();
    } catch (error) {
      if (mine === this.generation) this.error = error;
    } finally {
      this.busy = false;
      this.changed();
    }
  }

  follow() {
    this.hangUp();
    if (document.hidden && this.wasHidden) return;
    const source = new EventSource(`/sessions/${this.sid}/events?follow=true&after=${this.last}`);
    this.source = source;
    source.onopen = () => this.setLive(true);
    source.onmessage = (message) => this.receive(JSON.parse(message.data));
    source.onerror = () => {
      this.setLive(false);
      lost();
      // the browser comes back by itself, unless the answer was an error
      if (source.readyState === EventSource.CLOSED) this.again = setTimeout(() => this.follow(), 2000);
    };
  }

  setLive(live) {
    if (this.live === live) return;
    this.live = live;
    this.changed();
  }

  receive(event) {
    const last = this.inbox.length ? this.inbox[this.inbox.length - 1].seq : this.last;
    if (event.seq <= last) return;
    this.inbox.push(event);
    // once a frame, and also where there are no frames because the tab is hidden
    this.due ??= setTimeout(() => this.flush(), 30);
  }

  flush() {
    this.due = null;
    const arrived = this.inbox.splice(0);
    for (const event of arrived) {
      this.events.push(event);
      this.fold.push(event);
    }
    if (this.events.length > KEPT * 1.5) this.set(this.events.slice(-KEPT));
    this.changed(arrived);
  }

  visibility() {
    clearTimeout(this.hideTimer);
    if (document.hidden) {
      this.hideTimer = setTimeout(() => {
        this.wasHidden = true;
        this.hangUp();
      }, HIDDEN_FOR);
    } else if (this.wasHidden) {
      this.wasHidden = false;
      if (this.atEnd) this.follow();
    }
  }

  hangUp() {
    clearTimeout(this.again);
    this.source?.close();
    this.source = null;
    if (this.due) {
      clearTimeout(this.due);
      this.flush();
    }
    this.live = false;
  }

  close() {
    this.changed = () => {};
    this.generation++;
    this.hangUp();
    clearTimeout(this.hideTimer);
    document.removeEventListener("visibilitychange", this.onVisible);
  }
}
