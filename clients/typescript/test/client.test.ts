import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { bytes, Client, QlogdError, type SettleResult, unwrap, Worker } from "../src/index.js";
import { queue, Server } from "./server.js";

test("produce, lease, settle, dead letters", async (t) => {
  const c = new Client((await Server.start(t)).url);
  const hour = 3_600_000;
  await queue(c, "jobs", { delivery: { dead_letter_queue: "auto", initial_backoff_ms: hour } });
  const binary = Buffer.from([0, 255]).toString("base64");
  const ids = (await c.produce("jobs", [
    { payload: { n: 1 } },
    { payload: null },
    { payload_base64: binary, content_type: "image/x" },
    { payload: "later" },
  ])).map((p) => p.id);
  assert.equal((await c.enqueue("jobs", { payload: 5 })).status, "enqueued");

  const leased = await c.lease("jobs", { waitMs: 10_000, worker: "me" });
  assert.deepEqual(leased.slice(0, 4).map((m) => m.id), ids);
  assert.deepEqual([...bytes(leased[2]!)], [0, 255]);
  assert.equal(Buffer.from(bytes(leased[0]!)).toString(), '{"n":1}');
  const [a, b, d, e, f] = leased.map((m) => m.lease_id);

  const status = async (settled: Promise<SettleResult[]>) => (await settled)[0]?.status;
  assert.equal(await status(c.extend("jobs", [{ lease_id: a! }])), "extended");
  assert.equal(await status(c.ack("jobs", [a!])), "acked");
  assert.equal(await status(c.ack("jobs", [a!])), "acked"); // a repeat gets the first answer
  const died = c.deadLetter("jobs", [{ lease_id: b!, error: "bad" }]);
  assert.equal(await status(died), "dead_lettered");
  assert.equal(await status(c.release("jobs", [{ lease_id: d! }])), "released");
  assert.equal(await status(c.retry("jobs", [{ lease_id: e!, error: "busy" }])), "retried");
  assert.equal(await status(c.release("jobs", [{ lease_id: f!, delay_ms: hour }])), "released");
  assert.equal((await c.ack("jobs", [e!]))[0]?.code, "lease_lost");
  assert.deepEqual((await c.lease(["jobs"])).map((m) => [m.id, m.attempt]), [[ids[2], 1]]);
  assert.deepEqual(await c.lease("jobs"), []);

  const { dead } = await c.dead("jobs", { reason: "rejected" });
  assert.deepEqual(dead.map((m) => m.dead?.error), ["bad"]);
  const replayed = await c.replay("jobs", { message_ids: [ids[1]!] });
  assert.equal("replayed" in replayed && replayed.replayed, 1);
  assert.deepEqual((await c.dead("jobs")).dead, []);
});

test("problems are typed", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await assert.rejects(c.enqueue("no-such", { payload: 1 }), (e) => {
    assert.ok(e instanceof QlogdError);
    const { code, status, problem } = e;
    assert.deepEqual([code, status, problem.outcome], ["queue_not_found", 404, "not_applied"]);
    return true;
  });
  await assert.rejects(c.lease("no-such"), { code: "queue_not_found", status: 404 });
  const answer = await c.api.GET("/v1/queues/{queue}", { params: { path: { queue: "no-such" } } });
  assert.equal(answer.error?.code, "queue_not_found");
  await queue(c, "jobs");
  await assert.rejects(c.enqueue("jobs", { payload: 1, priority: 11 }), (e) => {
    assert.ok(e instanceof QlogdError);
    const { code, problem } = e;
    assert.deepEqual([code, problem.field, problem.index], ["invalid_argument", "priority", 0]);
    return true;
  });
});

test("tokens", async (t) => {
  const sha256 = createHash("sha256").update("secret").digest("hex");
  const dir = mkdtempSync(join(tmpdir(), "qlogd-ts-"));
  t.after(() => rmSync(dir, { recursive: true }));
  const file = join(dir, "auth.yaml");
  writeFileSync(file, `- {name: ops, sha256: ${sha256}, roles: [admin]}\n`, { mode: 0o600 });
  const { url } = await Server.start(t, ["--auth-file", file]);
  const good = new Client(url, { token: "secret" });
  await queue(good, "jobs");
  assert.equal((await good.enqueue("jobs", { payload: 1 })).status, "enqueued");
  const bad = new Client(url, { token: "wrong" });
  const refused = { name: "QlogdError", code: "unauthenticated", status: 401 };
  await assert.rejects(bad.lease("jobs"), refused);
  await assert.rejects(new Worker(bad, "jobs", () => {}).run(), refused);
});

