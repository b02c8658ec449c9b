import createClient, { type Client as Api } from "openapi-fetch";
import { type Problem, QlogdError } from "./error.js";
import type { components, operations, paths } from "./schema.js";
import { Transport, type TransportOptions } from "./transport.js";

type Schemas = components["schemas"];
export type NewMessage = Schemas["NewMessage"];
export type Produced = Schemas["Produced"];
export type LeasedMessage = Schemas["LeasedMessage"];
export type SettleResult = Schemas["SettleResult"];
export type RetryItem = Schemas["RetryItem"];
export type DeadLetterItem = Schemas["DeadLetterItem"];
export type ExtendItem = Schemas["ExtendItem"];
export type ReleaseItem = { lease_id: string; delay_ms?: number };
export type ReplayRequest = Schemas["ReplayRequest"];
export type DeadQuery = NonNullable<operations["listDead"]["parameters"]["query"]>;

export interface ClientOptions extends TransportOptions {}

export interface CallOptions {
  /** Ends the wait for the answer: a write that was sent may be committed all the same. */
  signal?: AbortSignal;
  /** Names a write, so that a program that died in the middle can repeat it. Without it each call
   * has a key of its own. */
  idempotencyKey?: string;
}

export interface LeaseOptions {
  /** 1 to 1000; default 10. */
  maxMessages?: number;
  /** How long to wait for a message; default 0, at most a minute. */
  waitMs?: number;
  /** 100 ms to 12 h; default: the queue's policy. */
  leaseMs?: number;
  /** The caller's name, for display. */
  worker?: string;
  /** Kinds of messages; default: all. */
  kinds?: string[];
  signal?: AbortSignal;
}

/** Calls a qlogd cluster. Use one for the whole program. Calls are rejected with a QlogdError. */
export class Client {
  /** Every call of the API by its path, typed, with the same failover and repeats: see unwrap. */
  readonly api: Api<paths, "application/json" | "application/problem+json">;

  /** @internal */
  readonly transport: Transport;

  /** endpoints: some or all nodes of the cluster, in a list or separated by commas. */
  constructor(endpoints: string | string[], options: ClientOptions = {}) {
    this.transport = new Transport(endpoints, options);
    this.api = createClient({ baseUrl: this.transport.base, fetch: this.transport.send });
  }

  /** Enqueues one message; it is durable when the call returns. */
  async enqueue(queue: string, message: NewMessage, o?: CallOptions): Promise<Produced> {
    return (await this.produce(queue, [message], o))[0]!;
  }

  /** Enqueues 1 to 1000 messages, all or none, and answers in their order. */
  async produce(queue: string, messages: NewMessage[], o?: CallOptions): Promise<Produced[]> {
    const init = { ...to(queue, o), body: { messages } };
    return (await unwrap(this.api.POST("/v1/queues/{queue}/messages", init))).messages;
  }

  /** Leases messages of a queue, or of several that are tried in this order; the list is empty if
   * none came in time. It is not repeated once it may have reached the server: what it leased there
   * returns when the lease runs out. */
  async lease(queues: string | string[], o: LeaseOptions = {}): Promise<LeasedMessage[]> {
    const { maxMessages: max_messages, waitMs: wait_ms, leaseMs: lease_ms, worker, kinds } = o;
    const body = { max_messages, wait_ms, lease_ms, worker, kinds };
    const signal = o.signal ?? null;
    const call = Array.isArray(queues)
      ? this.api.POST("/v1/lease", { body: { ...body, queues }, signal })
      : this.api.POST("/v1/queues/{queue}/lease", {
          params: { path: { queue: queues } },
          body,
          signal,
        });
    return (await unwrap(call)).messages;
  }

  // Calls that settle have a result for each lease, in order: that of a lost one is "rejected".

  /** Ends leases with success. */
  async ack(queue: string, leases: string[], o?: CallOptions): Promise<SettleResult[]> {
    const init = { ...to(queue, o), body: { lease_ids: leases } };
    return (await unwrap(this.api.POST("/v1/queues/{queue}/ack", init))).results;
  }

  /** Returns messages for another try. */
  async retry(queue: string, items: RetryItem[], o?: CallOptions): Promise<SettleResult[]> {
    const init = { ...to(queue, o), body: { items } };
    return (await unwrap(this.api.POST("/v1/queues/{queue}/retry", init))).results;
  }

  /** Moves messages to the dead-letter queue; without one they are discarded. */
  async deadLetter(
    queue: string,
    items: DeadLetterItem[],
    o?: CallOptions,
  ): Promise<SettleResult[]> {
    const init = { ...to(queue, o), body: { items } };
    return (await unwrap(this.api.POST("/v1/queues/{queue}/dead-letter", init))).results;
  }

  /** Extends leases, counted from now. */
  async extend(queue: string, items: ExtendItem[], o?: CallOptions): Promise<SettleResult[]> {
    const init = { ...to(queue, o), body: { items } };
    return (await unwrap(this.api.POST("/v1/queues/{queue}/extend", init))).results;
  }

  /** Returns messages at once, or after a delay, without counting the attempt. */
  async release(queue: string, items: ReleaseItem[], o?: CallOptions): Promise<SettleResult[]> {
    const init = { ...to(queue, o), body: { items } };
    return (await unwrap(this.api.POST("/v1/queues/{queue}/release", init))).results;
  }

  /** A page of what died in a queue; its next_cursor is the next page's cursor. */
  async dead(queue: string, query: DeadQuery = {}) {
    const params = { path: { queue }, query };
    return unwrap(this.api.GET("/v1/queues/{queue}/dead", { params }));
  }

  /** Moves dead messages back to work. More than 1000 are moved by a task. */
  async replay(queue: string, request: ReplayRequest, o?: CallOptions) {
    const init = { ...to(queue, o), body: request };
    return unwrap(this.api.POST("/v1/queues/{queue}/dead/replay", init));
  }
}

function to(queue: string, o: CallOptions = {}) {
  const header = o.idempotencyKey ? { "Idempotency-Key": o.idempotencyKey } : {};
  return { params: { path: { queue }, header }, signal: o.signal ?? null };
}

/** Returns what a call of Client.api answered, or throws its problem as a QlogdError. */
export async function unwrap<T>(
  call: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<T> {
  const { data, error, response } = await call;
  if (!response.ok) {
    throw new QlogdError(error as Problem);
  }
  return data as T;
}

/** Returns a message's payload as bytes: its JSON, or the bytes that were produced. */
export function bytes(m: Pick<LeasedMessage, "payload" | "payload_base64">): Uint8Array {
  return typeof m.payload_base64 === "string"
    ? Buffer.from(m.payload_base64, "base64")
    : Buffer.from(JSON.stringify(m.payload ?? null));
}
