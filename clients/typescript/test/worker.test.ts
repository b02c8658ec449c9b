import assert from "node:assert/strict";
import { test } from "node:test";
import {
  Client, DeadLetter, LeaseLost, type Message, type Middleware, RetryAfter, Snooze, Stopping,
  unwrap, Worker,
} from "../src/index.js";
import { follow, queue, seen, Server, signal, stopper } from "./server.js";

type Numbered = { n: number };

async function produce(c: Client, queue: string, n: number): Promise<void> {
  await c.produce(queue, Array.from({ length: n }, (_, i) => ({ payload: { n: i } })));
}

async function stats(c: Client, queue: string) {
  return (await unwrap(c.api.GET("/v1/queues/{queue}", { params: { path: { queue } } }))).stats;
}

test("handlers run concurrently, each message once", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await queue(c, "jobs");
  await produce(c, "jobs", 500);
  const full = signal();
  const handled = new Set<number>();
  let running = 0, most = 0;
  const handler = async (m: Message<Numbered>) => {
    most = Math.max(most, ++running);
    if (running === 8) {
      full.resolve();
    }
    await full.promise;
    handled.add(m.payload.n);
    running--;
  };
  const names: string[] = [];
  const wrap = (name: string): Middleware<Numbered> => (next) => (m, context) => {
    names.push(name);
    return next(m, context);
  };
  const stop = stopper(t);
  const options = { concurrency: 8, middleware: [wrap("outer"), wrap("inner")], name: "w1" };
  const run = new Worker<Numbered>(c, "jobs", handler, options).run(stop.signal);
  await seen(c, 500, "jobs", "acked");
  stop.abort();
  await run;
  assert.deepEqual([most, handled.size, (await stats(c, "jobs")).acked_total], [8, 500, 500]);
  assert.deepEqual(names.slice(0, 2), ["outer", "inner"]);
});

test("the handler's result settles the message", async (t) => {
  const c = new Client((await Server.start(t)).url);
  const twoHours = 7_200_000;
  const backoff = { initial_backoff_ms: twoHours, max_backoff_ms: twoHours };
  await queue(c, "jobs", { delivery: { dead_letter_queue: "auto", ...backoff } });
  const kinds = ["returns", "throws", "later", "snoozes", "dies"];
  await c.produce("jobs", kinds.map((kind) => ({ payload: 1, kind })));
  const stop = stopper(t);
  const handler = (m: Message) => {
    switch (m.kind) {
      case "throws": throw new TypeError("boom");
      case "later": throw new RetryAfter(3_600_000, new Error("busy"));
      case "snoozes": throw new Snooze(3_600_000);
      case "dies": throw new Error("outer", { cause: new DeadLetter(new Error("inner")) });
    }
  };
  const run = new Worker(c, "jobs", handler).run(stop.signal);
  const how: Record<string, unknown> = {};
  for (const e of await seen(c, 5, "jobs", "acked", "retried", "released", "dead_lettered")) {
    const hours = e.next_at && Math.round((Date.parse(e.next_at) - Date.parse(e.time)) / 3_600_000);
    how[e.message_id!] = [e.type, e.error, hours];
  }
  stop.abort();
  await run;
  const ids = (await seen(c, 5, "jobs", "enqueued")).map((e) => e.message_id!);
  assert.deepEqual(ids.map((id) => how[id]), [
    ["acked", undefined, undefined],
    ["retried", "TypeError: boom", 2],
    ["retried", "busy", 1],
    ["released", undefined, 1],
    ["dead_lettered", "outer", undefined],
  ]);
});

test("a long handler keeps its lease", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await queue(c, "jobs");
  await produce(c, "jobs", 1);
  const stop = stopper(t);
  // Four times a third: longer than the lease.
  const handler = () => seen(c, 4, "jobs", "lease_extended");
  const run = new Worker(c, "jobs", handler, { leaseMs: 3000 }).run(stop.signal);
  const [acked] = await seen(c, 1, "jobs", "acked", "lease_expired");
  stop.abort();
  await run;
  assert.deepEqual([acked!.type, acked!.attempt ?? 1], ["acked", 1]);
});

test("a lost lease aborts the handler's signal", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await queue(c, "jobs");
  await produce(c, "jobs", 1);
  const stop = stopper(t);
  let reason: unknown;
  const handler = async (m: Message, context: { signal: AbortSignal }) => {
    if (reason) {
      return;
    }
    const lost = new Promise((resolve) => context.signal.addEventListener("abort", resolve));
    await c.release("jobs", [{ lease_id: m.lease_id }]); // somebody else takes it
    await lost;
    reason = context.signal.reason;
  };
  const run = new Worker(c, "jobs", handler, { concurrency: 1, leaseMs: 300 }).run(stop.signal);
  await seen(c, 1, "jobs", "acked");
  stop.abort();
  await run;
  assert.ok(reason instanceof LeaseLost);
});

