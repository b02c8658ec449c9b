import { setTimeout as delay } from "node:timers/promises";
import type { Client, LeasedMessage, SettleResult } from "./client.js";
import { QlogdError } from "./error.js";
import { Lane } from "./lane.js";
import { LeaseLost, type Settlement, settlement, Stopping } from "./settlement.js";

/** A leased message, whose JSON payload is taken to be a T. */
export type Message<T = unknown> = Omit<LeasedMessage, "payload"> & { payload: T };

export interface HandlerContext {
  /** Aborted when the lease is lost (its reason is a LeaseLost), and when the worker's grace is
   * over (Stopping): then the message is released without counting the attempt, unless the handler
   * returns. */
  signal: AbortSignal;
}

/** Processes one message. If it returns, the message is acked. What it throws returns the message
 * for another try by the queue's policy, with the error's text, unless it is a RetryAfter, a Snooze
 * or a DeadLetter. */
export type Handler<T = unknown> = (message: Message<T>, context: HandlerContext) => unknown;

/** Wraps a handler, such as to log, to measure or to trace. */
export type Middleware<T = unknown> = (next: Handler<T>) => Handler<T>;

export interface WorkerOptions<T = unknown> {
  /** How many handlers run at once; default 16. */
  concurrency?: number;
  /** How many messages at most wait in memory for a handler; default 1000, 0 none. There are never
   * more than the handlers, at their recent pace, finish in a tenth of a second. */
  prefetch?: number;
  /** How long a lease runs: it is extended at a third of that, so it is the time after which
   * messages of a dead worker are delivered again. Default: the queue's policy. */
  leaseMs?: number;
  /** How long handlers may go on once the worker stops; default 30 s. */
  graceMs?: number;
  /** Kinds of messages; default all. */
  kinds?: string[];
  /** The worker's name, for display. */
  name?: string;
  /** Queues besides the first, tried in this order. */
  more?: string[];
  /** The first is the outermost. */
  middleware?: Middleware<T>[];
  /** Gets failures to lease and to settle, which are reported nowhere else; default console. */
  logger?: Pick<Console, "warn">;
}

type Options<T> = Required<Omit<WorkerOptions<T>, "leaseMs" | "kinds" | "name">> & WorkerOptions<T>;

const ahead = 100; // ms: how far ahead is leased
const leaseWait = 30_000; // of one long poll
const defaultLease = 30_000; // of a message that does not say it
const heedFor = 1000; // for handlers whose signals are aborted
const settleFor = 10_000; // for the last answers to what they settled

/** Leases messages of a queue, calls a handler for each, and settles it according to the result.
 * Messages are leased ahead of need and many are settled in one request. */
export class Worker<T = unknown> {
  #client: Client;
  #queues: string[];
  #handler: Handler<T>;
  #options: Options<T>;

  /** It does nothing before run. */
  constructor(client: Client, queue: string, handler: Handler<T>, options: WorkerOptions<T> = {}) {
    const { concurrency = 16, prefetch = 1000, graceMs = 30_000, logger = console } = options;
    const { more = [], middleware = [] } = options;
    if (!(concurrency >= 1)) {
      throw new RangeError(`concurrency must be at least 1, got ${concurrency}`);
    }
    this.#options = { ...options, concurrency, prefetch, graceMs, logger, more, middleware };
    this.#client = client;
    this.#queues = [queue, ...more];
    this.#handler = middleware.reduceRight((next, wrap) => wrap(next), handler);
  }

  /** Works until the signal is aborted. Then it leases no more, releases messages waiting in
   * memory, and waits for running handlers for as long as graceMs allows. After that it aborts
   * their signals and releases unfinished messages. It is resolved if all handlers have returned.
   *
   * It is rejected early if a lease is refused for good, such as with `queue_not_found` or
   * `forbidden`. It retries while the nodes cannot be reached and the like. */
  async run(signal?: AbortSignal): Promise<void> {
    const stop = signal ?? new AbortController().signal;
    await new Run(this.#client, this.#queues, this.#handler, this.#options).run(stop);
  }
}

/** A leased message, its lease and its handler. */
interface Job<T> {
  message: Message<T>;
  leaseMs: number;
  until: number; // the end of the lease by our clock, as far as is known
  next?: Job<T> | undefined; // behind it in its batch: handled if it is acked, else released
  behind: boolean; // behind another one
  over: boolean; // settled, or its lease is lost
  timer?: NodeJS.Timeout; // extends the lease at a third of it; none behind another one
  handler?: AbortController;
}

/** One run of a worker. */
class Run<T> {
  #work: Job<T>[] = []; // leased and waiting for a handler
  #jobs = new Set<Job<T>>(); // waiting or handled, and not over
  #handlers = new Set<Promise<void>>();
  #settles = new Set<Promise<void>>(); // settlements without an answer
  #lanes = new Map<string, Lane<{ lease_id: string }, SettleResult>>();
  #leased = 0; // messages that wait or are in a handler
  #pace = 0; // a handler's recent time per message, in ms
  #lease = 0; // of the newest message, in ms
  #stopping = false;
  #wake = () => {}; // there may be room for more

