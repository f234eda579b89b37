/**
 * The first view: how the process is, all streams, what retention decided, what went wrong, what is left over.
 */

import { whatGoes } from "./actions.js";
import { ask, routes } from "./api.js";
import { card, el, keep, mark, row, say, show, table } from "./dom.js";
import { hourOf } from "./hour.js";
import { store } from "./store.js";
import { ago, at, bytes, count, lagOf, many, modeOf, modeWords, nameOf, percent, rateOf, roughly, span } from "./words.js";

const PAGE_ROWS = 50;
const SEARCH_WAIT_MS = 200;
const ORDERS = [
  ["trouble", "Problems first"],
  ["lag", "Furthest behind"],
  ["rate", "Highest rate"],
  ["name", "Name"],
];
const COLUMNS = [
  ["Stream", ""],
  ["Mode", ""],
  ["Behind", "number"],
  ["Waiting", "number"],
  ["Buffer", "number"],
  ["Offloaded", "number"],
  ["Rate", "number"],
  ["Progress", "number"],
];
// Of what a page shows of lists that may be long.
const LINES = 30;

export class StreamsView {
  title = "";
  #askAgain;
  /** Where each page up to this one begins. */
  #places = [""];
  #next = null;
  #opened = "";
  #isShown = false;

  /** @param {() => void} askAgain the choice of streams changed */
  constructor(askAgain) {
    this.#askAgain = askAgain;
    this.root = el("div", { class: "stack" });
    this.tiles = el("div", { class: "tiles" });
    this.problems = el("section", { class: "notice warn", "aria-label": "Problems", hidden: true });
    this.awaited = el("section", { class: "notice warn", "aria-label": "Needs approval", hidden: true });
    this.hour = el("section", { class: "card hour", "aria-label": "The last hour", hidden: true });
    this.fresh = el("p", { class: "fresh" });
    this.#makeStreams();
    this.decisions = card("Retention decisions");
    this.errors = card("Errors and warnings");
    this.upkeep = card("Cleanup and orphans");
    for (const each of [this.decisions, this.errors]) each.body.className = "scroll";
    this.root.append(
      this.problems,
      this.awaited,
      this.tiles,
      this.hour,
      this.fresh,
      this.streams.section,
      el("div", { class: "two" }, this.decisions.section, this.errors.section),
      this.upkeep.section,
    );
    this.#showLoading();
  }

