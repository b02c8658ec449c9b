import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { Client } from "../src/index.js";
import { queue, Server } from "./server.js";

const root = new URL("../../", import.meta.url);

test("the README has the examples as they are", () => {
  const readme = readFileSync(new URL("README.md", root), "utf8");
  const blocks = [...readme.matchAll(/^```ts\n(.*?)^```$/gms)].map((m) => m[1]);
  const examples = ["produce", "worker"].map((name) =>
    readFileSync(new URL(`examples/${name}.ts`, root), "utf8"),
  );
  assert.deepEqual(blocks, examples);
});

/** Runs an example, as a user does: it imports the package by its name. */
function run(name: string, addr: string) {
  const file = fileURLToPath(new URL(`dist/examples/${name}.js`, root));
  const env = { ...process.env, QLOGD_ADDR: addr };
  const program = spawn(process.execPath, [file], { env, stdio: ["ignore", "pipe", "inherit"] });
  return { program, lines: createInterface(program.stdout)[Symbol.asyncIterator]() };
}

test("the examples run", async (t) => {
  const { url } = await Server.start(t);
  await queue(new Client(url), "mails");
  assert.match((await run("produce", url).lines.next()).value, /^enqueued 0/);
  const { program, lines } = run("worker", url);
  assert.equal((await lines.next()).value, "sent to ada@example.com, attempt 1");
  program.kill("SIGTERM");
  assert.deepEqual(await once(program, "exit"), [0, null]);
});
