/**
 * The view of one stream: what it does, its picture, segments, why what of it is kept, who reads it.
 */

import { Actions } from "./actions.js";
import { ask, part, routes, Unreachable } from "./api.js";
import { card, el, mark, row, say, show, table } from "./dom.js";
import { drawGraph, graphLegend, graphSummary } from "./graph.js";
import { draw, legend, summary } from "./picture.js";
import { store } from "./store.js";
import { errorList } from "./streams.js";
import { ago, at, bytes, count, lagOf, many, modeOf, nameOf, percent, rateOf, span } from "./words.js";

const PAGE_ROWS = 20;
// What is read from the store, not from memory, is asked for less often; sooner where something was committed.
const STORE_EVERY_MS = 15_000;
const STORE_SOONEST_MS = 4_000;
const PICTURE_PX_MIN = 240;
const SEGMENTS = [
  ["Segment", ""],
  ["Status", ""],
  ["Entries", "number"],
  ["From", "number"],
  ["To", "number"],
  ["Stored", "number"],
  ["Offloaded", "number"],
];
const PARTITIONS = [
  ["Partition", ""],
  ["Mode", ""],
  ["Behind", "number"],
  ["Offloaded", "number"],
  ["Rate", "number"],
  ["Progress", "number"],
];
const SUBSCRIBERS = [
  ["Subscriber", ""],
  ["State", ""],
  ["Unread", "number"],
  ["Entries", "number"],
  ["Last seen", "number"],
];
const PLAN = [
  ["Segment", ""],
  ["Step", ""],
  ["Size", "number"],
  ["Why", ""],
];

export class StreamView {
  title;
  #name;
  /** Where each page of segments up to this one begins. */
  #places = [""];
  #next = null;
  #askAgain;
  /** What came from the store last, and when. */
  #slow = {};
  #slowAt = 0;
  #askedAt = 0;
  #isShown = false;
  #drawn = null;

