/**
 * The segments of a scalable topic as a picture: each is as wide as its range of hashes, below those that it continues.
 *
 * Must never ask for anything: it draws what it is given.
 */

import { el, svg } from "./dom.js";
import { many } from "./words.js";

const ROW_PX = 30;
const BETWEEN_PX = 10;
const TOP = 20;
const GAP_PX = 2;
const LETTER_PX = 8;
const WORDS = { active: "takes entries", sealed: "sealed", ending: "sealed, its last entry isn't known yet" };

/**
 * @param {object} graph `{topic, epoch, hashes, levels}`: segments side by side in each level
 * @param {string} shown the stream of this view
 * @param {(stream: string) => string} addressOf of another view
 * @param {number} width pixels
 */
export function drawGraph(graph, shown, addressOf, width) {
  const height = TOP + graph.levels.length * (ROW_PX + BETWEEN_PX);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": graphSummary(graph) });
  const x = (hash) => (hash / graph.hashes) * width;
  picture.append(
    svg("text", { x: 0, y: TOP - 7 }, "hash 0000"),
    svg("text", { x: width, y: TOP - 7, "text-anchor": "end" }, "ffff"),
  );
  graph.levels.forEach((level, at) => {
    const y = TOP + at * (ROW_PX + BETWEEN_PX);
    for (const each of level) {
      const [left, wide] = [x(each.hash_start), x(each.hash_stop - each.hash_start) - GAP_PX];
      const link = svg(
        "a",
        {
          class: "range",
          href: addressOf(each.stream),
          "data-state": each.state,
          "aria-current": each.stream === shown ? "true" : null,
          "aria-label": titleOf(each),
        },
        svg("rect", { x: left, y, width: Math.max(wide, 1), height: ROW_PX, rx: 3 }),
        svg("title", {}, titleOf(each)),
      );
      if (wide > String(each.segment).length * LETTER_PX) {
        link.append(svg("text", { x: left + wide / 2, y: y + ROW_PX / 2 + 4, "text-anchor": "middle" }, String(each.segment)));
      }
      picture.append(link);
    }
  });
  return picture;
}

/** What the picture says, as its heading. */
export function graphSummary({ levels, epoch }) {
  const all = levels.flat();
  const active = all.filter((each) => each.state === "active").length;
  return `${many(all.length, "segment")} of the topic, ${active} active, epoch ${epoch}`;
}

export const graphLegend = ({ levels }) =>
  el(
    "p",
    { class: "legend" },
    el("span", {}, "Each segment is as wide as its range of key hashes, and below the segments that it continues."),
    el("span", {}, "Filled segments take entries; the others are sealed."),
    levels.flat().some((each) => each.state === "ending") ? el("span", {}, "Of framed ones the last entry isn't known yet.") : null,
  );

function titleOf({ segment, hash_start: start, hash_stop: stop, after, state }) {
  const hex = (hash) => hash.toString(16).padStart(4, "0");
  const follows = after.length ? `, after ${after.join(" and ")}` : "";
  return `Segment ${segment}, hashes ${hex(start)} to ${hex(stop - 1)}${follows}: ${WORDS[state] ?? state}`;
}