test("stopping settles or releases everything", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await queue(c, "jobs");
  await produce(c, "jobs", 40);
  const stop = stopper(t);
  const both = signal();
  const go = signal();
  let began = 0, blocked = 0;
  let reason: unknown;
  const handler = async (_: Message, context: { signal: AbortSignal }) => {
    if (++began <= 4) {
      return; // fast: so some are leased ahead
    }
    if (++blocked === 1) {
      await go.promise; // and returns in the grace
      return;
    }
    both.resolve();
    await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
    reason = context.signal.reason;
    throw reason;
  };
  const run = new Worker(c, "jobs", handler, { concurrency: 2, graceMs: 100 }).run(stop.signal);
  await both.promise;
  stop.abort();
  go.resolve();
  await run;
  assert.ok(reason instanceof Stopping);
  const { acked_total, in_flight, depth } = await stats(c, "jobs");
  assert.deepEqual([acked_total, in_flight, depth], [5, 0, 35]);
  const rest = await c.lease("jobs", { maxMessages: 100 });
  assert.ok(rest.every((m) => m.attempt === 1)); // no attempt was counted
});

test("a batch of a lane is handled in order, and released behind a failure", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await queue(c, "jobs", { ordering: "fifo", delivery: { lane_batch: 10, initial_backoff_ms: 0 } });
  await produce(c, "jobs", 5);
  const order: number[] = [];
  const stop = stopper(t);
  const handler = async (m: Message<Numbered>) => {
    order.push(m.payload.n);
    if (m.payload.n === 2 && m.attempt === 1) {
      throw new Error("once");
    }
  };
  const run = new Worker<Numbered>(c, "jobs", handler).run(stop.signal);
  await seen(c, 5, "jobs", "acked");
  stop.abort();
  await run;
  assert.deepEqual(order, [0, 1, 2, 2, 3, 4]);
});

test("the node is killed while the worker runs: nothing is lost, each is acked once", async (t) => {
  const server = await Server.start(t);
  const c = new Client(server.url);
  await queue(c, "jobs", { delivery: { max_attempts: 0, initial_backoff_ms: 0 } });
  const n = 300;
  await produce(c, "jobs", n);
  const stop = stopper(t);
  const kill = signal();
  const killed = signal();
  let began = 0;
  const handler = async () => {
    if (++began === 50) {
      kill.resolve();
    }
    if (began >= 50) {
      await killed.promise; // some are leased, and settled while there is no node
    }
  };
  const warnings: string[] = [];
  const logger = { warn: (text: string) => void warnings.push(text) };
  const options = { concurrency: 8, leaseMs: 2000, logger };
  const run = new Worker(c, "jobs", handler, options).run(stop.signal);
  await kill.promise;
  await server.kill9();
  killed.resolve();
  await server.launch();
  const acked = new Map<string, number>();
  for await (const e of follow(new Client(server.url), "jobs", "acked")) {
    acked.set(e.message_id!, (acked.get(e.message_id!) ?? 0) + 1);
    if (acked.size === n) {
      break;
    }
  }
  stop.abort();
  await run;
  assert.ok([...acked.values()].every((times) => times === 1));
  const { depth, scheduled, in_flight, acked_total } = await stats(c, "jobs");
  assert.deepEqual([depth, scheduled, in_flight, acked_total], [0, 0, 0, n]);
});

test("a refused lease ends the worker", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await assert.rejects(new Worker(c, "no-such", () => {}).run(), { code: "queue_not_found" });
  assert.throws(() => new Worker(c, "jobs", () => {}, { concurrency: NaN }), /concurrency must be/);
});

test("a worker of several queues waits for a node", async (t) => {
  const server = await Server.start(t);
  const c = new Client(server.url, { retry: { attempts: 1, minMs: 1, maxMs: 10 } });
  await queue(c, "urgent");
  await queue(c, "jobs");
  await c.enqueue("jobs", { payload: 1, kind: "a" });
  await c.enqueue("urgent", { payload: 2, kind: "a" });
  await c.enqueue("jobs", { payload: 3, kind: "b" });
  await server.kill9();
  const warned = signal();
  const logger = { warn: () => warned.resolve() };
  const stop = stopper(t);
  const payloads: unknown[] = [];
  const handler = (m: Message) => void payloads.push(m.payload);
  const options = { more: ["jobs"], kinds: ["a"], concurrency: 1, logger };
  const run = new Worker(c, "urgent", handler, options).run(stop.signal);
  await warned.promise;
  await server.launch();
  const again = new Client(server.url);
  await seen(again, 1, "jobs", "acked");
  stop.abort();
  await run;
  assert.deepEqual(payloads, [2, 1]);
  assert.equal((await stats(again, "jobs")).depth, 1);
});
