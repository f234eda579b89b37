/**
 * One stream as a picture: ledgers above, the segments that hold them below, entries over time at the bottom.
 *
 * Must never ask for anything: it draws what it is given. Times are the axis where they ascend, else entries are.
 */

import { el, svg } from "./dom.js";
import { at, bytes, count, many, roughly, shortly } from "./words.js";

const COLOURS = 8;
const HEIGHT = { ledger: 46, between: 26, segment: 46, rate: 74, axis: 22 };
const TOP = 20;
// What a letter of a bar's text takes, and the room beside it; narrower bars carry none.
const LETTER_PX = 6.9;
const BESIDE_PX = 8;
const GAP_PX = 1.5;
const BINS = 60;
const WAITING_PART = 0.12;
const LINES_MAX = 40;

/**
 * @param {object} shape `ledgers` and `segments` as `{name, start, stop, size_bytes}`, `timeline`, `gaps`
 * @param {number} waiting entries that the hot tier has and the cold tier has not
 * @param {number} width pixels
 */
export function draw(shape, waiting, width) {
  const events = Math.max(1, ...[...shape.ledgers, ...shape.segments].map((each) => each.stop));
  const axis = axisOf(shape, events, waiting ? width * (1 - WAITING_PART) : width);
  const rows = {
    ledger: TOP,
    segment: TOP + HEIGHT.ledger + HEIGHT.between,
    rate: TOP + HEIGHT.ledger + HEIGHT.between + HEIGHT.segment + 24,
  };
  const height = rows.rate + HEIGHT.rate + HEIGHT.axis;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    height,
    role: "img",
    "aria-label": summary(shape, waiting),
  });
  const colour = new Map(shape.ledgers.map((ledger, number) => [ledger, number % COLOURS]));
  if (shape.ledgers.length <= LINES_MAX) drawSeams(picture, shape, axis, rows);
  picture.append(svg("text", { x: 0, y: TOP - 7 }, "ledgers"));
  for (const ledger of shape.ledgers) {
    const [x, wide] = axis.bar(ledger);
    picture.append(bar(x, rows.ledger, wide, HEIGHT.ledger, colour.get(ledger), 1, spanTitle(ledger)));
    label(picture, x, wide, rows.ledger, ledger.name, roughly(ledger.stop - ledger.start), "inside");
  }
  picture.append(svg("text", { x: 0, y: rows.segment - 7 }, "segments in the store"));
  drawSegments(picture, shape, axis, rows.segment, colour);
  for (const [before, what] of shape.gaps) {
    const x = axis.x(before);
    picture.append(
      svg("line", { class: "gap", x1: x, x2: x, y1: rows.ledger - 4, y2: rows.segment + HEIGHT.segment + 4 },
        svg("title", {}, what)),
    );
  }
  if (waiting) drawWaiting(picture, waiting, width, rows);
  drawRate(picture, shape, axis, rows.rate, events);
  return picture;
}

/** What the picture says, for those who don't see it, and as its heading. */
export function summary(shape, waiting) {
  const entries = shape.segments.reduce((sum, each) => sum + each.stop - each.start, 0);
  const parts = [
    `${many(entries, "entry", "entries")} in ${many(shape.ledgers_total ?? shape.ledgers.length, "ledger")}`,
    `offloaded as ${many(shape.segments_total ?? shape.segments.length, "segment")}`,
  ];
  if (shape.gaps.length) parts.push(many(shape.gaps.length, "gap"));
  if (waiting) parts.push(`${many(waiting, "entry", "entries")} waiting`);
  return parts.join(", ");
}

export const legend = (shape, waiting) =>
  el(
    "p",
    { class: "legend" },
    el("span", {}, "One colour for each ledger; a segment shows the colours of its ledgers."),
    shape.gaps.length ? el("span", {}, "Red lines are recorded gaps.") : null,
    waiting ? el("span", {}, "Hatched: not offloaded yet.") : null,
    shape.is_thinned ? el("span", {}, "Small neighbours are drawn as one bar.") : null,
  );