/** A proxy that cuts the connection instead of passing the first answer to a path on. */
async function cutting(t: TestContext, url: string, path: RegExp) {
  let asked = 0;
  const { hostname, port } = new URL(url);
  const proxy = http.createServer((req, res) => {
    const { method, headers } = req;
    const on = http.request({ hostname, port, path: req.url, method, headers }, (answer) => {
      if (path.test(req.url!) && asked++ === 0) {
        answer.resume().on("end", () => req.socket.destroy());
        return;
      }
      res.writeHead(answer.statusCode!, answer.headers);
      answer.pipe(res);
    });
    req.pipe(on);
  });
  const listening = new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    proxy.close();
    proxy.closeAllConnections();
  });
  await listening;
  return { url: `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`, asked: () => asked };
}

test("a write without an answer is repeated under its key", async (t) => {
  const server = await Server.start(t);
  await queue(new Client(server.url), "jobs");
  const proxy = await cutting(t, server.url, /messages$/);
  const c = new Client(proxy.url);
  const { id, status } = await c.enqueue("jobs", { payload: 1 });
  assert.deepEqual([status, proxy.asked()], ["enqueued", 2]);
  const messages = await c.lease("jobs");
  assert.deepEqual(messages.map((m) => m.id), [id]);
});

test("a write whose outcome is unknown says so; a lease is not repeated", async (t) => {
  const server = await Server.start(t);
  await queue(new Client(server.url), "jobs");
  const { url } = await cutting(t, server.url, /messages$/);
  const produce = new Client(url, { retry: { attempts: 1 } });
  const idempotencyKey = "the-first";
  await assert.rejects(produce.produce("jobs", [{ payload: 1 }], { idempotencyKey }), (e) => {
    assert.ok(e instanceof QlogdError);
    assert.deepEqual([e.code, e.problem.outcome], ["unreachable", "unknown"]);
    return true;
  });
  const [again] = await produce.produce("jobs", [{ payload: 1 }], { idempotencyKey });
  const proxy = await cutting(t, server.url, /lease$/);
  const c = new Client(proxy.url);
  await assert.rejects(c.lease("jobs"), { code: "unreachable" });
  assert.equal(proxy.asked(), 1);
  const params = { path: { id: again!.id } };
  assert.equal((await unwrap(c.api.GET("/v1/messages/{id}", { params }))).state, "leased");
});

test("another endpoint takes over", async (t) => {
  const closed = createServer();
  await new Promise<void>((resolve) => closed.listen(0, "127.0.0.1", resolve));
  const { port } = closed.address() as AddressInfo;
  await new Promise((resolve) => closed.close(resolve));
  const server = await Server.start(t);
  const c = new Client([`127.0.0.1:${port}`, server.url], { retry: { attempts: 1 } });
  await queue(c, "jobs");
  await c.enqueue("jobs", { payload: 1 });
  assert.equal((await c.lease("jobs", { waitMs: 10_000 })).length, 1);

  const alone = new Client(`http://127.0.0.1:${port}`, { retry: { attempts: 2, minMs: 1 } });
  await assert.rejects(alone.enqueue("jobs", { payload: 1 }), (e) => {
    assert.ok(e instanceof QlogdError);
    assert.match(e.message, /ECONNREFUSED/);
    assert.equal(e.problem.outcome, "not_applied");
    return true;
  });
});

test("a signal ends a call", async (t) => {
  const c = new Client((await Server.start(t)).url);
  await queue(c, "jobs");
  const stop = new AbortController();
  const polled = c.lease("jobs", { waitMs: 60_000, signal: stop.signal });
  stop.abort();
  await assert.rejects(polled, { name: "AbortError" });
});