  /**
   * @param {string} name
   * @param {() => void} askAgain another page was chosen
   */
  constructor(name, askAgain) {
    this.#name = name;
    this.#askAgain = askAgain;
    this.title = nameOf(name)[1];
    this.badge = el("span", { class: "badge", "data-state": "loading" }, "loading");
    this.heading = el("h1", { tabindex: "-1" }, this.title);
    this.trouble = el("div", { class: "notice bad", role: "alert", hidden: true });
    this.tiles = el("div", { class: "tiles" });
    this.partitions = card("Partitions");
    this.partitions.section.hidden = true;
    this.graph = card("Segments of the topic");
    this.graph.section.hidden = true;
    this.picture = card("Ledgers, segments and time");
    this.facts = card("Positions");
    this.retention = card("Retention: next decision");
    this.decisions = card("Past retention decisions");
    this.subscribers = card("Subscribers");
    this.segments = card("Segments");
    this.plan = card("Cleanup: next round");
    this.errors = card("Errors and warnings");
    this.actions = new Actions(name, () => {
      this.#askedAt = 0;
      askAgain();
    });
    this.fresh = el("p", { class: "fresh" });
    this.#makeSegments();
    const [space] = nameOf(name);
    const [topic, scalable] = [PARTITION.exec(name), topicOf(name)];
    const whole = topic
      ? el("a", { class: "back", href: addressOf(topic[1]) }, "All partitions")
      : scalable && el("a", { class: "back", href: addressOf(scalable) }, "The whole topic");
    this.root = el(
      "div",
      { class: "stack" },
      el(
        "div",
        { class: "head" },
        el("a", { class: "back", href: "#/" }, "← All streams"),
        this.heading,
        this.badge,
        el("span", { class: "faint" }, space),
        whole,
        this.actions.bar,
      ),
      this.trouble,
      this.actions.notice,
      this.tiles,
      this.fresh,
      this.graph.section,
      this.partitions.section,
      this.picture.section,
      el("div", { class: "two" }, this.facts.section, this.subscribers.section),
      this.retention.section,
      this.segments.section,
      el("div", { class: "two" }, this.plan.section, this.decisions.section),
      this.errors.section,
      this.actions.dialog,
    );
    const cards = [this.picture, this.facts, this.subscribers, this.retention, this.plan, this.decisions, this.errors];
    for (const each of cards) show(each.body, el("p", { class: "empty" }, "Loading…"));
    for (const each of cards.slice(-3)) each.body.className = "scroll";
    new ResizeObserver(() => this.#draw()).observe(this.picture.section);
  }

  #makeSegments() {
    this.table = table(SEGMENTS, "Segments");
    this.range = el("span", { role: "status" }, "Loading…");
    const turn = (step) => () => {
      if (step > 0 && this.#next) this.#places.push(this.#next);
      this.#next = null; // known again once that page is here: a second click doesn't count
      if (step < 0 && this.#places.length > 1) this.#places.pop();
      this.#askedAt = 0;
      this.#askAgain();
    };
    this.before = el("button", { type: "button", onclick: turn(-1), disabled: true }, "Previous");
    this.after = el("button", { type: "button", onclick: turn(1), disabled: true }, "Next");
    this.segments.body.append(this.table.whole, el("div", { class: "pager" }, this.range, this.before, this.after));
  }

  focus() {
    this.heading.focus({ preventScroll: true });
  }

  /** Escape. */
  back() {
    location.hash = "#/";
  }

  /** @param {(data: object) => void} paint shows what is known already */
  async load(signal, paint) {
    const name = this.#name;
    const overview = await ask(routes.overview, {}, signal);
    store.isDown = overview.health?.store?.up === false;
    const [known, errors] = await Promise.all([
      part(ask(routes.stream(name), { served: true }, signal)),
      ask(routes.errors, { stream: name, limit: PAGE_ROWS }, signal),
    ]);
    // The process's own state is shown at once, whatever the store does.
    if (!this.#isShown && !known.failed) paint({ overview, stream: known, errors, ...this.#slow });
    const found = await store.ask(() => ask(routes.stream(name), {}, signal), this.#askAgain);
    if (found.failed && known.failed) throw found.failed;
    const stream = found.answer ?? { ...known, store_error: found.failed?.message ?? "no answer yet" };
    if (stream.failed) return { overview, stream: null, errors };
    const age = Date.now() - this.#askedAt;
    if (age > STORE_EVERY_MS || (age > STORE_SOONEST_MS && stream.committed !== this.#slow.committed)) {
      this.#askedAt = Date.now();
      await this.#askSlow(stream.committed, signal, found.failed);
    }
    return { overview, stream, errors, ...this.#slow };
  }

  /** What only the store knows. Each part that hasn't come says why; what came before stays shown. */
  async #askSlow(committed, signal, away) {
    const name = this.#name;
    const decided = topicOf(name) ?? name; // retention decides for all segments together
    const cursor = this.#places.at(-1);
    const answers = async () => {
      // The others are asked once the first one was answered: a store that is away is asked one thing at a time.
      const shape = await part(ask(routes.shape(name), {}, signal));
      if (shape.failed instanceof Unreachable) throw shape.failed;
      const [graph, segments, retention, decisions, subscribers, cleanup] = await Promise.all([
        part(ask(routes.graph(name), {}, signal)),
        part(ask(routes.segments(name), { cursor, limit: PAGE_ROWS }, signal)),
        part(ask(routes.retention(decided), {}, signal)),
        part(ask(routes.decisionsOf(decided), {}, signal)),
        part(ask(routes.subscribers(decided), {}, signal)),
        part(ask(routes.cleanup(name), {}, signal)),
      ]);
      this.#slow = { committed, shape, graph, segments, retention, decisions, subscribers, cleanup };
      this.#slowAt = Date.now();
      return this.#slow;
    };
    const found = away ? { failed: away } : await store.ask(answers, this.#askAgain);
    const failed = found.failed ?? (found.late ? new Unreachable("no answer from the store yet") : null);
    if (!failed) return;
    this.#askedAt = 0;
    if (this.#slowAt) return;
    const parts = ["shape", "graph", "segments", "retention", "decisions", "subscribers", "cleanup"];
    this.#slow = Object.fromEntries(parts.map((each) => [each, { failed }]));
  }

  render({ overview, stream, errors, shape, graph, segments, retention, decisions, subscribers, cleanup }) {
    if (!stream) return;
    this.#isShown = true;
    this.actions.show(overview, stream, cleanup);
    this.#showFresh(overview);
    const [word, state] = modeOf(stream);
    say(this.badge, word);
    mark(this.badge, state);
    this.#showTrouble(stream);
    this.#showTiles(stream);
    this.#showFacts(stream, overview);
    this.#showPartitions(stream.partitions);
    this.#drawn = { shape, graph, waiting: stream.lag?.entries ?? 0 };
    this.#draw();
    if (shape) {
      this.#showSegments(segments);
      this.#showRetention(retention);
      this.#showSubscribers(subscribers);
      this.#showPlan(cleanup);
      this.#showDecisions(decisions);
    }
    const none = el("p", { class: "empty" }, "No errors or warnings since the process started.");
    show(this.errors.body, errors.items.length ? errorList(errors.items) : none);
  }

  /** How old the figures are. */
  #showFresh({ now_ms: nowMs, seen_ms: seenMs }) {
    const ours = seenMs ? `Process figures: ${span((nowMs - seenMs) / 1000)} old` : "";
    const its = this.#slowAt ? `store figures: ${span((Date.now() - this.#slowAt) / 1000)} old` : "";
    say(this.fresh, `${[ours, its || "no figures from the store yet"].filter(Boolean).join(", ")}.`);
  }

  #showTrouble({ stalled, disconnected, last_error: error, store_error: unknown }) {
    const lines = [
      disconnected,
      stalled,
      error && !stalled?.includes(error) ? `Last error: ${error}` : null,
      unknown ? `No figures from the store: ${unknown}` : null,
    ];
    const said = lines.filter(Boolean).map((text) => el("p", {}, text));
    this.trouble.hidden = said.length === 0;
    if (said.length) show(this.trouble, el("div", {}, ...said));
  }

  #showTiles(stream) {
    const { feed, lag, buffer, segments, last_progress_ms: progress } = stream;
    const { bytes_offloaded: size, entries_offloaded: entries } = stream;
    const one = (name, value, note, part = null) => {
      const bar = el("i", { "data-full": String((part ?? 0) > 90) });
      bar.style.width = `${part ?? 0}%`;
      return el(
        "section",
        { class: "card tile", "aria-label": name },
        el("span", { class: "name" }, name),
        el("span", { class: "value" }, value),
        part === null ? null : el("span", { class: "meter", "aria-hidden": "true" }, bar),
        el("span", { class: "note" }, note),
      );
    };
    const unknown = feed ? "not measured in this mode" : "the hot tier is not on this process";
    const waiting = lag ? `${many(lag.entries, "entry", "entries")} waiting, ${bytes(lag.bytes)}` : unknown;
    const failed = segments.failed ? `, ${count(segments.failed)} failed` : "";
    show(
      this.tiles,
      one("Behind", lag ? lagOf(stream) : "–", waiting),
      one("In the store", bytes(size), entries === null ? "according to the manifest" : many(entries, "entry", "entries")),
      buffer
        ? one("Buffer", bytes(buffer.bytes), `of ${bytes(buffer.bytes_max)}`, percent(buffer.bytes, buffer.bytes_max))
        : one("Buffer", "–", feed ? "empty" : "not offloaded by this process"),
      one("Segments", count(segments.offloaded), `last progress ${ago(progress)}${failed}`),
    );
  }

  #showFacts(stream, { store }) {
    const facts = [
      ["Name", stream.stream],
      ["Source", stream.feed ?? "none in this process: only in the store"],
      ["Method", stream.method],
      ["Rate, mean of 5 min", rateOf(stream)],
      ["Committed up to", stream.committed],
      ["Offered up to", stream.offered],
      ["Newest entry", stream.tail],
      ["Writer", stream.writer],
      ["Epoch", stream.epoch === undefined ? null : count(stream.epoch)],
      ["Manifest", stream.record === undefined ? null : `record ${count(stream.record)}, ${ago(stream.recorded_ms)}`],
      ["Refused offers", stream.offers_refused ? count(stream.offers_refused) : null],
      ["Gaps", stream.gaps ? count(stream.gaps) : null],
      ["Store", store?.url],
    ];
    const told = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
    const lines = told.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]);
    show(this.facts.body, el("div", { class: "body" }, el("dl", { class: "facts" }, ...lines)));
  }

  /** Those of a topic: each has a picture of its own. */
  #showPartitions(partitions) {
    this.partitions.section.hidden = !partitions;
    this.picture.section.hidden = Boolean(partitions);
    if (!partitions) return;
    const isScalable = partitions.some((each) => topicOf(each.stream));
    say(this.partitions.heading, isScalable ? "Streams of the segments" : "Partitions");
    const made = table(isScalable ? [["Segment", ""], ...PARTITIONS.slice(1)] : PARTITIONS, "Partitions");
    const lines = partitions.map((each) => {
      const badge = el("span", { class: "badge" });
      const [word, state] = modeOf(each);
      say(badge, word);
      mark(badge, state);
      return row(PARTITIONS, [
        el("a", { href: addressOf(each.stream) }, `${topicOf(each.stream) ? "segment" : "partition"} ${each.partition}`),
        badge,
        each.lag ? lagOf(each) : "–",
        bytes(each.bytes_offloaded),
        rateOf(each) || "–",
        ago(each.last_progress_ms),
      ]);
    });
    made.body.append(...lines);
    show(this.partitions.body, made.whole);
  }

