import type { components } from "./schema.js";

/** The codes of the API, and the client's own: `unreachable`, and `http_502` and so on for an
 * answer that is not qlogd's, such as a proxy's page. */
export type Code = components["schemas"]["Problem"]["code"] | "unreachable" | `http_${number}`;

/** An RFC 9457 problem. `outcome` of a failed write says whether it may still be committed. */
export type Problem = Omit<components["schemas"]["Problem"], "code"> & { code: Code };

/** What every failed call is rejected with. `code` is stable. */
export class QlogdError extends Error {
  override readonly name = "QlogdError";
  readonly code: Code;
  /** The HTTP status; 0 without an answer. */
  readonly status: number;

  constructor(
    readonly problem: Problem,
    options?: ErrorOptions,
  ) {
    super(`${problem.detail || problem.title} (${problem.status} ${problem.code})`, options);
    this.code = problem.code;
    this.status = problem.status;
  }
}

/** Returns the problem of a response that is no success. */
export function problemOf(response: Response, text: string): Problem {
  const { status, statusText } = response;
  try {
    const problem = JSON.parse(text) as Problem;
    if (typeof problem.code === "string") {
      return { ...problem, status };
    }
  } catch {
    // It is not qlogd's.
  }
  const retryable = status === 429 || status === 503;
  return other(status, `http_${status}`, `the server answered ${status} ${statusText}`, retryable);
}

/** Returns the problem of a request that got no answer. */
export function unreachable(endpoint: string, cause: unknown, unsent: boolean): Problem {
  const problem = other(0, "unreachable", `${endpoint}: ${reason(cause)}`, true);
  return unsent ? { ...problem, outcome: "not_applied" } : problem;
}

function other(status: number, code: Code, detail: string, retryable: boolean): Problem {
  const known = { type: "about:blank", title: "No answer of qlogd", request_id: "" };
  return { ...known, status, code, detail, retryable, outcome: "unknown" };
}

/** Returns what fetch hides behind "fetch failed". */
function reason(e: unknown): string {
  if (e instanceof AggregateError && e.errors.length > 0) {
    return reason(e.errors[0]);
  }
  return e instanceof Error ? (e.cause ? reason(e.cause) : e.message) : String(e);
}
