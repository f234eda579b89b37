/**
 * What may be done to a stream: offload, pause, resume, and approve a cleanup. Who may not sees no buttons; the
 * offloader checks each request itself.
 */

import { command, routes } from "./api.js";
import { el, say } from "./dom.js";
import { bytes, count, many, percent, span } from "./words.js";

const OFFLOAD_WAIT_S = 30;
const REASON_CHARS_MAX = 200;

export class Actions {
  #name;
  #changed;
  #plan = null;

  /**
   * @param {string} name of the stream
   * @param {() => void} changed something was done
   */
  constructor(name, changed) {
    this.#name = name;
    this.#changed = changed;
    this.offload = button("Offload now", () => this.#offload());
    this.pause = button("Pause…", () => this.#pause());
    this.resume = button("Resume", () => this.#do("Resuming…", routes.resume, {}, () => "Offloading resumed."));
    this.done = el("span", { role: "status", class: "done" });
    this.bar = el("div", { class: "actions", hidden: true }, this.offload, this.pause, this.resume, this.done);
    this.words = el("div");
    this.approve = button("Approve…", () => this.#approve(), "strong");
    this.notice = el(
      "section",
      { class: "notice warn", "aria-label": "Needs approval", hidden: true },
      this.words,
      this.approve,
    );
    this.dialog = el("dialog");
  }

  show({ may = [] }, stream, cleanup) {
    const here = Boolean(stream.active);
    const paused = stream.mode === "paused";
    this.offload.hidden = !(here && may.includes("offload")) || paused;
    this.pause.hidden = !(here && may.includes("pause")) || paused;
    this.resume.hidden = !(here && may.includes("pause")) || !paused;
    this.bar.hidden = this.offload.hidden && this.pause.hidden && this.resume.hidden && !this.done.textContent;
    this.#showAwaited(may.includes("clean"), cleanup);
  }

  #showAwaited(mayClean, plan) {
    const needed = Boolean(plan && !plan.failed && plan.large && plan.deletes && !plan.held);
    this.#plan = needed ? plan : null;
    this.notice.hidden = !needed;
    if (!needed) return;
    const lines = [
      el("strong", {}, "Cleanup needs approval. "),
      `Cleanup would delete ${whatGoes(plan)}. That is more than half of the stream: cleanup waits for approval.`,
    ];
    const hint = mayClean ? null : el("div", { class: "hint" }, "A user with the role admin can approve it here.");
    this.words.replaceChildren(...lines, ...(hint ? [hint] : []));
    this.approve.hidden = !mayClean;
  }

  #offload() {
    const body = { wait_seconds: OFFLOAD_WAIT_S };
    this.#do("Offloading…", routes.offload, body, ({ committed, partitions }) => {
      if (partitions) return `All entries of ${many(partitions.length, "partition")} are in the store.`;
      return committed ? `All entries up to ${committed} are in the store.` : "The stream has no entries.";
    });
  }

  async #pause() {
    const reason = el("input", { id: "reason", maxlength: REASON_CHARS_MAX, autocomplete: "off" });
    const yes = await this.#asked("Pause offloading?", "Pause", "strong", [
      el("p", {}, `Until you resume, new entries of ${this.#name} remain in the hot tier and fill its disk.`),
      el("label", { for: "reason" }, "Reason (shown to other operators)"),
      reason,
    ]);
    if (yes) this.#do("Pausing…", routes.pause, { reason: reason.value.trim() }, () => "Offloading paused.");
  }

  async #approve() {
    const plan = this.#plan;
    const yes = await this.#asked("Delete more than half of this stream?", "Yes, delete", "danger", [
      el("p", {}, `Deletes ${whatGoes(plan)} of ${this.#name}.`),
      el("p", {}, reach(plan)),
      el("p", {}, `Readers no longer see these entries. You can restore them for ${span(plan.grace_seconds)} with `,
        el("code", {}, "offloader cleanup undo"), "; after that they are deleted."),
    ]); // prettier-ignore
    if (!yes) return;
    this.#do("Cleaning up…", routes.cleanup, { plan: plan.plan }, (found) =>
      `${many(found.retired, "segment")} retired, ${many(found.deleted_objects, "object")} deleted.`,
    );
  }

  async #do(doing, route, body, words) {
    const buttons = [this.offload, this.pause, this.resume, this.approve];
    for (const each of buttons) each.disabled = true;
    this.bar.hidden = false;
    say(this.done, doing);
    this.done.dataset.state = "";
    try {
      say(this.done, words(await command(route(this.#name), body)));
    } catch (error) {
      this.done.dataset.state = "failed";
      say(this.done, [error.message, error.hint].filter(Boolean).join("; "));
    } finally {
      for (const each of buttons) each.disabled = false;
    }
    this.#changed();
  }

  /** Whether the person confirms the dialog. */
  #asked(question, yes, kind, content) {
    const form = el(
      "form",
      { method: "dialog" },
      el("h2", { id: "question" }, question),
      ...content,
      el(
        "div",
        { class: "line" },
        el("button", { value: "" }, "Cancel"),
        el("button", { value: "yes", class: kind }, yes),
      ),
    );
    this.dialog.setAttribute("aria-labelledby", "question");
    this.dialog.replaceChildren(form);
    this.dialog.returnValue = "";
    this.dialog.showModal();
    return new Promise((done) => {
      this.dialog.addEventListener("close", () => done(this.dialog.returnValue === "yes"), { once: true });
    });
  }
}

const button = (text, onclick, kind = "") => el("button", { type: "button", class: kind || null, onclick }, text);

/** `34 segments, 12.0 GiB of 20.1 GiB (60%)` */
export const whatGoes = ({ segments, bytes: size, bytes_stored: all }) =>
  `${many(segments, "segment")}, ${bytes(size)} of ${bytes(all)} (${count(percent(size, all))}%)`;

function reach({ lines, is_whole: isWhole }) {
  const going = lines.filter((each) => each.action !== "purge" && each.first);
  if (!going.length) return "";
  const last = isWhole ? going.at(-1).last : null;
  return last ? `Entries ${going[0].first} to ${last}.` : `Entries from ${going[0].first} on.`;
}
