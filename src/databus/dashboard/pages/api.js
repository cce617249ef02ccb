// What the dashboard's API is asked; see docs/api.md. Every error becomes an `ApiError` with a sentence for people.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const ANSWER_MS_MAX = 180_000; // a trace reads a log
const SILENT_MS_MAX = 4_000; // a status comes each second
const LOOK_MS = 5_000;

async function call(method, path, body, headers = {}, ms = ANSWER_MS_MAX) {
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, {
      method,
      headers: method === "GET" ? {} : { "Content-Type": "application/json", "X-Databus-Dashboard": "1", ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(ms), // a network that is gone refuses nothing
    });
  } catch {
    throw new ApiError(0, "The dashboard does not answer. Is it still running?");
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, said.message || `The dashboard answered ${answer.status}.`);
  return said;
}

export const get = (path, query = {}, ms = ANSWER_MS_MAX) => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  return call("GET", text ? `${path}?${text}` : path, undefined, {}, ms);
};

// One key for each wish of a person: asked twice, by a double click or a bad network, it is done once.
export const act = (path, body, key, method = "POST") => call(method, path, body, { "Idempotency-Key": key });
export const signIn = (token) => call("POST", "/session", { token });
export const signOut = () => call("DELETE", "/session");

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("");
}

export const pathOf = (...parts) => parts.map((each) => `/${encodeURIComponent(each)}`).join("");

// Statuses as they come, one stream a tab, and none while nobody sees the tab: browsers allow six connections a host.
// onEnd: none comes any more, so what is shown is old. A dashboard that hangs, or a network that is gone, ends no stream.
export function follow(onStatus, onEnd) {
  let stream = null;
  let heard = 0;
  const open = () => {
    if (stream !== null || document.hidden) return;
    heard = performance.now();
    stream = new EventSource("/api/v1/events");
    stream.addEventListener("status", (event) => {
      onStatus(JSON.parse(event.data));
      heard = performance.now();
    });
    stream.onerror = () => {
      onEnd();
      if (stream !== null && stream.readyState === EventSource.CLOSED) close();
    };
  };
  const close = () => {
    if (stream !== null) stream.close();
    stream = null;
  };
  const turn = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", turn);
  const again = setInterval(() => {
    if (stream !== null && performance.now() - heard > SILENT_MS_MAX) {
      close();
      onEnd();
    }
    open();
  }, LOOK_MS);
  open();
  return () => {
    clearInterval(again);
    document.removeEventListener("visibilitychange", turn);
    close();
  };
}
