// What a file is shown as, and the forms that are not text.

const IMAGES = /\.(png|jpe?g|gif|webp|avif|bmp|ico|svg)$/i;
export const RANGE = 256 * 1024;

/** @returns {"image"|"pdf"|"markdown"|"csv"|"bytes"} bytes: text or hex, as the first of them tell */
export function kindOf(name) {
  if (IMAGES.test(name)) return "image";
  if (/\.pdf$/i.test(name)) return "pdf";
  if (/\.(md|markdown)$/i.test(name)) return "markdown";
  if (/\.(csv|tsv)$/i.test(name)) return "csv";
  return "bytes";
}

/** Whether bytes are text: UTF-8 (a character may be cut at the end) without NUL. @param {Uint8Array} bytes */
export function isText(bytes) {
  if (bytes.includes(0)) return false;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true });
    return true;
  } catch {
    return false;
  }
}

/** Rows of offset, hex and characters. @param {Uint8Array} bytes @param {number} from */
export function hexRows(bytes, from = 0) {
  const rows = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16);
    const hex = Array.from(row, (b) => b.toString(16).padStart(2, "0"));
    rows.push([
      (from + at).toString(16).padStart(8, "0"),
      `${hex.slice(0, 8).join(" ").padEnd(23)}  ${hex.slice(8).join(" ").padEnd(23)}`,
      Array.from(row, (b) => (b > 31 && b < 127 ? String.fromCharCode(b) : ".")).join(""),
    ]);
  }
  return rows;
}

/** Cells of CSV as RFC 4180 has it; a tab separates when the first line has more of them. */
export function csvRows(text, maxRows) {
  const first = text.slice(0, text.indexOf("\n") >>> 0);
  const separator = first.split("\t").length > first.split(",").length ? "\t" : ",";
  const rows = [];
  let row = [];
  let cell = "";
  let quoted = false;
  const close = () => {
    row.push(cell);
    cell = "";
  };
  for (let i = 0; i < text.length && rows.length < maxRows; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') cell += text[++i];
      else quoted = false;
    } else if (c === '"' && cell === "") quoted = true;
    else if (c === separator) close();
    else if (c === "\n") {
      close();
      rows.push(row);
      row = [];
    } else if (c !== "\r") cell += c;
  }
  if (rows.length < maxRows && (cell || row.length)) {
    close();
    rows.push(row);
  }
  return rows;
}