  constructor(
    readonly client: Client,
    readonly queues: string[],
    readonly handler: Handler<T>,
    readonly o: Options<T>,
  ) {}

  async run(stop: AbortSignal): Promise<void> {
    const errors: unknown[] = [];
    const woken = () => this.#wake();
    stop.addEventListener("abort", woken);
    await this.#fetch(stop).catch((e) => errors.push(e));
    stop.removeEventListener("abort", woken);
    this.#stopping = true;
    this.#work.splice(0).forEach((j) => this.#release(j));
    if (!(await within(this.o.graceMs, this.#handlers))) {
      this.#jobs.forEach((j) => j.handler?.abort(new Stopping()));
      if (!(await within(heedFor, this.#handlers))) {
        const n = this.#handlers.size;
        errors.push(new Error(`${n} handlers have not returned; their messages are released`));
        this.#jobs.forEach((j) => this.#release(j));
      }
    }
    if (!(await within(settleFor, this.#settles))) {
      errors.push(new Error("not all could be settled in time; leases run until they expire"));
    }
    if (errors.length > 1) {
      throw new AggregateError(errors, errors.map(String).join("; "));
    }
    if (errors.length > 0) {
      throw errors[0];
    }
  }

  /** Leases while there is room, until it is stopped or the server refuses. */
  async #fetch(stop: AbortSignal): Promise<void> {
    for (let failures = 0; !stop.aborted; ) {
      const n = this.#room();
      if (n <= 0) {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        continue;
      }
      // Of its own: what fetch adds to a signal goes only with the signal.
      const poll = new AbortController();
      this.#wake = () => stop.aborted && poll.abort(stop.reason);
      try {
        const queues = this.queues.length > 1 ? this.queues : this.queues[0]!;
        const { leaseMs, kinds, name: worker } = this.o;
        const wanted = { maxMessages: Math.min(n, 1000), waitMs: leaseWait, signal: poll.signal };
        this.#took(await this.client.lease(queues, { ...wanted, leaseMs, kinds, worker }));
        failures = 0;
      } catch (e) {
        if (stop.aborted) {
          return;
        }
        if (e instanceof QlogdError && !e.problem.retryable && e.status >= 400 && e.status < 500) {
          throw e;
        }
        this.o.logger.warn(`qlogd: lease from ${this.queues[0]} failed, retrying: ${e}`);
        await this.client.transport.pause(++failures, poll.signal).catch(() => {});
      }
    }
  }

  /** Returns how many messages may be leased: for idle handlers, and to fill the buffer again once
   * half of it is gone. */
  #room(): number {
    const { concurrency, prefetch: most } = this.o;
    const soon = Math.floor((Math.min(ahead, this.#lease / 3) * concurrency) / this.#pace);
    const prefetch = this.#pace > 0 ? Math.min(soon, most) : 0;
    const waiting = this.#work.length;
    if (waiting > prefetch / 2 || (waiting > 0 && prefetch === 0)) {
      return 0;
    }
    return concurrency + prefetch - this.#leased;
  }

  /** Passes leased messages to the handlers: of each batch the first, which leads to the others. */
  #took(messages: LeasedMessage[]): void {
    let before: Job<T> | undefined;
    for (const m of messages) {
      const leaseMs = leaseOf(m, this.o.leaseMs);
      const until = now() + leaseMs;
      const behind = before !== undefined && m.behind === before.message.lease_id;
      const job: Job<T> = { message: m as Message<T>, leaseMs, until, behind, over: false };
      this.#jobs.add(job);
      this.#lease = leaseMs;
      this.#leased++;
      if (behind) {
        before!.next = job;
      } else {
        this.#extendIn(job, leaseMs / 3);
        this.#work.push(job);
      }
      before = job;
    }
    this.#pump();
  }

  /** Starts handlers for what waits. */
  #pump(): void {
    while (this.#handlers.size < this.o.concurrency && this.#work.length > 0) {
      const handled: Promise<void> = this.#batch(this.#work.shift()!).then(() => {
        this.#handlers.delete(handled);
        this.#pump();
      });
      this.#handlers.add(handled);
    }
  }

  async #batch(first: Job<T>): Promise<void> {
    for (let job: Job<T> | undefined = first; job; job = await this.#one(job));
  }

  /** Handles and settles a message, and returns the one behind it in its batch. */
  async #one(job: Job<T>): Promise<Job<T> | undefined> {
    if (this.#stopping || job.over) {
      this.#release(job);
      return undefined;
    }
    if (!job.timer) { // its lease was extended with those ahead of it
      this.#extendIn(job, job.until - now() - (2 * job.leaseMs) / 3);
    }
    const { signal } = (job.handler = new AbortController());
    const began = now();
    let result: Settlement = { verb: "ack", item: {} };
    this.#wakeIfRoom();
    try {
      await this.handler(job.message, { signal });
    } catch (thrown) {
      result = settlement(thrown, signal.reason instanceof Stopping);
    }
    this.#settle(job, result, Math.max(now() - began, 0.001));
    return job.next;
  }

  #release(job: Job<T>): void {
    this.#settle(job, { verb: "release", item: {} }, 0);
  }

  /** Settles a job, unless it is over, without waiting for the answer. took is the handler's time,
   * 0 without one. */
  #settle(job: Job<T>, s: Settlement, took: number): void {
    if (took > 0) {
      this.#pace += this.#pace === 0 ? took : (took - this.#pace) / 8;
    }
    this.#leased--;
    const { over, next } = job;
    const released = over || s.verb !== "ack";
    if (released) {
      job.next = undefined;
    }
    if (!over) {
      this.#end(job);
      const sent: Promise<void> = this.#send(job, s)
        .catch((e) => {
          const { queue, id } = job.message;
          // With LeaseLost the one ahead of it has sent it back.
          if (!(job.behind && s.verb === "release" && e instanceof LeaseLost)) {
            this.o.logger.warn(`qlogd: ${s.verb} failed, ${queue} delivers ${id} again: ${e}`);
          }
        })
        .then(() => void this.#settles.delete(sent));
      this.#settles.add(sent);
    }
    if (released && next) {
      this.#release(next); // and so all of the batch
    }
    this.#wakeIfRoom();
  }

  #wakeIfRoom(): void {
    if (this.#room() > 0) {
      this.#wake();
    }
  }

