// Requests to the api. What goes wrong is a Failure with the api's own words.

export class Failure extends Error {
  /** @param {{code: string, message: string, hint?: string, retryable?: boolean}} error @param {number} status */
  constructor(error, status) {
    super(error.message);
    Object.assign(this, error, { status });
  }
}

/** Whether the api answers, for the banner. @type {{up: boolean, listeners: Set<() => void>}} */
export const link = { up: true, listeners: new Set() };

function tell(up) {
  if (link.up === up) return;
  link.up = up;
  for (const listener of link.listeners) listener();
  if (!up) probe(1000);
}

/** Asks until the api is back. */
function probe(wait) {
  setTimeout(async () => {
    try {
      const answer = await fetch("/healthz", { signal: AbortSignal.timeout(5000), cache: "no-store" });
      if (answer.ok) return tell(true);
    } catch {
      // still gone: asked again below
    }
    probe(Math.min(wait * 1.5, 5000));
  }, wait);
}

/** For what learns of the api by other ways, as an event stream does. */
export const lost = () => tell(false);

/** A change of the machine's network drops connections: what only reads is asked once more. */
async function fetched(path, init) {
  try {
    return await fetch(path, init);
  } catch (error) {
    if (init.method !== "GET" || error.name === "AbortError") throw error;
    await new Promise((go) => setTimeout(go, 400));
    return fetch(path, init);
  }
}

/** @returns {Promise<Response>} */
export async function request(method, path, { body, raw, headers = {}, signal } = {}) {
  const init = { method, headers: { ...headers }, signal };
  if (body !== undefined) {
    init.headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(body);
  } else if (raw !== undefined) init.body = raw;
  let answer;
  try {
    answer = await fetched(path, init);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    tell(false);
    throw new Failure({ code: "offline", message: "The api does not answer.", hint: "It is tried again by itself.", retryable: true }, 0);
  }
  tell(true);
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => null);
  throw new Failure(told?.error ?? { code: "http", message: `The api answered ${answer.status}.` }, answer.status);
}

/** @returns {Promise<any>} */
export const get = async (path, options) => (await request("GET", path, options)).json();
/** @returns {Promise<any>} */
export const post = async (path, body = {}) => (await request("POST", path, { body })).json();
/** @returns {Promise<any>} */
export const patch = async (path, body) => (await request("PATCH", path, { body })).json();
/** @returns {Promise<any>} */
export const remove = async (path) => (await request("DELETE", path)).json();

/** Events as lines of JSON. @returns {Promise<any[]>} */
export async function lines(path) {
  const text = await (await request("GET", path)).text();
  const events = [];
  for (const line of text.split("\n")) {
    if (!line) continue;
    const event = JSON.parse(line);
    if (event.error && !event.type) throw new Failure(event.error, 503);
    events.push(event);
  }
  return events;
}

/** A query without what is empty. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value != null && value !== false);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
