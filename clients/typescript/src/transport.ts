import { randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { type Problem, problemOf, QlogdError, unreachable } from "./error.js";

/** How often a call is repeated if the server asks for it (429, 503) or its outcome is unknown.
 * With several endpoints one attempt is a round: the next endpoint is asked at once, and the wait
 * comes when all have failed. */
export interface Retry {
  /** In all; 1 is no repeat. */
  attempts: number;
  /** The limits of the jittered exponential backoff. A server's Retry-After goes before it. */
  minMs: number;
  maxMs: number;
}

export interface TransportOptions {
  /** A bearer token. It is only as secret as the connection: to another machine, use https. */
  token?: string;
  /** Default: 6 attempts, 50 ms to 5 s. */
  retry?: Partial<Retry>;
  /** How long one try may go without an answer, beyond the wait that the call itself asks for; 0 is
   * no limit. Default: 20 s with several endpoints, no limit with one. */
  tryTimeoutMs?: number;
  /** In place of the global fetch, such as one with a dispatcher of undici's for TLS. */
  fetch?: typeof globalThis.fetch;
}

const tryTimeout = 20_000;
const retryAfterMost = 30_000;

/** One request, and how it may be repeated. */
interface Call {
  path: string;
  init: { method: string; headers: Headers; body?: Uint8Array<ArrayBuffer> };
  signal: AbortSignal;
  lease: boolean; // repeated only if surely not applied
  write: boolean; // a try without an answer may have been committed
  limit: number; // of one try, in ms; 0: none
}

/** The result of one try: an answer, and what is wrong with it or in its place. */
interface Try {
  response?: Response;
  problem?: Problem;
  cause?: unknown;
}

/** Sends requests to the nodes of a cluster: it stays with one, and moves to the next if that one
 * can't be reached, does not answer, has no leader or is shutting down. Every write but a lease
 * carries an Idempotency-Key, so it is safely repeated; a repeated settle needs none. */
export class Transport {
  #endpoints: string[];
  #retry: Retry;
  #at = 0;
  #options: TransportOptions;

  constructor(endpoints: string | string[], options: TransportOptions) {
    this.#endpoints = (Array.isArray(endpoints) ? endpoints : endpoints.split(",")).map(endpointOf);
    const { attempts = 6, minMs = 50, maxMs = 5000 } = options.retry ?? {};
    this.#retry = { attempts, minMs, maxMs };
    this.#options = options;
  }

  /** The address that requests to send are for. */
  get base(): string {
    return this.#endpoints[0]!;
  }

  /** Is openapi-fetch's fetch. It is rejected with a QlogdError if there was no answer. */
  send = async (request: Request): Promise<Response> => {
    const call = await this.#call(request);
    let maybe = false; // a try may be committed: that a later one is not says nothing about it
    let asked = 0; // endpoints in this attempt
    for (let attempt = 1; ; ) {
      const at = this.#at;
      const { response, problem: p, cause } = await this.#once(this.#endpoints[at]!, call);
      if (!p) {
        if (response!.headers.get("connection") === "close") {
          this.#leave(at); // the node is about to end
        }
        return response!;
      }
      const unknown = p.outcome === "unknown" && (p.status === 0 || p.status >= 500);
      const away = p.status === 0 || p.status === 503 || (unknown && call.write);
      let again = p.retryable && (away || p.status === 429);
      if (unknown) {
        again = call.write || (again && !call.lease);
        maybe ||= call.write;
      }
      if (away) {
        this.#leave(at);
        if (again && ++asked < this.#endpoints.length) {
          continue;
        }
      }
      if (again && attempt < this.#retry.attempts) {
        await this.pause(attempt++, call.signal, p.retry_after_ms);
        asked = 0;
        continue;
      }
      if (maybe) {
        p.outcome = "unknown";
      }
      if (!response) {
        throw new QlogdError(p, { cause });
      }
      return Response.json(p, { status: p.status });
    }
  };

  /** Waits before the next attempt, as long as the server asked or with a growing backoff. */
  async pause(attempt: number, signal: AbortSignal, asked = 0): Promise<void> {
    const { minMs, maxMs } = this.#retry;
    const backoff = Math.min(Math.max(minMs, 1) * 2 ** (attempt - 1), maxMs);
    const least = asked > 0 ? Math.min(asked, retryAfterMost) : backoff / 2;
    // Clients that were turned away together must not come back together.
    const spread = asked > 0 ? least / 4 : backoff / 2;
    await delay(least + Math.random() * spread, undefined, { signal });
  }

  async #call(request: Request): Promise<Call> {
    const { method, signal } = request;
    const headers = new Headers(request.headers);
    const body = request.body ? new Uint8Array(await request.arrayBuffer()) : undefined;
    const { pathname, searchParams } = new URL(request.url);
    const verb = method === "POST" ? pathname.replace(/.*\//, "") : "";
    const lease = verb === "lease";
    const write = !lease && method !== "GET" && method !== "HEAD";
    const settle = ["ack", "retry", "dead-letter", "extend", "release"].includes(verb) &&
      !Buffer.from(body ?? []).includes('"produce"');
    headers.set("user-agent", "qlogd-typescript");
    if (this.#options.token && !headers.has("authorization")) {
      headers.set("authorization", `Bearer ${this.#options.token}`);
    }
    if (write && !settle && !headers.has("idempotency-key")) {
      headers.set("idempotency-key", randomUUID());
    }
    let limit = this.#options.tryTimeoutMs ?? (this.#endpoints.length > 1 ? tryTimeout : 0);
    if (searchParams.has("at")) {
      limit = 0; // rebuilding a past state can take long
    } else if (limit > 0) {
      const asked = lease && body ? JSON.parse(Buffer.from(body).toString()).wait_ms : null;
      limit += Number(asked ?? searchParams.get("wait_ms"));
    }
    const path = request.url.slice(this.base.length);
    return { path, init: { method, headers, ...(body && { body }) }, signal, lease, write, limit };
  }

  /** Sends a call one time. */
  async #once(endpoint: string, { path, init, signal, limit }: Call): Promise<Try> {
    signal.throwIfAborted();
    const end = new AbortController();
    const cancelled = () => end.abort(signal.reason);
    signal.addEventListener("abort", cancelled);
    const late = () => end.abort(new Error("no answer in time"));
    const timer = limit > 0 ? setTimeout(late, limit) : undefined;
    let streams = false;
    try {
      const fetch = this.#options.fetch ?? globalThis.fetch;
      const response = await fetch(endpoint + path, { ...init, signal: end.signal });
      const { status, headers } = response;
      streams = response.ok && /ndjson|event-stream/.test(headers.get("content-type") ?? "");
      if (streams) {
        return { response };
      }
      const body = Buffer.from(await response.arrayBuffer()); // one that is cut short is no answer
      if (response.ok) {
        const whole = status === 204 ? null : body;
        return { response: new Response(whole, { status, headers }) };
      }
      const problem = problemOf(response, body.toString());
      problem.retry_after_ms ??= Number(headers.get("retry-after")) * 1000 || 0;
      return { response, problem };
    } catch (cause) {
      signal.throwIfAborted();
      return { problem: unreachable(endpoint, cause, unsent(cause)), cause };
    } finally {
      clearTimeout(timer);
      if (!streams) {
        signal.removeEventListener("abort", cancelled);
      }
    }
  }

  #leave(at: number): void {
    if (this.#at === at) {
      this.#at = (at + 1) % this.#endpoints.length; // of several calls that fail there one moves on
    }
  }
}

/** Reports whether fetch failed before it had a connection. */
function unsent(e: unknown): boolean {
  if (!(e instanceof Error)) {
    return false;
  }
  if (e instanceof AggregateError) {
    return e.errors.every(unsent);
  }
  const { syscall = "", code, cause } = e as NodeJS.ErrnoException;
  const before = ["connect", "getaddrinfo"].includes(syscall) || code === "UND_ERR_CONNECT_TIMEOUT";
  return before || unsent(cause);
}

function endpointOf(address: string): string {
  const text = address.trim();
  const url = new URL(text.includes("://") ? text : `http://${text}`);
  if (!/^https?:$/.test(url.protocol)) {
    throw new TypeError(`address ${text} must be http://HOST:PORT or https://HOST:PORT`);
  }
  return url.origin + url.pathname.replace(/\/$/, "");
}
