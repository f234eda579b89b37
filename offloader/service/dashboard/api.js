/**
 * Questions to the offloader: the one place that knows its addresses, the token and what can go wrong.
 *
 * Must never keep the token anywhere but in this tab's session, nor put it into an address.
 */

const TOKEN = "offloader-token";
const ANSWER_MS_MAX = 20_000;
const COMMAND_MS_MAX = 60_000;

/**
 * It couldn't be reached, or it can't answer now: `answered` says which, `late` that it took too long.
 */
export class Unreachable extends Error {
  constructor(message, { answered = false, late = false, cause = undefined } = {}) {
    super(message, { cause });
    this.answered = answered;
    this.late = late;
  }
}

/** It wants to know who asks, or that isn't enough: `status` is 401 or 403. */
export class Unauthorised extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** It says no: `message` is what, `hint` what to do. */
export class Refused extends Error {
  constructor(status, message, hint) {
    super(message);
    this.status = status;
    this.hint = hint;
  }
}

const of = (name, what = "") => `v1/streams/${encodeURIComponent(name)}${what}`;

/** Every address that the page asks. */
export const routes = {
  overview: "v1/overview",
  streams: "v1/streams",
  errors: "v1/errors",
  decisions: "v1/decisions",
  orphans: "v1/orphans",
  stream: (name) => of(name),
  shape: (name) => of(name, "/timeline"),
  graph: (name) => of(name, "/graph"),
  segments: (name) => of(name, "/segments"),
  retention: (name) => of(name, "/retention"),
  decisionsOf: (name) => of(name, "/decisions"),
  subscribers: (name) => of(name, "/subscribers"),
  cleanup: (name) => of(name, "/cleanup"),
  offload: (name) => of(name, "/offload"),
  pause: (name) => of(name, "/pause"),
  resume: (name) => of(name, "/resume"),
};

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/**
 * The answer to one question, as an object.
 *
 * @param {string} route one of `routes`
 * @param {Record<string, string|number|boolean|null>} [parameters] those that are null or "" aren't sent
 * @param {AbortSignal} [signal] gives up early
 */
export function ask(route, parameters = {}, signal = undefined) {
  const url = new URL(route, document.baseURI);
  url.hash = "";
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== "") url.searchParams.set(name, String(value));
  }
  return answerTo(url, {}, ANSWER_MS_MAX, signal);
}

/**
 * The answer to a command. It is sent with the token in a header, from this origin only: the offloader refuses what a
 * page of another site sends.
 *
 * @param {object} body sent as JSON
 */
export const command = (route, body = {}) =>
  answerTo(
    new URL(route, document.baseURI),
    { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } },
    COMMAND_MS_MAX,
  );

async function answerTo(url, request, answerMsMax, signal = undefined) {
  const headers = { Accept: "application/json", ...request.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  const late = AbortSignal.timeout(answerMsMax);
  let response, body;
  try {
    response = await fetch(url, {
      ...request,
      headers,
      signal: signal ? AbortSignal.any([signal, late]) : late,
      cache: "no-store",
      credentials: "omit",
    });
    body = await response.json().catch(() => null);
  } catch (cause) {
    if (signal?.aborted) throw cause;
    const what = late.aborted ? `no answer within ${answerMsMax / 1000} seconds` : "the connection failed";
    throw new Unreachable(what, { late: late.aborted, cause });
  }
  if (response.ok && body !== null) return body;
  const problem = body ?? {};
  const message = problem.detail ?? problem.title ?? `HTTP status ${response.status} ${response.statusText}`;
  if (response.status === 401 || response.status === 403) throw new Unauthorised(response.status, message);
  if (body === null || response.status >= 500) throw new Unreachable(message, { answered: true });
  throw new Refused(response.status, message, problem.hint ?? "");
}

/** What `asked` brings, or `{failed}` where it says no or can't now: the rest of a view is shown all the same. */
export const part = (asked) =>
  asked.catch((error) => {
    if (error instanceof Refused || (error instanceof Unreachable && (error.answered || error.late))) {
      return { failed: error };
    }
    throw error;
  });
