// One file: text with colours, markdown, a table, an image, a PDF, or hex; large ones by ranges.

import { request } from "../api.js";
import { highlighted, language } from "../lib/highlight.js";
import { markdown } from "../lib/markdown.js";
import { RANGE, csvRows, hexRows, isText, kindOf } from "../lib/previews.js";
import { bytes, shown } from "../lib/text.js";
import { state, update } from "../state.js";
import { html, useEffect, useMemo, useState } from "../vendor/preact-11.2.0-htm-3.1.1.js";
import { fileUrl } from "./files.js";
import { Copy, Dialog, Icon, Spinner, Trouble } from "./parts.js";

const MAX_ROWS = 500;
const MAX_PDF = 50e6;

export function Preview() {
  const { path, live } = state.preview;
  const sid = state.route.sid;
  const kind = kindOf(path);
  const url = fileUrl(sid, path, live);
  const name = path.split("/").pop();
  return html`<${Dialog} title=${shown(name)} wide close=${() => update({ preview: null })}>
    <p class="preview-bar"><code data-test="preview-path">${shown(path)}</code> ${live ? html`<span class="tag warn">live view</span>` : html`<span class="tag">from the store</span>`}
      <${Copy} text=${path} label="Copy the path" /><a class="button" href=${`${url}${live ? "&" : "?"}download=true`} download=${name}><${Icon} name="download" /> Download</a></p>
    <div class="preview">${kind === "image" ? html`<${Picture} url=${url} name=${name} />` : kind === "pdf" ? html`<${Pdf} url=${url} name=${name} />`
      : html`<${Bytes} url=${url} live=${live} kind=${kind} path=${path} key=${url} />`}</div>
  <//>`;
}

function Picture({ url, name }) {
  const [failed, setFailed] = useState(false);
  return failed ? html`<p class="meta">This cannot be shown as an image.</p>` : html`<img class="picture" src=${url} alt=${name} onError=${() => setFailed(true)} />`;
}

function Pdf({ url, name }) {
  const [made, setMade] = useState(null);
  useEffect(() => {
    let address = null;
    const stop = new AbortController();
    request("GET", url, { signal: stop.signal })
      .then(async (answer) => {
        if (Number(answer.headers.get("Content-Length")) > MAX_PDF) throw { message: "This file is too large to be shown.", hint: "Download it." };
        // as a PDF and nothing else, whatever the bytes are
        address = URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type: "application/pdf" }));
        setMade({ address });
      })
      .catch((error) => error.name === "AbortError" || setMade({ error }));
    return () => {
      stop.abort();
      if (address) URL.revokeObjectURL(address);
    };
  }, [url]);
  if (!made) return html`<${Spinner} label="Loading" />`;
  return made.error ? html`<${Trouble} error=${made.error} />` : html`<iframe class="pdf" src=${made.address} title=${name}></iframe>`;
}

function Bytes({ url, live, kind, path }) {
  const [data, setData] = useState(null);
  const [raw, setRaw] = useState(false);
  const [busy, setBusy] = useState(false);
  const load = async (from) => {
    setBusy(true);
    try {
      const part = live ? await head(url) : await range(url, from);
      setData((before) => ({ bytes: before && from ? joined(before.bytes, part.bytes) : part.bytes, total: part.total }));
    } catch (error) {
      setData({ error });
    }
    setBusy(false);
  };
  useEffect(() => void load(0), []);
  if (!data) return html`<${Spinner} label="Loading" />`;
  if (data.error) return html`<${Trouble} error=${data.error} again=${() => load(0)} />`;
  const left = data.total == null ? 0 : data.total - data.bytes.length;
  const formatted = kind === "markdown" || kind === "csv";
  return html`<p class="meta" data-test="preview-size" data-shown=${data.bytes.length} data-total=${data.total}>${bytes(data.total ?? data.bytes.length)}${left > 0 ? `, the first ${bytes(data.bytes.length)} shown` : ""}
      ${formatted && html` · <button type="button" class="link" onClick=${() => setRaw(!raw)}>${raw ? "Formatted" : "Source"}</button>`}</p>
    <${Content} data=${data.bytes} kind=${raw ? "bytes" : kind} path=${path} />
    ${left > 0 && !live && html`<p><button type="button" data-test="preview-more" disabled=${busy} onClick=${() => load(data.bytes.length)}>Show the next ${bytes(Math.min(left, RANGE))}</button></p>`}`;
}

function Content({ data, kind, path }) {
  const text = useMemo(() => (isText(data) ? new TextDecoder().decode(data) : null), [data]);
  return useMemo(() => {
    if (!data.length) return html`<p class="meta">The file is empty.</p>`;
    if (text === null) return html`<pre class="hex" data-test="hex" tabindex="0">${hexRows(data.subarray(0, RANGE / 4)).map(([at, hex, chars]) => `${at}  ${hex}  ${chars}\n`).join("")}</pre>`;
    if (kind === "markdown") return html`<div class="md" dir="auto">${markdown(text)}</div>`;
    if (kind === "csv") return html`<${Grid} rows=${csvRows(shown(text), MAX_ROWS + 1)} />`;
    const seen = shown(text);
    return html`<pre class="code source" tabindex="0" data-lines=${seen.split("\n").length}><code>${highlighted(seen, language(path))}</code></pre>`;
  }, [data, kind]);
}

const Grid = ({ rows }) => html`<div class="table" data-test="wide" tabindex="0"><table>
  <thead><tr>${rows[0]?.map((cell) => html`<th>${cell}</th>`)}</tr></thead>
  <tbody>${rows.slice(1, MAX_ROWS).map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>
  ${rows.length > MAX_ROWS && html`<p class="meta">The first ${MAX_ROWS} rows.</p>`}`;

async function range(url, from) {
  const answer = await request("GET", url, { headers: { Range: `bytes=${from}-${from + RANGE - 1}` } }).catch((error) => {
    if (error.status === 416) return null; // an empty file has no range
    throw error;
  });
  if (!answer) return { bytes: new Uint8Array(), total: 0 };
  const data = new Uint8Array(await answer.arrayBuffer());
  return { bytes: data, total: Number(answer.headers.get("Content-Range")?.split("/")[1] ?? data.length) };
}

/** The beginning of a file that has no ranges. */
async function head(url) {
  const answer = await request("GET", url);
  const reader = answer.body.getReader();
  let data = new Uint8Array();
  while (data.length < RANGE) {
    const { done, value } = await reader.read();
    if (done) break;
    data = joined(data, value);
  }
  await reader.cancel();
  const size = answer.headers.get("Content-Length");
  return { bytes: data.slice(0, RANGE), total: size === null ? null : Number(size) };
}

function joined(a, b) {
  const out = new Uint8Array(a.length + b.length);
  out.set(a);
  out.set(b, a.length);
  return out;
}