  /** Of a scalable topic, or of one of its segments. */
  #drawGraph(graph) {
    const isDrawn = Boolean(graph?.levels?.length);
    this.graph.section.hidden = !isDrawn;
    if (!isDrawn) return;
    const width = Math.max(this.graph.section.clientWidth - 36, PICTURE_PX_MIN);
    say(this.graph.heading, graphSummary(graph));
    show(this.graph.body, el("div", { class: "picture" }, drawGraph(graph, this.#name, addressOf, width), graphLegend(graph)));
  }

  #draw() {
    this.#drawGraph(this.#drawn?.graph);
    if (!this.#drawn?.shape || this.#drawn.shape.partitions) return;
    const { shape, waiting } = this.#drawn;
    if (shape.failed) {
      show(this.picture.body, note(shape.failed));
      return;
    }
    if (shape.segments.length === 0) {
      show(this.picture.body, el("p", { class: "empty" }, "No entries are in the store yet."));
      return;
    }
    const width = Math.max(this.picture.section.clientWidth - 36, PICTURE_PX_MIN);
    say(this.picture.heading, summary(shape, waiting));
    show(this.picture.body, el("div", { class: "picture" }, draw(shape, waiting, width), legend(shape, waiting)));
  }

  #showSegments(page) {
    if (page.failed) {
      say(this.range, page.failed.message);
      return;
    }
    this.#next = page.next_cursor;
    const lines = page.items.map((each) =>
      row(SEGMENTS, [
        [el("span", { class: "mono" }, each.uuid.slice(0, 8)), el("small", {}, `${partOf(each)}${each.layout}, ${ledgers(each.ledgers)}`)],
        each.status,
        count(each.entries),
        [each.first, el("small", {}, each.publish_time_min_ms ? at(each.publish_time_min_ms) : "")],
        [each.last ?? "", el("small", {}, each.publish_time_max_ms ? at(each.publish_time_max_ms) : "")],
        bytes(each.object_bytes),
        each.offloaded_ms ? ago(each.offloaded_ms) : "",
      ]),
    );
    show(this.table.body, ...lines);
    const before = (this.#places.length - 1) * PAGE_ROWS;
    const [first, last] = [before + 1, before + page.items.length];
    say(this.range, page.items.length ? `${count(first)} to ${count(last)} of ${count(page.total)}` : "No segments yet");
    this.before.disabled = this.#places.length === 1;
    this.after.disabled = page.next_cursor === null;
  }

  #showRetention(found) {
    if (found.failed) show(this.retention.body, note(found.failed));
    else show(this.retention.body, el("pre", { class: "words", tabindex: "0" }, found.words.join("\n")));
  }

  #showDecisions(found) {
    if (found.failed || found.items.length === 0) {
      show(this.decisions.body, found.failed ? note(found.failed) : el("p", { class: "empty" }, "No decisions yet."));
      return;
    }
    const lines = found.items.map((each) =>
      el(
        "li",
        {},
        el("span", { class: "when" }, ago(each.at_ms)),
        el("div", {}, each.removed_bytes ? `Deleted ${bytes(each.removed_bytes)}` : "Nothing deleted"),
        el("div", { class: "faint" }, each.why),
        each.overridden.length ? el("div", {}, `unread data of these subscribers was deleted: ${each.overridden.map((one) => one.name).join(", ")}`) : null,
      ),
    );
    show(this.decisions.body, el("ul", { class: "said" }, ...lines));
  }

