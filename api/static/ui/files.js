// The files of a session: of the store, or live as the sandbox sees them.

import { post, query, remove, request } from "../api.js";
import { bytes, count, inUrl, shown } from "../lib/text.js";
import { bar, reason } from "../me.js";
import { attempt, state, toast, update } from "../state.js";
import { Tree } from "../tree.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { Empty, Icon, IconButton, Spinner, Trouble } from "./parts.js";

const ROW = 30;

export const fileUrl = (sid, path, live) =>
  live ? `/sessions/${sid}/live/file${query({ path })}` : `/sessions/${sid}/files/${inUrl(path)}`;

/** Show a file. @param {string} path */
export const preview = (path, live = false, size = null) => update({ preview: { path, live, size } });

export function Files({ sid }) {
  const [live, setLive] = useState(false);
  const [, draw] = useState(0);
  const [selected, setSelected] = useState(null);
  const [over, setOver] = useState(false);
  const tree = useMemo(() => new Tree(sid, live, () => draw((n) => n + 1)), [sid, live]);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) return void (first.current = false);
    const timer = setTimeout(() => tree.refresh(), 250);
    return () => clearTimeout(timer);
  }, [state.filesStamp]);
  useEffect(() => {
    if (live && !state.sandbox) setLive(false);
  }, [state.sandbox]);

  const root = tree.folders.get("");
  const rows = tree.rows();
  const folder = selected?.kind === "directory" ? selected.path : selected?.path.split("/").slice(0, -1).join("/") ?? "";
  const changed = () => tree.refresh();
  const drop = async (event) => {
    event.preventDefault();
    setOver(false);
    if (bar().disabled) return toast(reason(), "bad");
    await upload(sid, folder, await dropped(event.dataTransfer));
    changed();
  };
  const unsafe = live ? rows.filter((row) => row.kind === "removed" || row.entry?.durable === false).length : 0;
  return html`<section class=${`files ${over ? "over" : ""}`} data-test="files" aria-label="Files" onDragOver=${(e) => { e.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <header class="files-head"><h2>Files</h2>
      <div class="segments" role="group" aria-label="View">
        <button type="button" aria-pressed=${!live} onClick=${() => setLive(false)} title="What the store has">Durable</button>
        <button type="button" aria-pressed=${live} disabled=${!state.sandbox} onClick=${() => setLive(true)} title=${state.sandbox ? "What the sandbox sees right now" : "There is no sandbox now"}>Live</button>
      </div></header>
    <${Toolbar} sid=${sid} live=${live} selected=${selected} folder=${folder} changed=${changed} clear=${() => setSelected(null)} />
    ${unsafe > 0 && html`<p class="files-note tone-warn">${count(unsafe, "file")} here not yet durable: the turn's receipt will tell.</p>`}
    ${root?.state === "failed" && !rows.some((row) => row.kind === "entry") ? html`<${Trouble} error=${root.error} again=${changed} />`
      : !rows.length ? (root?.state === "loading" ? html`<p class="pad"><${Spinner} label="Loading" /></p>` : html`<${Empty} title="No files yet" test="no-files"><p>What the agent writes appears here. Drop files to add your own.</p><//>`)
      : html`<${Rows} rows=${rows} tree=${tree} live=${live} selected=${selected} select=${setSelected} />`}
    ${over && html`<p class="drop">Drop to upload into <b>${folder || "the workspace"}</b></p>`}
  </section>`;
}

/** Rows of one height, of which only those in sight exist. */
function Rows({ rows, tree, live, selected, select }) {
  const box = useRef(null);
  const [top, setTop] = useState(0);
  const height = box.current?.clientHeight || 800;
  const from = Math.max(0, Math.floor(top / ROW) - 10);
  const to = Math.min(rows.length, Math.ceil((top + height) / ROW) + 10);
  const more = rows.slice(from, to).find((row) => row.kind === "more");
  useEffect(() => {
    if (more) tree.load(more.path, true);
  }, [more?.path, more && tree.folders.get(more.path)?.cursor]);
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const all = [...box.current.querySelectorAll("button.row")];
    all[all.indexOf(document.activeElement) + step]?.focus();
    event.preventDefault();
  };
  return html`<div class="rows" data-test="file-rows" ref=${box} onScroll=${(e) => setTop(e.target.scrollTop)} onKeyDown=${move} data-count=${rows.length}>
    <ul style=${{ height: `${rows.length * ROW}px` }}>${rows.slice(from, to).map((row, i) => html`
      <li key=${row.key} data-test="file-row" data-kind=${row.kind} data-durable=${row.entry?.durable ?? null} style=${{ top: `${(from + i) * ROW}px`, paddingInlineStart: `${row.depth * 14 + 6}px` }}><${FileRow} row=${row} tree=${tree} live=${live} on=${selected?.path === row.key} select=${select} /></li>`)}</ul>
  </div>`;
}

function FileRow({ row, tree, live, on, select }) {
  if (row.kind === "removed") return html`<span class="row gone"><${Icon} name="file" /><s>${shown(row.path.split("/").pop())}</s><span class="tag warn">deleted, not yet durable</span></span>`;
  if (row.kind === "failed") return html`<span class="row tone-bad">${row.error.message}</span>`;
  if (row.kind === "empty") return html`<span class="row meta">empty</span>`;
  if (row.kind !== "entry") return html`<span class="row meta">Loading…</span>`;
  const { entry } = row;
  const folder = entry.kind === "directory";
  const act = () => {
    select(entry);
    if (folder) tree.toggle(entry.path);
    else preview(entry.path, live, entry.size);
  };
  return html`<button type="button" class="row" aria-expanded=${folder ? tree.open.has(entry.path) : null} aria-current=${on ? "true" : null} onClick=${act} onFocus=${() => select(entry)}>
    ${folder ? html`<${Icon} name="chevron" />` : html`<span class="row-gap"></span>`}<${Icon} name=${folder ? "folder" : entry.kind === "symlink" ? "link" : "file"} />
    <span class="row-name">${shown(entry.name)}</span>
    ${live && entry.durable === false && html`<span class="tag warn">not yet durable</span>`}<span class="row-size num">${folder ? "" : bytes(entry.size)}</span></button>`;
}

function Toolbar({ sid, live, selected, folder, changed, clear }) {
  const input = useRef(null);
  const pick = async (event) => {
    await upload(sid, folder, [...event.target.files].map((file) => ({ path: file.name, file })));
    event.target.value = "";
    changed();
  };
  const ask = (title, value, label, act) => update({ dialog: { kind: "ask", title, value, label, act } });
  const newFolder = () => ask("New folder", folder ? `${folder}/` : "", "Path of the folder", async (path) => {
    await post(`/sessions/${sid}/folders`, { path });
    changed();
  });
  const rename = () => ask("Rename or move", selected.path, "New path", async (target) => {
    await post(`/sessions/${sid}/move`, { source: selected.path, target });
    clear();
    changed();
  });
  const erase = () => update({ dialog: { kind: "confirm", title: `Delete ${selected.name}?`, label: "Delete",
    text: selected.kind === "directory" ? "The folder and everything in it is removed from the store." : "The file is removed from the store.",
    act: async () => {
      const told = await remove(`/sessions/${sid}/files/${inUrl(selected.path)}`);
      toast(`Deleted ${count(told.files, "file")}${told.directories ? ` and ${count(told.directories, "folder")}` : ""}.`);
      clear();
      changed();
    } } });
  const url = !selected ? `/sessions/${sid}/zip` : selected.kind === "directory" ? `/sessions/${sid}/zip${query({ path: selected.path })}`
    : `${fileUrl(sid, selected.path, live)}${live ? "&" : "?"}download=true`;
  return html`<div class="toolbar" role="toolbar" aria-label="File actions">
    <input ref=${input} type="file" data-test="upload" multiple hidden onChange=${pick} aria-label="Files to upload" />
    <button type="button" onClick=${() => input.current.click()} title=${`Upload into ${folder || "the workspace"}`} ...${bar()}><${Icon} name="up" /> Upload</button>
    <${IconButton} icon="folder" label="New folder" onClick=${newFolder} ...${bar()} />
    <a class="icon-button" href=${url} download aria-label=${selected ? `Download ${selected.name}` : "Download everything as a zip"} title=${selected ? "Download" : "Download everything as a zip"}><${Icon} name="download" /></a>
    <${IconButton} icon="pencil" label="Rename" disabled=${!selected} onClick=${rename} ...${bar()} />
    <${IconButton} icon="trash" label="Delete" disabled=${!selected} onClick=${erase} ...${bar()} />
    <${IconButton} icon="refresh" label="Read again" onClick=${changed} />
    <span class="toolbar-on meta">${selected ? shown(selected.name) : ""}</span>
  </div>`;
}

async function upload(sid, folder, files) {
  let done = 0;
  for (const { path, file } of files) {
    const target = folder ? `${folder}/${path}` : path;
    const told = await attempt(() => request("PUT", `/sessions/${sid}/files/${inUrl(target)}`, { raw: file }));
    if (told) done++;
  }
  if (done) toast(`Uploaded ${count(done, "file")}: in the store.`);
}

/** Files that were dropped, those in folders too, with their paths. */
async function dropped(transfer) {
  const out = [];
  const walk = async (entry, prefix) => {
    if (entry.isFile) out.push({ path: prefix + entry.name, file: await new Promise((ok, no) => entry.file(ok, no)) });
    else {
      const reader = entry.createReader();
      for (;;) {
        const page = await new Promise((ok, no) => reader.readEntries(ok, no));
        if (!page.length) break;
        for (const each of page) await walk(each, `${prefix}${entry.name}/`);
      }
    }
  };
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => ({ path: file.name, file }));
  for (const entry of entries) await walk(entry, "");
  return out;
}
