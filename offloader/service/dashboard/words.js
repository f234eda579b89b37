/**
 * Numbers, times and states as words for people.
 *
 * Must never touch the document.
 */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const TIME = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
const clock = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", ...TIME });
const withYear = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", ...TIME });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Between this machine's clock and the offloader's, ms. */
let ahead = 0;

export function setClock(theirs) {
  ahead = theirs - Date.now();
}

export const now = () => Date.now() + ahead;

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export const shortly = (value) => compact.format(value);

export const roughly = (value) => (value < 100_000 ? count(value) : shortly(value));

export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? whole.format(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** Bytes a second, as operators write them: powers of ten. */
export function rate(perSecond) {
  const value = perSecond / 1e6;
  if (value > 0 && value < 0.01) return "< 0.01 MB/s";
  return `${value >= 100 ? whole.format(value) : value.toFixed(value >= 1 ? 1 : value > 0 ? 2 : 0)} MB/s`;
}

/** How fast a stream is offloaded; empty where nobody counts it. */
export const rateOf = ({ bytes_per_second: perSecond }) => (typeof perSecond === "number" ? rate(perSecond) : "");

/** Seconds as one number and one unit. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.95) return seconds <= 0 ? "0 s" : "< 1 s";
  if (seconds < 119.5) return `${whole.format(seconds)} s`;
  if (seconds < 7170) return `${whole.format(seconds / 60)} min`;
  if (seconds < 172_000) return `${whole.format(seconds / 3600)} h`;
  return `${whole.format(seconds / 86_400)} days`;
}

export const ago = (ms) => (ms ? `${span(Math.max(now() - ms, 0) / 1000)} ago` : "never");

/** A time on this machine's clock; the year only where it isn't this one. */
export function at(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  return (new Date(ms).getFullYear() === new Date(now()).getFullYear() ? clock : withYear).format(ms);
}

export const percent = (part, all) => (all > 0 ? Math.min((part / all) * 100, 100) : 0);

/** What a stream does here, in words. */
const MODES = { standby: "standby", ledger: "by ledger", none: "not offloaded" };
const STATES = { disconnected: "bad", stalled: "bad", live: "good", ledger: "good", "catch-up": "warn", paused: "warn", stopped: "warn", deleted: "warn" };

export const modeWords = (mode) => MODES[mode] ?? mode ?? "in the store";

/** The same with whether that is good: `[word, state]`. */
export function modeOf({ mode, stalled, last_error: error }) {
  if (stalled && mode !== "disconnected") return ["stalled", "bad"];
  return [modeWords(mode), error ? "bad" : (STATES[mode] ?? "idle")];
}

/** A lag in time; that of a hot tier which can't be asked is at least so much. */
export const lagOf = ({ lag, lag_known_ms: knownMs }) => (knownMs ? `≥ ${span(lag?.seconds)}` : span(lag?.seconds));

/** The last level of a name, and what stands before it. */
export function nameOf(stream) {
  const cut = stream.lastIndexOf("/") + 1;
  return [stream.slice(0, cut), stream.slice(cut)];
}