function axisOf(shape, events, width) {
  const times = shape.timeline.map(([, time]) => time);
  const rises = times.every((time, number) => time >= 0 && (number === 0 || time >= times[number - 1]));
  const byTime = rises && times.length > 1 && times.at(-1) > times[0];
  const x = byTime ? overTime(shape.timeline, width) : (event) => (event / events) * width;
  const bar = ({ start, stop }) => {
    const [from, to] = [x(start), x(stop)];
    const inset = to - from > 4 ? GAP_PX / 2 : 0;
    return [from + inset, Math.max(to - from - 2 * inset, 0.75)];
  };
  return { x, bar, byTime, width, from: times[0], to: times.at(-1) };
}

/** Events -> pixels, straight between the points of the timeline. */
function overTime(timeline, width) {
  const [from, to] = [timeline[0][1], timeline.at(-1)[1]];
  const scale = (time) => ((time - from) / (to - from)) * width;
  return (event) => {
    let low = 0;
    let high = timeline.length - 1;
    if (event >= timeline[high][0]) return width;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (timeline[middle][0] <= event) low = middle;
      else high = middle;
    }
    const [before, time] = timeline[low];
    const [after, later] = timeline[high];
    return scale(after > before ? time + ((event - before) / (after - before)) * (later - time) : time);
  };
}

function bar(x, y, width, height, colour, opacity, title, round = Math.min(4, width / 3)) {
  return svg(
    "rect",
    { x, y, width, height, rx: round, fill: `var(--ledger-${colour})`, "fill-opacity": opacity, "data-ledger": colour },
    title ? svg("title", {}, title) : null,
  );
}

function label(picture, x, width, y, first, second, kind) {
  if (width < Math.max(first.length, second.length) * LETTER_PX + BESIDE_PX) return;
  const middle = x + width / 2;
  const text = (dy, words) => svg("text", { class: kind, x: middle, y: y + dy, "text-anchor": "middle" }, words);
  picture.append(text(20, first), text(35, second));
}

const spanTitle = (each) =>
  `${each.name}: ${many(each.stop - each.start, "entry", "entries")}, ${bytes(each.size_bytes)}`;

function drawSegments(picture, shape, axis, y, colour) {
  let number = 0;
  for (const segment of shape.segments) {
    while (number < shape.ledgers.length && shape.ledgers[number].stop <= segment.start) number += 1;
    const inside = [];
    for (let each = number; each < shape.ledgers.length && shape.ledgers[each].start < segment.stop; each += 1) {
      inside.push(shape.ledgers[each]);
    }
    const title = `${spanTitle(segment)}, of ${inside.length > 3 ? many(inside.length, "ledger") : inside.map((each) => each.name).join(", ")}`;
    const [left, whole] = axis.bar(segment);
    for (const ledger of inside) {
      const from = Math.max(axis.x(Math.max(segment.start, ledger.start)), left);
      const to = Math.min(axis.x(Math.min(segment.stop, ledger.stop)), left + whole);
      const wide = Math.max(to - from, 0.75);
      picture.append(
        bar(from, y, wide, HEIGHT.segment, colour.get(ledger), 0.3, title, 0),
        bar(from, y, wide, 4, colour.get(ledger), 1, "", 0),
      );
    }
    if (whole > 3) {
      picture.append(svg("rect", { class: "edge", x: left, y, width: whole, height: HEIGHT.segment, rx: 2 }));
    }
    label(picture, left, whole, y, segment.name, bytes(segment.size_bytes), "on-tint");
  }
}

function drawSeams(picture, shape, axis, rows) {
  for (const ledger of shape.ledgers.slice(1)) {
    const x = axis.x(ledger.start);
    const below = rows.segment + HEIGHT.segment;
    picture.append(
      svg("line", { class: "seam", x1: x, x2: x, y1: rows.ledger + HEIGHT.ledger, y2: rows.segment }),
      svg("line", { class: "seam", x1: x, x2: x, y1: below, y2: rows.rate + HEIGHT.rate }),
    );
  }
}