  /** Ends the extensions of a job's lease. */
  #end(job: Job<T>): void {
    job.over = true;
    clearTimeout(job.timer);
    this.#jobs.delete(job);
  }

  /** Sends a settlement in a shared request. It is rejected with LeaseLost if it is lost. */
  async #send(job: Job<T>, { verb, item }: Settlement): Promise<void> {
    const { queue, lease_id } = job.message;
    const key = `${verb} ${queue}`;
    let lane = this.#lanes.get(key);
    if (!lane) {
      const c = this.client;
      lane = new Lane((items) =>
        verb === "ack" ? c.ack(queue, items.map((i) => i.lease_id)) : c[verb](queue, items),
      );
      this.#lanes.set(key, lane);
    }
    const result = await lane.add({ lease_id, ...item }, 64 + (item.error?.length ?? 0));
    if (result.status === "rejected") {
      throw new LeaseLost();
    }
  }

  #extendIn(job: Job<T>, ms: number): void {
    job.timer = setTimeout(() => void this.#extend(job), Math.max(ms, 0));
  }

  /** Extends a job's lease, and with it those behind it, or gives it up when it has run out. */
  async #extend(job: Job<T>): Promise<void> {
    const began = now();
    const left = job.until - began;
    if (left <= 0) {
      this.#lose(job);
      return;
    }
    this.#extendIn(job, Math.min(job.leaseMs / 3, left));
    try {
      await this.#send(job, { verb: "extend", item: { lease_ms: job.leaseMs } });
      for (let k: Job<T> | undefined = job; k; k = k.next) {
        k.until = began + k.leaseMs;
      }
    } catch (e) {
      const noQueue = e instanceof QlogdError && e.code === "queue_not_found";
      if ((noQueue || e instanceof LeaseLost) && !job.over) {
        this.#lose(job);
      } // without an answer the lease runs out
    }
  }

  /** Notes that a job's lease is gone, and those behind it. */
  #lose(job: Job<T>): void {
    for (let k: Job<T> | undefined = job; k; k = k.next) {
      this.#end(k);
    }
    job.handler?.abort(new LeaseLost());
  }
}

/** A clock that no one sets. */
function now(): number {
  return performance.now();
}

/** Waits for promises for at most ms, and reports whether all are settled. */
async function within(ms: number, promises: Set<Promise<void>>): Promise<boolean> {
  const timer = new AbortController();
  const { signal } = timer;
  const late = delay(Math.min(ms, 2 ** 31 - 1), false, { signal }).catch(() => false);
  const done = Promise.all(promises).then(() => true);
  const ended = await Promise.race([done, late]);
  timer.abort();
  return ended;
}

/** Returns how long a message's lease runs. Its id contains its beginning by the server's clock, as
 * is its end, so the clock here does not matter. */
function leaseOf(m: LeasedMessage, asked = defaultLease): number {
  let began = 0;
  for (const digit of m.lease_id.slice(0, 10)) {
    began = began * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".indexOf(digit);
  }
  const ms = Date.parse(m.lease_expires_at) - began;
  return ms > 0 && ms <= 24 * 3600 * 1000 ? ms : asked;
}
