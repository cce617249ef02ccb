// Numbers, times and states in words. Pure, but for the reader's time zone.

// How a state looks: a colour and a shape by class, and a sign. Whoever sees no colours has sign and word.
const LOOKS = {
  running: ["good", "●"], ended: ["good", "■"], initializing: ["busy", "◐"], starting: ["busy", "◐"],
  stopping: ["busy", "◐"], paused: ["rest", "‖"], stopped: ["rest", "■"], shutdown: ["rest", "■"],
  retrying: ["bad", "↻"], hanging: ["bad", "⧖"], failed: ["bad", "✕"], suspended: ["bad", "✕"],
};

export const lookOf = (state) => {
  const [look, sign] = LOOKS[state] || ["rest", "?"];
  return { look, sign, word: state || "unknown" };
};

export const UNKNOWN = "–";

export function count(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const scales = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];
  for (const [scale, letter] of scales) {
    if (Math.abs(value) >= scale) return `${(value / (letter === "k" ? 1e3 : scale)).toFixed(1)} ${letter}`;
  }
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(1);
}

export const rate = (value) => (value === null || value === undefined ? UNKNOWN : `${count(value)}/s`);

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value < 1) return `${Math.round(value * 1e3)} ms`;
  if (value < 120) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} d`;
}

// Of what may be more: a count that was cut short, or of several of which one is unknown.
export const least = (text, isLeast) => (isLeast && text !== UNKNOWN ? `${text}+` : text);

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const scales = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  for (const [scale, name] of scales) if (value >= scale) return `${(value / scale).toFixed(1)} ${name}`;
  return `${Math.round(value)} B`;
}

const two = (value) => String(value).padStart(2, "0");

// In the reader's zone; `utc` for a title.
export function time(us) {
  if (!us) return { text: UNKNOWN, utc: "" };
  const at = new Date(us / 1e3);
  if (Number.isNaN(at.getTime())) return { text: UNKNOWN, utc: "" };
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const isToday = at.toDateString() === new Date().toDateString();
  return { text: isToday ? clock : `${day} ${clock}`, utc: at.toISOString() };
}

export const usOf = (iso) => Date.parse(iso) * 1e3;
