import assert from "node:assert/strict";
import { test } from "node:test";
import createClient from "openapi-fetch";
import type { paths } from "../src/schema.js";
import { Server } from "./server.js";

// What openapi-typescript and openapi-fetch make of api/openapi.yaml, without a setting or a cast.
test("a generated client", async (t) => {
  const server = await Server.start(t);
  const c = createClient<paths>({ baseUrl: server.url });
  const to = { params: { path: { queue: "jobs" } } };

  const created = await c.PUT("/v1/queues/{queue}", {
    ...to,
    body: { delivery: { dead_letter_queue: "auto" } },
  });
  assert.equal(created.data?.delivery.dead_letter_queue, "jobs.dlq");

  const produced = await c.POST("/v1/queues/{queue}/messages", {
    ...to,
    body: { messages: [{ payload: { n: 1 } }, { payload: { n: 2 }, kind: "late", delay_ms: 0 }] },
  });
  assert.deepEqual(produced.data?.messages.map((m) => m.status), ["enqueued", "enqueued"]);

  const leased = await c.POST("/v1/queues/{queue}/lease", { ...to, body: { wait_ms: 10_000 } });
  assert.equal(leased.error, undefined);
  const [first, second] = leased.data.messages;
  assert.ok(first && second);
  assert.deepEqual(first.payload, { n: 1 });

  const acked = await c.POST("/v1/queues/{queue}/ack", {
    ...to,
    body: { lease_ids: [first.lease_id] },
  });
  assert.equal(acked.data?.results[0]?.status, "acked");

  const died = await c.POST("/v1/queues/{queue}/dead-letter", {
    ...to,
    body: { items: [{ lease_id: second.lease_id, error: "no such customer" }] },
  });
  assert.equal(died.data?.results[0]?.status, "dead_lettered");

  const groups = await c.GET("/v1/queues/{queue}/dead/groups", to);
  assert.equal(groups.data?.total, 1);
  const dead = await c.GET("/v1/queues/{queue}/dead", to);
  assert.equal(dead.data?.dead[0]?.dead?.error, "no such customer");

  const replayed = await c.POST("/v1/queues/{queue}/dead/replay", { ...to, body: { filter: {} } });
  assert.ok(replayed.data && "replayed" in replayed.data);
  assert.equal(replayed.data.replayed, 1);

  const events = await c.GET("/v1/events", {
    params: { query: { from: "start", type: ["replayed"] } },
  });
  assert.equal(events.data?.events.length, 1);

  const message = await c.GET("/v1/messages/{id}", { params: { path: { id: first.id } } });
  assert.equal(message.data?.state, "acked");

  const missing = await c.GET("/v1/queues/{queue}", { params: { path: { queue: "no-such" } } });
  assert.equal(missing.error?.code, "queue_not_found");
});