  #makeStreams() {
    let timer = 0;
    this.search = el("input", {
      type: "search",
      id: "search",
      placeholder: "Search by name",
      maxlength: 200,
      "aria-label": "Search streams by name",
      oninput: () => {
        clearTimeout(timer);
        timer = setTimeout(() => this.#fromTheStart(), SEARCH_WAIT_MS);
      },
    });
    this.order = el(
      "select",
      { "aria-label": "Order of the streams", onchange: () => this.#fromTheStart() },
      ...ORDERS.map(([value, text]) => el("option", { value }, text)),
    );
    this.streams = card("Streams", this.search, this.order);
    this.table = table(COLUMNS, "Streams", "streams");
    this.without = el("p", { class: "body faint", role: "status", hidden: true });
    this.none = el("p", { class: "empty" });
    this.range = el("span", { role: "status" });
    this.before = el("button", { type: "button", onclick: () => this.#turn(-1) }, "Previous");
    this.after = el("button", { type: "button", onclick: () => this.#turn(1) }, "Next");
    this.pager = el("div", { class: "pager" }, this.range, this.before, this.after);
    this.streams.body.append(this.without, this.table.whole, this.none, this.pager);
  }

  #showLoading() {
    show(this.tiles, ...["Streams", "Furthest behind", "Buffer", "Orphans"].map((name) => tile(name, "…", "")));
    this.table.whole.hidden = this.pager.hidden = true;
    say(this.none, "Loading…");
    for (const each of [this.decisions, this.errors, this.upkeep]) show(each.body, el("p", { class: "empty" }, "Loading…"));
  }

  #fromTheStart() {
    this.#places = [""];
    this.#askAgain();
  }

  #turn(step) {
    if (step > 0 && this.#next) this.#places.push(this.#next);
    this.#next = null; // known again once that page is here: a second click doesn't count
    if (step < 0 && this.#places.length > 1) this.#places.pop();
    this.#askAgain();
  }

  /** Focus, when the view is shown: the stream one comes back from, else nothing. */
  focus() {
    const links = [...this.table.body.querySelectorAll("a")];
    links.find((link) => link.dataset.stream === this.#opened)?.focus();
  }

  /** Escape: what was searched for is forgotten. */
  back() {
    if (!this.search.value) return;
    this.search.value = "";
    this.#fromTheStart();
  }

  /** @param {(data: object) => void} paint shows what is known already */
  async load(signal, paint) {
    const choice = { order: this.order.value, contains: this.search.value.trim(), limit: PAGE_ROWS };
    // First of all: who isn't let in is told so once.
    const overview = await ask(routes.overview, {}, signal);
    store.isDown = overview.health?.store?.up === false;
    const question = () => ask(routes.streams, { ...choice, cursor: this.#places.at(-1) }, signal);
    const whole = store.ask(question, this.#askAgain);
    whole.catch(() => {}); // it is waited for below
    const [decisions, errors, orphans] = await Promise.all([
      ask(routes.decisions, { limit: LINES }, signal),
      ask(routes.errors, { limit: LINES }, signal),
      ask(routes.orphans, {}, signal),
    ]);
    const known = { overview, decisions, errors, orphans, choice };
    // The process's own state is shown at once, whatever the store does.
    if (!this.#isShown) paint({ ...known, streams: await this.#ours(choice, signal) });
    const found = await whole;
    if (found.answer) return { ...known, streams: found.answer };
    this.#places = [""];
    return { ...known, streams: await this.#ours(choice, signal, found.failed ?? null) };
  }

  /** The streams of this process, from its memory: those that only the store knows are left out. */
  async #ours(choice, signal, without = null) {
    const page = await ask(routes.streams, { ...choice, served: true }, signal);
    return { ...page, next_cursor: null, without: without ?? { message: "no answer from the store yet" } };
  }

  render({ overview, streams, decisions, errors, orphans, choice }) {
    this.#isShown = true;
    this.#showTiles(overview, orphans);
    this.#showHour(overview.last_hour);
    this.#showFresh(overview);
    this.#showProblems(overview.problems);
    this.#showAwaited(overview.awaiting_approval ?? []);
    this.#showStreams(streams, choice);
    this.#showDecisions(decisions.items);
    this.#showErrors(errors.items);
    this.#showUpkeep(orphans);
    const trouble = troubleOf(overview);
    this.title = trouble ? many(trouble, "problem") : "";
  }

  #showTiles({ streams, buffer }, { left }) {
    const total = streams.served;
    const modes = Object.entries(streams.modes).sort(([one], [other]) => one.localeCompare(other));
    const words = modes.map(([mode, number]) => `${count(number)} ${modeWords(mode === "null" ? null : mode)}`).join(", ");
    const behind = streams.lag_seconds_max;
    const ours = left?.ours;
    show(
      this.tiles,
      tile("Streams", count(total), words || "no streams in this process", {
        parts: modes.map(([mode, number]) => [mode, percent(number, total)]),
        state: streams.stalled || streams.disconnected ? "bad" : "",
        more: streams.stalled && !streams.modes.stalled ? `${count(streams.stalled)} stalled` : "",
      }),
      tile("Furthest behind", `${streams.disconnected && behind !== null ? "≥ " : ""}${span(behind)}`, behind === null ? "no lag is known" : "largest lag of a stream"),
      tile("Buffer", bytes(buffer.bytes), `of ${bytes(buffer.bytes_max)}`, {
        parts: [["buffer", percent(buffer.bytes, buffer.bytes_max)]],
        full: buffer.bytes >= buffer.bytes_max * 0.9,
      }),
      tile(
        "Orphans",
        ours ? bytes(ours.size_bytes) : "–",
        ours ? many(ours.objects, "unreferenced object") : "no search yet",
      ),
    );
  }

  #showHour(hour) {
    this.hour.hidden = !hour;
    if (hour) show(this.hour, ...hourOf(hour));
  }

  /** How old the figures are. */
  #showFresh({ now_ms: nowMs, seen_ms: seenMs }) {
    const ours = seenMs ? `Process figures: ${span((nowMs - seenMs) / 1000)} old` : "";
    const its = store.answeredMs ? `store figures: ${span((Date.now() - store.answeredMs) / 1000)} old` : "";
    say(this.fresh, `${[ours, its || "no figures from the store yet"].filter(Boolean).join(", ")}.`);
  }

  #showAwaited(approvals) {
    this.awaited.hidden = approvals.length === 0;
    const lines = approvals.map((each) =>
      el(
        "li",
        {},
        el("strong", {}, "Cleanup needs approval: "),
        streamLink(each.stream),
        `, ${whatGoes(each)}. That is more than half of the stream: cleanup waits for approval.${each.since_ms ? ` Allowed by retention ${ago(each.since_ms)}.` : ""}`,
      ),
    );
    show(this.awaited, el("ul", {}, ...lines));
  }

  #showProblems(problems) {
    this.problems.hidden = problems.length === 0;
    this.problems.className = `notice ${problems.some((each) => each.blocks_ready) ? "bad" : "warn"}`;
    const lines = problems.map((each) =>
      el(
        "li",
        {},
        el("strong", {}, each.where),
        `: ${each.what}${each.since_ms ? `, since ${at(each.since_ms)}` : ""}`,
        each.hint ? el("div", { class: "hint" }, each.hint) : null,
      ),
    );
    show(this.problems, el("ul", {}, ...lines));
  }

  #showStreams({ items, next_cursor: next, total, without }, choice) {
    this.#next = next;
    this.without.hidden = !without;
    say(this.without, without ? `Only the streams of this process: ${without.message}` : "");
    const first = (this.#places.length - 1) * PAGE_ROWS;
    this.table.whole.hidden = items.length === 0;
    this.none.hidden = items.length > 0;
    this.pager.hidden = items.length === 0;
    if (items.length === 0) {
      const text = without && !choice.contains
        ? [el("strong", {}, "No streams in this process"), "The streams of the store appear when the store answers."]
        : choice.contains
        ? [el("strong", {}, "No matching streams"), `No stream name contains “${choice.contains}”.`]
        : [el("strong", {}, "No streams yet"), "A stream appears here when a source or the store has one."];
      this.none.replaceChildren(...text);
    }
    keep(this.table.body, items, (item) => item.stream, () => this.#makeRow(), (node, item) => this.#fillRow(node, item));
    say(this.range, `${count(first + 1)} to ${count(first + items.length)} of ${count(total)}`);
    this.before.disabled = this.#places.length === 1;
    this.after.disabled = next === null;
    this.before.hidden = this.after.hidden = this.#places.length === 1 && next === null;
  }

  #makeRow() {
    const link = el("a", {}, "");
    const cells = [
      [link, el("small"), el("small", { class: "why", hidden: true })],
      el("span", { class: "badge" }),
      "",
      ["", el("small")],
      ["", el("span", { class: "meter" }, el("i"))],
      ["", el("small")],
      "",
      "",
    ];
    return row(COLUMNS, cells);
  }

  #fillRow(node, item) {
    const [name, mode, behind, waiting, buffer, stored, speed, progress] = node.cells;
    const [space, topic] = nameOf(item.stream);
    const [link, small, why] = name.children;
    if (link.dataset.stream !== item.stream) {
      link.href = `#/stream/${encodeURIComponent(item.stream)}`;
      link.dataset.stream = item.stream;
      link.addEventListener("click", () => (this.#opened = link.dataset.stream));
    }
    say(link, topic);
    say(small, space);
    say(why, item.disconnected ?? item.stalled ?? item.last_error ?? "");
    why.hidden = !why.textContent;
    const [word, state] = modeOf(item);
    say(mode.firstElementChild, word);
    mark(mode.firstElementChild, state);
    say(behind, item.lag ? lagOf(item) : "");
    two(waiting, entriesOf(item), item.lag?.bytes ? bytes(item.lag.bytes) : "");
    const used = item.buffer ? percent(item.buffer.bytes, item.buffer.bytes_max) : null;
    say(buffer.firstChild, used === null ? "" : `${used.toFixed(0)}%`);
    buffer.lastElementChild.hidden = used === null;
    buffer.lastElementChild.firstElementChild.style.width = `${used ?? 0}%`;
    buffer.lastElementChild.firstElementChild.dataset.full = String((used ?? 0) > 90);
    two(stored, bytes(item.bytes_offloaded), item.entries_offloaded ? many(item.entries_offloaded, "entry", "entries") : "");
    say(speed, rateOf(item));
    say(progress, item.last_progress_ms ? ago(item.last_progress_ms) : "");
    for (const cell of [behind, waiting, buffer, speed, progress]) cell.dataset.empty = String(!cell.textContent);
  }

  #showDecisions(items) {
    if (items.length === 0) {
      show(this.decisions.body, el("p", { class: "empty" }, "No retention cycle has run yet."));
      return;
    }
    const lines = items.map((each) =>
      el(
        "li",
        {},
        el("span", { class: "when" }, ago(each.at_ms)),
        streamLink(each.stream),
        el("div", {}, decisionWords(each)),
        each.hint ? el("div", { class: "hint" }, each.hint) : null,
      ),
    );
    show(this.decisions.body, el("ul", { class: "said" }, ...lines));
  }

  #showErrors(items) {
    const text = "No errors or warnings since the process started.";
    show(this.errors.body, items.length ? errorList(items) : el("p", { class: "empty" }, text));
  }

  #showUpkeep({ left, jobs }) {
    if (left === null) {
      show(this.upkeep.body, el("p", { class: "empty" }, "This process runs no cleanup."));
      return;
    }
    const facts = [];
    for (const [name, text] of [["cleanup", "Cleanup"], ["orphans", "Orphan search"]]) {
      const run = jobs[name];
      facts.push(el("dt", {}, text));
      const ended = run?.error ? `failed ${ago(run.at_ms)}: ${run.error}` : `completed ${ago(run?.at_ms)}`;
      facts.push(el("dd", {}, run ? ended : "not run yet"));
    }
    for (const [owner, text] of [["ours", "Orphans, kept for now"], ["foreign", "Foreign objects, never deleted"]]) {
      const some = left[owner];
      if (!some) continue;
      facts.push(el("dt", {}, text));
      const oldest = some.oldest_ms ? `, oldest: ${ago(some.oldest_ms)}` : "";
      facts.push(el("dd", {}, `${many(some.objects, "object")}, ${bytes(some.size_bytes)}${oldest}`));
    }
    show(this.upkeep.body, el("div", { class: "body" }, el("dl", { class: "facts" }, ...facts)));
  }
}

/** What doesn't answer the process, in words; the problems say why. */
export function outagesOf({ health }) {
  const found = [];
  if (health?.store?.up === false) found.push("Store unreachable");
  for (const [feed, source] of Object.entries(health?.sources ?? {})) {
    if (source.up === false) found.push(feed === "pulsar" ? "Broker unreachable" : `Feed ${feed} unreachable`);
  }
  return found;
}

/** How many things are wrong; a stalled stream may be one of the problems too. */
export const troubleOf = ({ problems, streams }) => Math.max(problems.length, streams.stalled);

/** How many entries wait; what a hot tier that can't be asked has got since isn't known. */
function entriesOf({ lag, lag_known_ms: knownMs }) {
  if (!lag) return "";
  if (!knownMs) return roughly(lag.entries);
  return lag.entries ? `≥ ${roughly(lag.entries)}` : "unknown";
}

/** `text` in a cell, and something small below it. */
function two(cell, text, small) {
  say(cell.firstChild, text);
  say(cell.lastElementChild, small);
}

function tile(name, value, note, { parts = [], state = "", more = "", full = false } = {}) {
  const bars = parts.map(([part, width]) => {
    const bar = el("i", { "data-part": part, "data-full": String(full) });
    bar.style.width = `${width}%`;
    return bar;
  });
  return el(
    "section",
    { class: "card tile", "aria-label": name, "data-state": state || null },
    el("span", { class: "name" }, name),
    el("span", { class: "value" }, value),
    bars.length ? el("span", { class: "meter", "aria-hidden": "true" }, ...bars) : null,
    el("span", { class: "note" }, note),
    more ? el("span", { class: "note" }, el("strong", {}, more)) : null,
  );
}

const streamLink = (stream) => el("a", { href: `#/stream/${encodeURIComponent(stream)}` }, nameOf(stream)[1]);

export function errorList(items) {
  const lines = items.map((each) =>
    el(
      "li",
      {},
      el("span", { class: "when" }, ago(each.last_ms)),
      el("span", { class: "badge", "data-state": each.level === "warning" ? "warn" : "bad" }, each.level),
      " ",
      each.stream ? streamLink(each.stream) : null,
      each.count > 1 ? ` ${count(each.count)} times since ${at(each.first_ms)}` : null,
      el("div", {}, each.message),
      each.hint ? el("div", { class: "hint" }, each.hint) : null,
    ),
  );
  return el("ul", { class: "said" }, ...lines);
}

/** A cycle of retention in one sentence. */
function decisionWords({ why, bytes: size, overridden, error }) {
  if (error) return `Failed: ${error}`;
  const went = size ? `${bytes(size)}: ` : "";
  const lost = overridden.length ? ` Unread data of these subscribers was deleted: ${overridden.join(", ")}.` : "";
  return `${went}${why}.${lost}`;
}
