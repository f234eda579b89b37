/**
 * The page: which view is shown, how it is kept up to date, and what is said when that doesn't work.
 */

import { token, Refused, Unauthorised } from "./api.js";
import { el, mark, say } from "./dom.js";
import { Poller } from "./polling.js";
import { StreamView } from "./stream.js";
import { store } from "./store.js";
import { outagesOf, StreamsView, troubleOf } from "./streams.js";
import { ago, count, many, now, setClock, span } from "./words.js";

const byId = (id) => document.getElementById(id);
const place = byId("view");
const pill = byId("state");

let seenMs = 0;
let view = null;

const poller = new Poller(round, told);
const streams = new StreamsView(() => poller.now());

async function round(signal) {
  const shown = view;
  const paint = (data) => {
    if (signal.aborted || shown !== view) return;
    setClock(data.overview.now_ms);
    seenMs = now();
    shown.render(data);
    showProcess(data.overview);
  };
  paint(await shown.load(signal, paint));
}

/** How a round ended; whether there is a next one. */
function told(error, waitMs) {
  const asks = error instanceof Unauthorised;
  const refused = error instanceof Refused;
  byId("unreachable").hidden = !error || asks || refused;
  place.classList.toggle("old", Boolean(error) && !asks);
  if (!error) {
    byId("token-form").hidden = true;
    byId("forget").hidden = !token.get();
    place.hidden = false;
    return true;
  }
  if (asks) {
    askForToken(error);
    return false;
  }
  if (refused) {
    place.replaceChildren(
      el(
        "div",
        { class: "card empty" },
        el("strong", {}, error.message),
        error.hint ? el("p", {}, error.hint) : null,
        el("p", {}, el("a", { href: "#/" }, "All streams")),
      ),
    );
    return false;
  }
  say(pill, error.answered ? "Failing" : "Unreachable");
  mark(pill, "bad");
  say(byId("unreachable-what"), error.answered ? "The process returned an error:" : "The process does not respond:");
  say(byId("unreachable-why"), `${error.message}; next attempt in ${span(waitMs / 1000)}.`);
  say(byId("last-seen"), seenMs ? ago(seenMs) : "never");
  return true;
}

function askForToken(error) {
  const had = token.get() !== "";
  token.forget();
  place.hidden = true;
  byId("forget").hidden = true;
  say(pill, "Sign in");
  mark(pill, "warn");
  const why = error.status === 403 ? `The token lacks a permission: ${error.message}` : "The process does not know this token.";
  say(byId("token-why"), had ? why : "This process requires a token.");
  byId("token-form").hidden = false;
  byId("token").focus();
}

function showProcess(overview) {
  const [word, state] = badgeOf(overview);
  say(pill, word);
  mark(pill, state);
  say(byId("store"), overview.store?.url ?? "");
  const since = span((overview.now_ms - overview.started_ms) / 1000);
  say(byId("about"), `offloader ${overview.software}, process ${count(overview.pid)}, up for ${since}`);
  document.title = [view.title, "offloader"].filter(Boolean).join(" · ");
}

/** `[word, state]`: "Working" only where everything that is needed answers, and nothing is wrong. */
function badgeOf(overview) {
  const [outage] = outagesOf(overview);
  if (outage) return [outage, "bad"];
  if (store.badge) return store.badge;
  const blocked = overview.problems.some((each) => each.blocks_ready);
  const { stalled, disconnected } = overview.streams;
  const trouble = troubleOf(overview);
  if (trouble) return [many(trouble, "problem"), blocked || stalled || disconnected ? "bad" : "warn"];
  if (!overview.ready) return ["Not ready", "bad"];
  if (disconnected) return [`${count(disconnected)} disconnected`, "bad"];
  return overview.awaiting_approval?.length ? ["Needs approval", "warn"] : ["Working", "good"];
}

/** Shows the view that the address names. */
function route() {
  const named = /^#\/stream\/(.+)$/.exec(location.hash);
  let next = streams;
  if (named) {
    try {
      next = new StreamView(decodeURIComponent(named[1]), () => poller.now());
    } catch {
      location.replace("#/");
      return;
    }
  }
  const moved = view !== null;
  view = next;
  place.replaceChildren(view.root);
  if (moved) {
    scrollTo(0, 0);
    view.focus();
  }
  poller.now();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && byId("token-form").hidden) view.back();
  if (event.key === "/" && view === streams && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    streams.search.focus();
  }
});

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  poller.now();
});

byId("forget").addEventListener("click", () => {
  token.forget();
  location.reload();
});

byId("again").addEventListener("click", () => poller.now());
addEventListener("hashchange", route);
route();