function drawWaiting(picture, waiting, width, rows) {
  const x = width * (1 - WAITING_PART) + 6;
  const wide = width * WAITING_PART - 7;
  const box = { class: "waiting", x, y: rows.ledger + 0.5, width: wide, height: HEIGHT.ledger - 1, rx: 4 };
  picture.append(svg("rect", box, svg("title", {}, `${many(waiting, "entry", "entries")} wait in the hot tier`)));
  const middle = { class: "told", x: x + wide / 2, "text-anchor": "middle" };
  picture.append(
    svg("text", { ...middle, y: rows.ledger + 20 }, wide > 50 ? roughly(waiting) : shortly(waiting)),
    svg("text", { ...middle, y: rows.ledger + 35 }, wide > 50 ? "waiting" : "wait"),
  );
}

/** Entries over the axis as an area, with a few places named below. */
function drawRate(picture, shape, axis, y, events) {
  const { width } = axis;
  const bottom = y + HEIGHT.rate;
  picture.append(svg("line", { class: "rule", x1: 0, x2: width, y1: bottom, y2: bottom }));
  if (axis.byTime) {
    const bins = new Array(BINS).fill(0);
    for (const segment of shape.segments) spread(bins, axis, segment);
    const most = Math.max(...bins, 1);
    const step = width / BINS;
    const points = bins.map((value, at) => {
      const top = bottom - (value / most) * (HEIGHT.rate - 14);
      return `L${(at * step).toFixed(1)} ${top.toFixed(1)} L${((at + 1) * step).toFixed(1)} ${top.toFixed(1)}`;
    });
    picture.append(svg("path", { class: "rate", d: `M0 ${bottom} ${points.join(" ")} L${width} ${bottom} Z` }));
    picture.append(svg("text", { x: 0, y: y - 4 }, "entries over publish time"));
    ends(picture, width, bottom, at(axis.from), at(axis.to));
  } else {
    drawTimes(picture, shape, axis, y, bottom);
    ends(picture, width, bottom, "0", `${count(events)} entries`);
  }
}

/** Publish times along the stream, where they don't rise and so can't be the axis. */
function drawTimes(picture, shape, axis, y, bottom) {
  const known = shape.timeline.filter(([, time]) => time >= 0);
  const times = known.map(([, time]) => time);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const what = known.length ? `publish times, ${at(from)} to ${at(to)}; the axis is entries` : "no publish times";
  picture.append(svg("text", { x: 0, y: y - 4 }, what));
  const height = (time) => bottom - 5 - ((time - from) / Math.max(to - from, 1)) * (HEIGHT.rate - 16);
  const points = known.map(([events, time]) => `${axis.x(events).toFixed(1)},${height(time).toFixed(1)}`);
  picture.append(svg("polyline", { class: "times", points: points.join(" ") }));
}

/** A segment's entries over the bins that its time covers. */
function spread(bins, axis, segment) {
  const [from, to] = [axis.x(segment.start), axis.x(segment.stop)];
  const step = axis.width / BINS;
  const first = Math.min(Math.floor(from / step), BINS - 1);
  const last = Math.min(Math.floor(Math.max(to - 1e-6, from) / step), BINS - 1);
  for (let each = first; each <= last; each += 1) {
    const part = to > from ? (Math.min(to, (each + 1) * step) - Math.max(from, each * step)) / (to - from) : 1;
    bins[each] += (segment.stop - segment.start) * Math.max(part, 0);
  }
}

function ends(picture, width, y, left, right) {
  picture.append(
    svg("text", { x: 0, y: y + 16 }, left),
    svg("text", { x: width, y: y + 16, "text-anchor": "end" }, right),
  );
}
