/**
 * What the process offloaded in the last hour: the rate now, and a bar for each minute.
 *
 * Must never ask for anything: it draws what it is given.
 */

import { el, svg } from "./dom.js";
import { bytes, rate } from "./words.js";

const MINUTES = 60;
const HEIGHT = 56;
const STEP = 10;
const BAR = 7;

/** @param {{minute_bytes: number[], bytes_per_second: number}} hour the oldest minute first */
export function hourOf({ minute_bytes: minutes, bytes_per_second: perSecond }) {
  const total = minutes.reduce((sum, each) => sum + each, 0);
  const peak = Math.max(...minutes, 0);
  const since = minutes.length < MINUTES ? `since the process started, ${minutes.length} min ago` : "in the last hour";
  return [
    el(
      "div",
      {},
      el("span", { class: "name" }, "Offloaded, mean of 5 min"),
      el("span", { class: "value" }, rate(perSecond)),
      el("span", { class: "note" }, `${bytes(total)} ${since}`),
    ),
    el(
      "figure",
      {},
      bars(minutes, peak, `${bytes(total)} ${since}, at most ${rate(peak / 60)} in a minute`),
      el(
        "figcaption",
        {},
        el("span", {}, "1 h ago"),
        el("span", {}, peak ? `highest: ${rate(peak / 60)}` : "no data yet"),
        el("span", {}, "now"),
      ),
    ),
  ];
}

function bars(minutes, peak, label) {
  const first = MINUTES - minutes.length;
  const shown = minutes.map((size, number) => {
    const height = peak ? Math.max((size / peak) * HEIGHT, size ? 1.5 : 0) : 0;
    const x = (first + number) * STEP;
    const ago = minutes.length - 1 - number;
    const when = ago ? `${ago} min ago` : "this minute";
    return svg(
      "rect",
      { x, y: HEIGHT - height, width: BAR, height },
      svg("title", {}, `${when}: ${rate(size / 60)}, ${bytes(size)}`),
    );
  });
  const ground = svg("line", { x1: 0, x2: MINUTES * STEP, y1: HEIGHT, y2: HEIGHT });
  const box = { viewBox: `0 0 ${MINUTES * STEP} ${HEIGHT + 1}`, preserveAspectRatio: "none", role: "img" };
  return svg("svg", { ...box, "aria-label": label }, ground, ...shown);
}
