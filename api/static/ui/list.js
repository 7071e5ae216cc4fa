// A list of rows of any height, of which only those in sight exist. What the reader looks at
// stays where it is while rows above are loaded, measured or folded; at the end it follows.

import { Heights } from "../lib/heights.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";

const OVERSCAN = 600;
const NEAR = 48; // pixels from the end that still count as at the end

/**
 * @param {{items: {key: any}[], stamp: any, row: (item: any) => any, older: () => void, newer: () => void,
 *   target: number|null, label: string, follows: boolean}} props
 */
export function VirtualList({ items, stamp, row, older, newer, target, label, follows }) {
  const box = useRef(null);
  const rows = useRef(null);
  const me = useRef(null);
  me.current ??= { heights: new Heights(64), anchor: null, stick: follows, stamp: undefined, length: -1, target: null };
  const it = me.current;
  const [, draw] = useState(0);
  const [away, setAway] = useState(false);

  const el = box.current;
  if (el && scrolled(it, el)) hear(it, el, follows);
  if (it.stamp !== stamp || it.length !== items.length) {
    if (el && !it.stick && follows) it.stick = atEnd(el);
    it.heights.reset(items.map((item) => item.key));
    it.stamp = stamp;
    it.length = items.length;
  }
  if (target !== it.target) {
    it.target = target;
    if (target !== null) {
      const found = Math.max(0, items.findLastIndex((item) => item.key <= target));
      it.anchor = { key: items[found]?.key, delta: -80 };
      it.found = items[found]?.key;
      it.stick = false;
    }
  }
  const height = box.current?.clientHeight || 800;
  const total = it.heights.total;
  const top = it.stick ? Math.max(0, total - height) : position(it);
  const from = items.length ? it.heights.at(Math.max(0, top - OVERSCAN)) : 0;
  const to = items.length ? Math.min(items.length, it.heights.at(top + height + OVERSCAN) + 1) : 0;

  useLayoutEffect(() => {
    const changed = measure(it, rows.current, from);
    place(it, box.current);
    if (changed) draw((n) => n + 1);
  });

  useEffect(() => {
    const watch = new ResizeObserver(() => draw((n) => n + 1));
    watch.observe(rows.current);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  const onScroll = () => {
    const el = box.current;
    hear(it, el, follows);
    setAway(!atEnd(el));
    if (el.scrollTop < OVERSCAN) older();
    if (el.scrollHeight - el.scrollTop - el.clientHeight < OVERSCAN) newer();
    draw((n) => n + 1);
  };
  // what the reader opens grows downwards, also at the end
  const onClick = () => hear(it, box.current, false);

  return html`<div class="vlist" data-test="transcript" ref=${box} onScroll=${onScroll} onClick=${onClick} role="log" aria-label=${label} tabindex="0"
      data-first=${from} data-rows=${to - from} data-items=${items.length} data-away=${away ? 1 : 0}>
    <div style=${{ height: `${it.heights.offset(from)}px` }}></div>
    <div ref=${rows}>${items.slice(from, to).map((item) => html`<div class="vrow" data-test="transcript-row" key=${item.key} data-seq=${item.key}
      data-target=${target !== null && item.key === it.found ? 1 : null}>${row(item)}</div>`)}</div>
    <div style=${{ height: `${Math.max(0, total - it.heights.offset(to))}px` }}></div>
  </div>`;
}

const atEnd = (el) => el.scrollHeight - el.scrollTop - el.clientHeight < NEAR;

/** Whether the reader has scrolled and the event is still to come; a shorter list moves by itself. */
function scrolled(it, el) {
  const moved = el.scrollTop - (it.lastTop ?? el.scrollTop);
  const cut = moved < 0 && el.scrollHeight - el.scrollTop - el.clientHeight < 1;
  return Math.abs(moved) > 1 && !cut;
}

function hear(it, el, follows) {
  it.stick = follows && atEnd(el);
  const i = it.heights.at(el.scrollTop);
  it.anchor = { key: it.heights.keys[i], delta: el.scrollTop - it.heights.offset(i) };
  it.lastTop = el.scrollTop;
}

function position(it) {
  if (!it.anchor) return 0;
  const i = it.heights.keys.indexOf(it.anchor.key);
  return i < 0 ? Math.max(0, it.lastTop ?? 0) : Math.max(0, it.heights.offset(i) + it.anchor.delta);
}

function measure(it, el, from) {
  let changed = false;
  let i = from;
  for (const child of el.children) changed = it.heights.measure(i++, child.getBoundingClientRect().height) || changed;
  return changed;
}

function place(it, el) {
  const wanted = it.stick ? el.scrollHeight : position(it);
  if (it.stick ? !(el.scrollHeight - el.scrollTop - el.clientHeight < 1) : Math.abs(el.scrollTop - wanted) > 1) el.scrollTop = wanted;
  it.lastTop = el.scrollTop;
}
