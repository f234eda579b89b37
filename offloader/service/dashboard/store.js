/**
 * What the page knows of the store: when it answered last, and how long it is left alone when it doesn't.
 *
 * A question to it never keeps the page from showing what the process itself knows.
 */

import { Refused, Unreachable } from "./api.js";

// How long a view waits for the store before it shows what there is without it.
const PATIENCE_MS = 1_500;
// How long a store that couldn't be asked is left alone: each question may take it many seconds.
const REST_MS = 20_000;

class Store {
  /** When it answered last, by this machine's clock; 0: not yet. */
  answeredMs = 0;
  /** Whether the process says that it is down: answers are older ones then. */
  isDown = false;
  /** Why it couldn't be asked last; null: it could. */
  why = null;
  #waiting = 0;
  #restsUntil = 0;

  /** Whether a question is still without an answer, or the store is left alone after it had none. */
  get rests() {
    return this.#waiting > 0 || Date.now() < this.#restsUntil;
  }

  /** `[word, state]` for the page's badge; null: nothing is wrong with it. */
  get badge() {
    if (this.why) return ["Store unreachable", "bad"];
    return this.#waiting ? ["Waiting for the store", "warn"] : null;
  }

  /**
   * Asks, and waits a moment: `{answer}`, or `{failed}` where it can't be asked or says no, or `{late: true}`.
   *
   * @param {() => Promise<object>} question
   * @param {() => void} arrived an answer came after the wait was over
   */
  async ask(question, arrived) {
    if (this.rests) return this.why ? { failed: this.why } : { late: true };
    let over = false;
    const asked = question().then(
      (answer) => this.#answered(answer),
      (error) => this.#failed(error),
    );
    asked.then((found) => {
      if (!over) return;
      this.#waiting -= 1;
      if (!found.lost) arrived();
    });
    const found = await Promise.race([asked, new Promise((done) => setTimeout(done, PATIENCE_MS))]);
    if (found === undefined) {
      over = true;
      this.#waiting += 1;
      return { late: true };
    }
    if (found.lost) throw found.lost;
    return found;
  }

  #answered(answer) {
    if (answer.store_error) return this.#failed(new Unreachable(answer.store_error, { answered: true }));
    if (!this.isDown) this.answeredMs = Date.now();
    this.why = null;
    this.#restsUntil = 0;
    return { answer };
  }

  #failed(error) {
    if (error instanceof Refused) return { failed: error };
    // The offloader itself is away, or the question was given up: that says nothing of the store.
    if (!(error instanceof Unreachable) || !(error.answered || error.late)) return { lost: error };
    this.why = error;
    this.#restsUntil = Date.now() + REST_MS;
    return { failed: error };
  }
}

export const store = new Store();