  #showSubscribers(found) {
    if (found.failed || found.items.length === 0) {
      show(this.subscribers.body, found.failed ? note(found.failed) : el("p", { class: "empty" }, "No subscribers."));
      return;
    }
    const made = table(SUBSCRIBERS, "Subscribers");
    const lines = found.items.map((each) =>
      row(SUBSCRIBERS, [
        each.subscriber,
        each.activity.replaceAll("_", " "),
        bytes(each.lag_bytes),
        count(each.lag_entries),
        ago(each.active_ms),
      ]),
    );
    made.body.append(...lines);
    show(this.subscribers.body, made.whole);
  }

  #showPlan(plan) {
    if (plan.failed || plan.lines.length === 0) {
      const text = plan.held ? "On hold: nothing is deleted." : "Nothing to delete.";
      show(this.plan.body, plan.failed ? note(plan.failed) : el("p", { class: "empty" }, text));
      return;
    }
    const made = table(PLAN, "Plan of cleanup");
    const lines = plan.lines.map((each) =>
      row(PLAN, [
        [el("span", { class: "mono" }, each.segment.slice(0, 8)), el("small", {}, `${each.first ?? ""} – ${each.last ?? ""}`)],
        each.action,
        bytes(each.object_bytes),
        [each.rule, el("small", {}, each.waits_for ? `waits for ${each.waits_for}${each.until_ms ? ` until ${at(each.until_ms)}` : ""}` : "")],
      ]),
    );
    made.body.append(...lines);
    show(this.plan.body, made.whole);
  }
}

const PARTITION = /^(.+)-partition-\d+$/;
/** The scalable topic of a segment. */
const SEGMENT = /^([^/]+\/[^/]+)\/segment\/([^/]+)\/[^/]+$/;

function topicOf(name) {
  const segment = SEGMENT.exec(name);
  return segment && `${segment[1]}/topic/${segment[2]}`;
}

const addressOf = (name) => `#/stream/${encodeURIComponent(name)}`;

/** Of a topic's row: which partition or segment of the topic it is of. */
const partOf = ({ partition, stream }) =>
  partition === undefined ? "" : `${topicOf(stream ?? "") ? "segment" : "partition"} ${partition}, `;

const note = (error) => el("p", { class: "empty" }, error.message, error.hint ? el("small", {}, ` ${error.hint}`) : null);

function ledgers(ids) {
  if (ids.length === 0) return "no ledger";
  return ids.length === 1 ? `ledger ${ids[0]}` : `ledgers ${ids[0]} to ${ids.at(-1)}`;
}
