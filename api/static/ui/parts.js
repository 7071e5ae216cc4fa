// Small parts that many screens use.

import { html, useEffect, useRef, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { duration } from "../lib/text.js";
import { bar } from "../me.js";
import { update } from "../state.js";

const PATHS = {
  plus: "M8 3v10M3 8h10", search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM11 11l3.5 3.5", close: "M4 4l8 8M12 4l-8 8",
  check: "M3 8.5l3.2 3.2L13 5", cross: "M4.5 4.5l7 7M11.5 4.5l-7 7", chevron: "M6 4l4 4-4 4", down: "M8 3v10M4 9l4 4 4-4",
  up: "M8 13V3M4 7l4-4 4 4", file: "M4 2h5l3 3v9H4zM9 2v3h3", folder: "M2 4h4l1.5 2H14v7H2z", stop: "M4.5 4.5h7v7h-7z",
  send: "M8 13V3M4 7l4-4 4 4", dots: "M3.5 8h.01M8 8h.01M12.5 8h.01", download: "M8 2v8M4.5 7L8 10.5 11.5 7M3 13.5h10",
  pencil: "M3 13l.7-3L11 2.7 13.3 5 6 12.3z", trash: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.6 9h5.8l.6-9", box: "M2.5 5L8 2l5.5 3v6L8 14l-5.5-3zM2.5 5L8 8l5.5-3M8 8v6",
  terminal: "M3 4.5L6.5 8 3 11.5M8 12h5", eye: "M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8zM8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4z",
  play: "M5 3l8 5-8 5z", grid: "M2.5 2.5h4v4h-4zM9.5 2.5h4v4h-4zM2.5 9.5h4v4h-4zM9.5 9.5h4v4h-4z", help: "M6 6a2 2 0 1 1 2.6 1.9c-.5.2-.6.6-.6 1.1M8 12h.01",
  link: "M6.5 9.5l3-3M7 4.5l1.5-1.5a2.8 2.8 0 0 1 4 4L11 8.5M9 11.5L7.5 13a2.8 2.8 0 0 1-4-4L5 7.5", zap: "M9 1.5L3 9h4.5L7 14.5 13 7H8.5z",
  archive: "M2.5 3h11v3h-11zM3.5 6v7.5h9V6M6.5 8.5h3", refresh: "M13 8a5 5 0 1 1-1.5-3.5M13 2v3h-3", copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  bulb: "M6 11.5h4M6.5 13.5h3M8 2a4 4 0 0 0-2.3 7.3c.3.2.4.5.4.9h3.8c0-.4.1-.7.4-.9A4 4 0 0 0 8 2z", list: "M6 4h7.5M6 8h7.5M6 12h7.5M2.5 4h.01M2.5 8h.01M2.5 12h.01",
};

/** An icon; it says nothing that the text beside it does not. */
export const Icon = ({ name }) =>
  html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

export const IconButton = ({ icon, label, ...rest }) =>
  html`<button type="button" class="icon-button" aria-label=${label} title=${label} ...${rest}><${Icon} name=${icon} /></button>`;

export const Spinner = ({ label = "" }) => html`<span class="spinner" role="status">${label && html`<span>${label}</span>`}</span>`;

/** Seconds since a moment, counting. */
export function Elapsed({ since }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<span class="num">${duration(Math.max(0, (Date.now() - Date.parse(since)) / 1000))}</span>`;
}

/** Nothing there, still loading, or failed: never a blank. */
export const Empty = ({ title, children, test = null }) => html`<div class="empty" data-test=${test}><p class="empty-title">${title}</p>${children}</div>`;

export const Trouble = ({ error, again }) => html`<div class="trouble" role="alert">
  <p><strong>${error.message}</strong> ${error.hint}</p>
  ${again && html`<button type="button" onClick=${again}><${Icon} name="refresh" /> Try again</button>`}
</div>`;

/** A dialog of the browser's own: focus stays in it, Escape closes it. */
export function Dialog({ title, children, close = () => update({ dialog: null }), wide = false }) {
  const box = useRef(null);
  useEffect(() => {
    const el = box.current;
    const before = document.activeElement;
    el.showModal();
    return () => {
      el.close();
      before?.focus?.();
    };
  }, []);
  const outside = (event) => event.target === box.current && close();
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-label=${title} onCancel=${(e) => { e.preventDefault(); close(); }} onMouseDown=${outside}>
    <header><h2>${title}</h2><${IconButton} icon="close" label="Close" onClick=${close} /></header>
    ${children}
  </dialog>`;
}

/** A button that opens a short menu of changes. @param {{label: string, items: {icon: string, text: string, act: () => void, danger?: boolean}[]}} props */
export function Menu({ label, items, icon = "dots" }) {
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => {
    if (!open) return;
    box.current.querySelector("[role=menuitem]")?.focus();
    const away = (event) => !box.current?.contains(event.target) && setOpen(false);
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  const onKeyDown = (event) => {
    if (!open) return;
    const all = [...box.current.querySelectorAll("[role=menuitem]")];
    const at = all.indexOf(document.activeElement);
    if (event.key === "Escape") {
      setOpen(false);
      box.current.querySelector("button").focus();
    } else if (event.key === "ArrowDown") all[(at + 1) % all.length].focus();
    else if (event.key === "ArrowUp") all[(at + all.length - 1) % all.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const pick = (item) => () => {
    setOpen(false);
    item.act();
  };
  return html`<div class="menu" ref=${box} onKeyDown=${onKeyDown}>
    <${IconButton} icon=${icon} label=${label} aria-haspopup="menu" aria-expanded=${open} onClick=${(e) => { e.stopPropagation(); setOpen(!open); }} />
    ${open && html`<div role="menu" class="menu-items">${items.map((item) => html`
      <button type="button" role="menuitem" class=${item.danger ? "danger" : ""} onClick=${pick(item)} ...${bar()}><${Icon} name=${item.icon} /> ${item.text}</button>`)}
    </div>`}
  </div>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const act = async () => {
    await navigator.clipboard?.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<${IconButton} icon=${done ? "check" : "copy"} label=${done ? "Copied" : label} onClick=${act} />`;
}
