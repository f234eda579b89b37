/**
 * Asks again and again: often while all is well, less and less while nobody answers, not at all in a hidden tab.
 */

const EVERY_MS = 2_500;
const SLOWEST_MS = 30_000;

export class Poller {
  #work;
  #told;
  #timer = 0;
  #wait = EVERY_MS;
  #running = null;

  /**
   * @param {(signal: AbortSignal) => Promise<void>} work one round; what it throws slows the next ones down
   * @param {(error: Error|null, waitMs: number) => void} told hears how each round ended
   */
  constructor(work, told) {
    this.#work = work;
    this.#told = told;
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) clearTimeout(this.#timer);
      else this.now();
    });
  }

  /** A round at once; one that is under way is given up. */
  now() {
    this.stop();
    return this.#round();
  }

  /** No further round until `now`. */
  stop() {
    clearTimeout(this.#timer);
    this.#running?.abort();
    this.#running = null;
  }

  async #round() {
    const mine = new AbortController();
    this.#running = mine;
    let error = null;
    try {
      await this.#work(mine.signal);
    } catch (found) {
      error = found;
    }
    if (mine.signal.aborted || this.#running !== mine) return;
    this.#running = null;
    this.#wait = error ? Math.min(this.#wait * 2, SLOWEST_MS) : EVERY_MS;
    const goesOn = this.#told(error, this.#wait);
    if (goesOn && !document.hidden) this.#timer = setTimeout(() => this.#round(), this.#wait);
  }
}
